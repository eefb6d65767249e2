"""Commands that run graphs, or ask whether one could run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wireherd.protocol.messages_graph import (
    GraphComputeRequest,
    GraphRecomputeRequest,
    SupportsOpRequest,
    SupportsOpResponse,
)
from wireherd.protocol.table import Opcode

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.worker.state import State


def graph_compute(state: State, message: GraphComputeRequest) -> None:
    """Check a graph, run it, keep it."""
    state.graphs.compute(state.devices.get(message.device), message.uid, message.node_ids, message.tensors)


def graph_recompute(state: State, message: GraphRecomputeRequest) -> None:
    """Run a kept graph again."""
    state.graphs.recompute(state.devices.get(message.device), message.uid)


def supports_op(state: State, message: SupportsOpRequest) -> SupportsOpResponse:
    """Which of these nodes the device can run."""
    device = state.devices.get(message.device)
    return SupportsOpResponse(state.graphs.supported(device, message.node_ids, message.tensors))


HANDLERS: Final[dict[Opcode, Callable[[State, Any], Any]]] = {
    Opcode.GRAPH_COMPUTE: graph_compute,
    Opcode.GRAPH_RECOMPUTE: graph_recompute,
    Opcode.SUPPORTS_OP: supports_op,
}
