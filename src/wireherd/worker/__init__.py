"""The worker: owns devices, buffers and graphs, and runs them with ggml for clients it does not trust.

Three roles, three kinds of process: the supervisor (`supervisor.py`) listens and hands connections on, probes
(`probe.py`) answer what needs no state, sessions (`process.py`) serve one client each. Commands are carried out by
`dispatch.py`; nothing that came from the network reaches ggml before `validate.py` and `buffers.py` have checked it.
This room must never import `client`, and the supervisor must never load ggml. Start reading at `supervisor.py`.
"""

from __future__ import annotations

from wireherd.worker.launch import WorkerProcess, WorkerStartError, spawn
from wireherd.worker.settings import WorkerSettings

__all__ = ["WorkerProcess", "WorkerSettings", "WorkerStartError", "run", "spawn"]


def run(settings: WorkerSettings) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit code of the worker.

    Raises:
        UsageError: settings that make no sense.
        WireherdError: the address cannot be listened on, or a process cannot start (library, device).
    """
    from wireherd.worker import supervisor  # noqa: PLC0415 (asyncio: only the supervisor needs it)

    return supervisor.run(settings)
