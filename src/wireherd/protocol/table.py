"""The message table: one row per command, and everything else reads it.

Upstream's numbers are `enum rpc_cmd` in `ggml/src/ggml-rpc/ggml-rpc.cpp`; ours begin at 128.
What a version changes inside a message stands on the message's fields (`since`); what it changes about the answer
stands in the row (`silent_since`).
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

from wireherd.protocol import messages_graph as graph
from wireherd.protocol import messages_herd as herd
from wireherd.protocol import messages_peer as peer
from wireherd.protocol import messages_stock as stock
from wireherd.protocol.messages_herd import Feature, Purpose
from wireherd.protocol.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.protocol.fields import Message


class Opcode(enum.IntEnum):
    """Command numbers."""

    ALLOC_BUFFER = 0
    GET_ALIGNMENT = 1
    GET_MAX_SIZE = 2
    BUFFER_GET_BASE = 3
    FREE_BUFFER = 4
    BUFFER_CLEAR = 5
    SET_TENSOR = 6
    SET_TENSOR_HASH = 7
    GET_TENSOR = 8
    COPY_TENSOR = 9
    GRAPH_COMPUTE = 10
    GET_DEVICE_MEMORY = 11
    INIT_TENSOR = 12
    GET_ALLOC_SIZE = 13
    HELLO = 14
    DEVICE_COUNT = 15
    GRAPH_RECOMPUTE = 16
    MEMSET_TENSOR = 17
    SET_TENSOR_2D = 18
    GET_TENSOR_2D = 19
    COMM_INIT = 20
    COMM_ALLREDUCE = 21
    COMM_FREE = 22
    HERD_HELLO = 128
    GRAPH_CACHE_SIZE = 129
    DEVICE_INFO = 130
    SUPPORTS_OP = 131
    PING = 132
    CANCEL = 133
    ERROR = 134
    PROGRESS = 135
    GROUP_OPEN = 136
    GROUP_JOIN = 137
    GROUP_REDUCE = 138
    GROUP_CLOSE = 139
    GROUP_LINK = 140
    GROUP_PART = 141


class State(enum.Enum):
    """Where a connection is in its life."""

    #: nothing was said
    NEW = "new"
    #: HELLO was said; the next command decides what the connection becomes
    HELLO = "hello"
    #: commands run in order
    STREAM = "stream"
    #: beside a stream of the same session: PING and CANCEL only
    CONTROL = "control"
    #: between two workers of one group: parts of tensors only
    PEER = "peer"
    #: nothing more may be said
    CLOSED = "closed"


#: what HERD_HELLO makes of a connection
STATE_FOR = {Purpose.STREAM: State.STREAM, Purpose.CONTROL: State.CONTROL, Purpose.PEER: State.PEER}


class Reply(enum.Enum):
    """What comes back."""

    NONE = "none"
    #: a length of zero
    EMPTY = "empty"
    #: a message
    RECORD = "record"
    #: the bytes asked for
    RAW = "raw"


class Bulk(enum.Enum):
    """Where data travels that no message holds."""

    NONE = "none"
    #: after the request's fields
    REQUEST = "request tail"
    #: as the answer
    RESPONSE = "response"


#: beyond what any device holds; what fits is for the owner of the memory to say, before a byte is read
MAX_BULK = 1 << 40
#: enough for 100,000 nodes with as many leaves
MAX_GRAPH = 64 << 20
MAX_TEXTS = 1 << 20

_COMMANDS = frozenset({State.HELLO, State.STREAM})


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One row of the table."""

    opcode: Opcode
    #: None: nobody sends it as a command, it comes unasked from the server
    request: type[Message] | None
    #: None: no message comes back (nothing, or raw bytes)
    response: type[Message] | None
    reply: Reply
    since: Version
    doc: str
    bulk: Bulk = Bulk.NONE
    #: first version in which the answer is dropped
    silent_since: Version | None = None
    #: feature of the extension it needs; herd rows exist only there
    feature: Feature = Feature.NONE
    herd: bool = False
    states: frozenset[State] = _COMMANDS
    #: largest payload in either direction where the layout does not fix it
    max_size: int = 0
    #: a worker may answer it without any state of the connection
    stateless: bool = False
    #: bulk bytes that a request implies; None with bulk in the request: any number
    bulk_size: Callable[[Any], int] | None = None

    @property
    def name(self) -> str:
        """Upstream's name, in capitals."""
        return self.opcode.name

    @property
    def unasked(self) -> bool:
        """Whether it comes from the server without a request."""
        return self.request is None


def _read_size(request: stock.GetTensorRequest) -> int:
    return request.size


def _part_size(request: peer.GroupPartRequest) -> int:
    return request.size


def _rows_size(request: stock.SetTensor2DRequest | stock.GetTensor2DRequest) -> int:
    return request.size * request.n_copies


_FIRST = Version(0, 0)
_V3, _V35, _V5, _V6, _V8 = Version(3, 0), Version(3, 5), Version(5, 0), Version(6, 0), Version(8, 0)
_STREAM = frozenset({State.STREAM})
_CONTROL = frozenset({State.CONTROL})
_PEER = frozenset({State.PEER})
_NOWHERE: frozenset[State] = frozenset()

_ROWS: tuple[Command, ...] = (
    Command(
        Opcode.ALLOC_BUFFER, stock.AllocBufferRequest, stock.AllocBufferResponse, Reply.RECORD, _FIRST,
        "make a buffer on a device",
    ),
    Command(
        Opcode.GET_ALIGNMENT, stock.GetAlignmentRequest, stock.GetAlignmentResponse, Reply.RECORD, _FIRST,
        "ask how a device aligns tensors", stateless=True,
    ),
    Command(
        Opcode.GET_MAX_SIZE, stock.GetMaxSizeRequest, stock.GetMaxSizeResponse, Reply.RECORD, _FIRST,
        "ask for the largest buffer of a device", stateless=True,
    ),
    Command(
        Opcode.BUFFER_GET_BASE, stock.BufferGetBaseRequest, stock.BufferGetBaseResponse, Reply.RECORD, _FIRST,
        "ask where a buffer begins",
    ),
    Command(
        Opcode.FREE_BUFFER, stock.FreeBufferRequest, stock.EmptyResponse, Reply.EMPTY, _FIRST,
        "give a buffer back; kept graphs that touch it are dropped", silent_since=_V6,
    ),
    Command(
        Opcode.BUFFER_CLEAR, stock.BufferClearRequest, stock.EmptyResponse, Reply.EMPTY, _FIRST,
        "fill a buffer with one byte", silent_since=_V6,
    ),
    Command(
        Opcode.SET_TENSOR, stock.SetTensorRequest, None, Reply.NONE, _FIRST,
        "write to a tensor", bulk=Bulk.REQUEST, max_size=MAX_BULK,
    ),
    Command(
        Opcode.SET_TENSOR_HASH, stock.SetTensorHashRequest, stock.SetTensorHashResponse, Reply.RECORD, _FIRST,
        "write to a tensor what the server may have already",
    ),
    Command(
        Opcode.GET_TENSOR, stock.GetTensorRequest, None, Reply.RAW, _FIRST,
        "read from a tensor", bulk=Bulk.RESPONSE, max_size=MAX_BULK, bulk_size=_read_size,
    ),
    Command(
        Opcode.COPY_TENSOR, stock.CopyTensorRequest, stock.CopyTensorResponse, Reply.RECORD, _FIRST,
        "copy a tensor to another one of the same server",
    ),
    Command(
        Opcode.GRAPH_COMPUTE, graph.GraphComputeRequest, None, Reply.NONE, _FIRST,
        "run a graph and keep it", max_size=MAX_GRAPH,
    ),
    Command(
        Opcode.GET_DEVICE_MEMORY, stock.GetDeviceMemoryRequest, stock.GetDeviceMemoryResponse, Reply.RECORD, _FIRST,
        "ask for the memory of a device", stateless=True,
    ),
    Command(
        Opcode.INIT_TENSOR, stock.InitTensorRequest, stock.EmptyResponse, Reply.EMPTY, _FIRST,
        "let the device prepare a tensor that was just placed", silent_since=_V6,
    ),
    Command(
        Opcode.GET_ALLOC_SIZE, stock.GetAllocSizeRequest, stock.GetAllocSizeResponse, Reply.RECORD, _FIRST,
        "ask how many bytes a device needs for a tensor", stateless=True,
    ),
    Command(
        Opcode.HELLO, stock.HelloRequest, stock.HelloResponse, Reply.RECORD, Version(1, 0),
        "say the protocol version; first on every connection", states=frozenset({State.NEW}), stateless=True,
    ),
    Command(
        Opcode.DEVICE_COUNT, stock.DeviceCountRequest, stock.DeviceCountResponse, Reply.RECORD, _V3,
        "ask how many devices there are", stateless=True,
    ),
    Command(
        Opcode.GRAPH_RECOMPUTE, graph.GraphRecomputeRequest, None, Reply.NONE, _V35,
        "run a kept graph again",
    ),
    Command(
        Opcode.MEMSET_TENSOR, stock.MemsetTensorRequest, stock.EmptyResponse, Reply.EMPTY, _V5,
        "fill part of a tensor with one byte", silent_since=_V6,
    ),
    Command(
        Opcode.SET_TENSOR_2D, stock.SetTensor2DRequest, None, Reply.NONE, _V8,
        "write rows to a tensor", bulk=Bulk.REQUEST, max_size=MAX_BULK, bulk_size=_rows_size,
    ),
    Command(
        Opcode.GET_TENSOR_2D, stock.GetTensor2DRequest, None, Reply.RAW, _V8,
        "read rows from a tensor", bulk=Bulk.RESPONSE, max_size=MAX_BULK, bulk_size=_rows_size,
    ),
    Command(
        Opcode.COMM_INIT, stock.CommInitRequest, stock.CommInitResponse, Reply.RECORD, _V8,
        "join a group of two servers",
    ),
    Command(
        Opcode.COMM_ALLREDUCE, stock.CommAllreduceRequest, None, Reply.NONE, _V8,
        "add a tensor over the group",
    ),
    Command(Opcode.COMM_FREE, stock.CommFreeRequest, None, Reply.NONE, _V8, "leave the group"),
    Command(
        Opcode.HERD_HELLO, herd.HerdHelloRequest, herd.HerdHelloResponse, Reply.RECORD, Version(4, 0),
        "ask for the extension; stock framing, only after HELLO and only if the server offered it",
        states=frozenset({State.HELLO}), max_size=MAX_TEXTS,
    ),
    Command(
        Opcode.GRAPH_CACHE_SIZE, graph.GraphCacheSizeRequest, graph.GraphCacheSizeResponse, Reply.RECORD, _V8,
        "ask for room for kept graphs; before the first graph", feature=Feature.GRAPH_CACHE, herd=True,
        states=_STREAM,
    ),
    Command(
        Opcode.DEVICE_INFO, herd.DeviceInfoRequest, herd.DeviceInfoResponse, Reply.RECORD, _V8,
        "ask what a device is", feature=Feature.DEVICE_INFO, herd=True, states=_STREAM, max_size=MAX_TEXTS,
    ),
    Command(
        Opcode.SUPPORTS_OP, graph.SupportsOpRequest, graph.SupportsOpResponse, Reply.RECORD, _V8,
        "ask which nodes a device can run", feature=Feature.SUPPORTS_OP, herd=True, states=_STREAM,
        max_size=MAX_GRAPH,
    ),
    Command(
        Opcode.PING, herd.PingRequest, herd.PingResponse, Reply.RECORD, _V8,
        "ask whether the session lives; on the stream it also says that all before it was taken",
        herd=True, states=_STREAM | _CONTROL,
    ),
    Command(
        Opcode.CANCEL, herd.CancelRequest, None, Reply.NONE, _V8,
        "stop the running graph and drop what is queued", feature=Feature.CONTROL, herd=True, states=_CONTROL,
    ),
    Command(
        Opcode.ERROR, None, herd.ErrorNotice, Reply.NONE, _V8,
        "unasked: a command without an answer failed", herd=True, states=_NOWHERE, max_size=MAX_TEXTS,
    ),
    Command(
        Opcode.PROGRESS, None, herd.ProgressNotice, Reply.NONE, _V8,
        "unasked: how far a long command is", feature=Feature.PROGRESS, herd=True, states=_NOWHERE,
    ),
    Command(
        Opcode.GROUP_OPEN, peer.GroupOpenRequest, peer.GroupOpenResponse, Reply.RECORD, _V8,
        "take a rank in a group of workers", feature=Feature.GROUP, herd=True, states=_STREAM, max_size=MAX_TEXTS,
    ),
    Command(
        Opcode.GROUP_JOIN, peer.GroupJoinRequest, peer.GroupJoinResponse, Reply.RECORD, _V8,
        "link up with the members of a group", feature=Feature.GROUP, herd=True, states=_STREAM, max_size=MAX_TEXTS,
    ),
    Command(
        Opcode.GROUP_REDUCE, peer.GroupReduceRequest, None, Reply.NONE, _V8,
        "add a tensor over a group", feature=Feature.GROUP, herd=True, states=_STREAM,
    ),
    Command(
        Opcode.GROUP_CLOSE, peer.GroupCloseRequest, None, Reply.NONE, _V8,
        "leave a group", feature=Feature.GROUP, herd=True, states=_STREAM,
    ),
    Command(
        Opcode.GROUP_LINK, peer.GroupLinkRequest, peer.GroupLinkResponse, Reply.RECORD, _V8,
        "first on a link between workers: which group it is for", feature=Feature.GROUP, herd=True, states=_PEER,
    ),
    Command(
        Opcode.GROUP_PART, peer.GroupPartRequest, None, Reply.NONE, _V8,
        "part of a tensor, from worker to worker", bulk=Bulk.REQUEST, feature=Feature.GROUP, herd=True, states=_PEER,
        max_size=MAX_BULK, bulk_size=_part_size,
    ),
)  # fmt: skip

#: the table by number
COMMANDS: dict[int, Command] = {row.opcode: row for row in _ROWS}


def _by_message() -> dict[type[Message], Command]:
    found: dict[type[Message], Command] = {}
    for row in _ROWS:
        for cls in (row.request, row.response):
            if cls is None or cls is stock.EmptyResponse:
                continue
            if cls in found:
                raise TypeError(f"{cls.__name__} stands in two rows")
            found[cls] = row
    return found


#: message class → its row; `EmptyResponse` belongs to several and is left out
BY_MESSAGE: dict[type[Message], Command] = _by_message()
