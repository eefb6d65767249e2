"""`--rpc local,...`: a worker beside the client, so that this machine takes its part like the others.

It listens on a unix socket that only this user can open (on loopback where there are none), is told the threads that
the session was given, and ends with it: also when the client is killed, for it then reads the end of its standard
input.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd import config
from wireherd.client.plugin import Cluster
from wireherd.errors import WorkerLost
from wireherd.llm import load
from wireherd.llm.options import default_threads
from wireherd.worker.launch import WorkerProcess, WorkerStartError, spawn
from wireherd.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.ggml.library import Library
    from wireherd.llm.options import LlamaOptions
    from wireherd.session.options import ClientOptions

#: how the worker beside the client is named in `--rpc`
LOCAL: Final = "local"


class LocalWorker:
    """A worker process of this client, with the folder of its socket."""

    def __init__(self, *, threads: int, library: Path | str | None) -> None:
        """Start it and wait until it serves.

        Raises:
            WorkerLost: it did not start.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="wireherd-"))
        unix = hasattr(socket, "AF_UNIX")
        settings = WorkerSettings(
            host=f"unix:{self._folder / 'worker'}" if unix else config.DEFAULT_HOST,
            port=0,
            threads=threads,
            ggml=str(library) if library else None,
        )
        try:
            self._process: WorkerProcess = spawn(settings, hears_ctrl_c=False)
        except WorkerStartError as error:
            self._remove()
            raise WorkerLost(LOCAL, f"did not start: {error}") from error
        except BaseException:
            self._remove()
            raise
        #: where it is reached
        self.endpoint = self._process.endpoint

    def close(self) -> None:
        """End it."""
        self._process.stop()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def open_cluster(lib: Library, options: LlamaOptions) -> Cluster:
    """Connect to the workers of a model; one of them may be started here, and then ends with the cluster.

    Raises:
        UsageError: a worker is named twice, or an address is none.
        WorkerLost, WorkerRefused, VersionMismatch: one sentence that names the endpoint.
    """
    return connect(lib, options.rpc, load.client_options(options), threads=options.threads, library=options.ggml)


def connect(
    lib: Library,
    endpoints: Sequence[str],
    wanted: ClientOptions,
    *,
    threads: int | None = None,
    library: Path | str | None = None,
) -> Cluster:
    """Connect to workers; for `local` among them one is started here, with so many threads and that native library.

    Raises:
        UsageError: a worker is named twice, or an address is none.
        WorkerLost, WorkerRefused, VersionMismatch: one sentence that names the endpoint.
    """
    if LOCAL not in endpoints:
        return Cluster(lib, endpoints, wanted)
    worker = LocalWorker(threads=threads or default_threads(), library=library)
    try:
        cluster = Cluster(lib, endpoints, replace(wanted, located=((LOCAL, worker.endpoint),)))
    except BaseException:
        worker.close()
        raise
    cluster.also_close(worker.close)
    return cluster
