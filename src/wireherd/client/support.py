"""Can this worker's device run this operation? Asked by libllama for every weight and every new graph.

Three answers, by what is known of the peer: an operation or type that the peer's build has no number for is never
placed there; a CPU worker of our own build has exactly the kernels of our own CPU backend, so that one is asked, at
once; any other worker of ours is asked over the wire, once for each shape. A stock server cannot be asked: what it has
a number for is taken for granted, as its own client does.

Once a worker has failed, the answer is yes: a no about tensors that lie there already makes libllama abort the
process, whereas the graph that it goes on to build fails in order.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from wireherd.bridge.gather import gather_node, raw_tensor, shape_key, sources_of
from wireherd.errors import RemoteError
from wireherd.ggml import memory
from wireherd.ggml.enums import DeviceType
from wireherd.ggml.structs import TensorOffset
from wireherd.obs.log import get_logger
from wireherd.protocol.messages_graph import SupportsOpRequest, SupportsOpResponse
from wireherd.protocol.messages_herd import Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.client.endpoint import DeviceFacts, Endpoint
    from wireherd.ggml.library import Library

log = get_logger(__name__)

_I32: Final = struct.Struct("<i")
_OP: Final = slice(TensorOffset.OP, TensorOffset.OP + 4)
#: data, and views of it: every device has them
_NO_KERNEL: Final = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
#: answers remembered before the memory is emptied; a graph has some forty different shapes
MEMO_LIMIT: Final = 16384


class OpSupport:
    """The question for one device of one worker; call it with the address of a complete node."""

    def __init__(self, lib: Library, endpoint: Endpoint, facts: DeviceFacts) -> None:
        self._endpoint = endpoint
        self._numbers = endpoint.numbers
        self._device = facts.index
        ops = lib.numbering().ops
        self._nothing_to_run = frozenset(_I32.pack(ops.index(name)) for name in _NO_KERNEL if name in ops)
        self._memo: dict[bytes, bool] = {}
        self._further = self._choose(lib, facts)

    def _choose(self, lib: Library, facts: DeviceFacts) -> Callable[[bytes, int], bool]:
        hello = self._endpoint.hello
        if hello is None:
            return _yes
        if facts.type == DeviceType.CPU and hello.build == lib.build:
            local = lib.cpu_device()
            return lambda _raw, node: local.supports_op(node)
        if hello.features & Feature.SUPPORTS_OP:
            return self._ask
        return _yes

    def __call__(self, node: int) -> bool:
        """Whether the device can run the node."""
        raw = raw_tensor(node)
        if raw[_OP] in self._nothing_to_run:
            return True
        if not self._numbers.identity and not self._has_numbers(raw):
            return False
        return self._further(raw, node)

    def _has_numbers(self, raw: bytes) -> bool:
        types = [_I32.unpack_from(raw, TensorOffset.TYPE)[0]]
        types += [memory.read_i32(source + TensorOffset.TYPE) for source in sources_of(raw) if source]
        op, first_param = _I32.unpack_from(raw, TensorOffset.OP)[0], _I32.unpack_from(raw, TensorOffset.OP_PARAMS)[0]
        return self._numbers.knows(op, first_param, types)

    def _ask(self, raw: bytes, node: int) -> bool:
        key = shape_key(raw)
        known = self._memo.get(key)
        if known is None:
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            known = self._memo[key] = self._call(node)
        return known

    def _call(self, node: int) -> bool:
        endpoint = self._endpoint
        if not endpoint.alive:
            return True
        try:
            node_ids, tensors = endpoint.wire_graph(gather_node(node))
            answer = endpoint.call(SupportsOpRequest(self._device, node_ids, tensors), SupportsOpResponse)
        except RemoteError as error:
            log.info("worker %s cannot say whether it runs a node: %s", endpoint.name, error)
            return False
        return answer.supported[:1] == b"\1"


def _yes(_raw: bytes, _node: int) -> bool:
    return True
