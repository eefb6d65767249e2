"""Commands that run graphs, or ask whether one could run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import BadRequest
from wireherd.protocol.kept import Policy, Rule
from wireherd.protocol.messages_graph import (
    GraphCacheSizeRequest,
    GraphCacheSizeResponse,
    GraphComputeRequest,
    GraphRecomputeRequest,
    SupportsOpRequest,
    SupportsOpResponse,
)
from wireherd.protocol.table import Opcode

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.worker.state import State


#: policies that a client may ask for
_POLICIES: Final = {int(policy): policy for policy in (Policy.RESET, Policy.LRU)}


def graph_cache_size(state: State, message: GraphCacheSizeRequest) -> GraphCacheSizeResponse:
    """Grant room for kept graphs, as far as the owner allows."""
    policy = _POLICIES.get(message.policy)
    if policy is None:
        raise BadRequest(f"a graph cache has no policy {message.policy}")
    settings = state.settings
    rule = Rule(min(message.count, settings.graph_cache_limit), settings.graph_cache_bytes, policy)
    state.graphs.agree(rule)
    return GraphCacheSizeResponse(rule.graphs, rule.nbytes)


def graph_compute(state: State, message: GraphComputeRequest) -> None:
    """Check a graph, run it, keep it if it is to be kept."""
    state.graphs.compute(state.devices.get(message.device), message.uid, message.node_ids, message.tensors)


def graph_recompute(state: State, message: GraphRecomputeRequest) -> None:
    """Run a kept graph again."""
    state.graphs.recompute(state.devices.get(message.device), message.uid)


def supports_op(state: State, message: SupportsOpRequest) -> SupportsOpResponse:
    """Which of these nodes the device can run."""
    device = state.devices.get(message.device)
    return SupportsOpResponse(state.graphs.supported(device, message.node_ids, message.tensors))


HANDLERS: Final[dict[Opcode, Callable[[State, Any], Any]]] = {
    Opcode.GRAPH_CACHE_SIZE: graph_cache_size,
    Opcode.GRAPH_COMPUTE: graph_compute,
    Opcode.GRAPH_RECOMPUTE: graph_recompute,
    Opcode.SUPPORTS_OP: supports_op,
}
