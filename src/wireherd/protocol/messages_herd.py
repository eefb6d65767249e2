"""Messages of our own extension (opcodes from 128 up), spoken only after HERD_HELLO was agreed."""

from __future__ import annotations

import enum

from wireherd.protocol.fields import TEXT, TEXTS, U8, U16, U32, U64, Message, fixed_bytes, message, wire
from wireherd.protocol.version import EXTENSION

#: "HERD" read as a little-endian u32
MAGIC = int.from_bytes(b"HERD", "little")
SESSION_SIZE = 16
NO_SESSION = bytes(SESSION_SIZE)


class Purpose(enum.IntEnum):
    """What a connection is for."""

    STREAM = 0
    CONTROL = 1
    PEER = 2


class Feature(enum.IntFlag):
    """Parts of the extension that either end may lack."""

    NONE = 0
    DEVICE_INFO = 1
    SUPPORTS_OP = 2
    CONTROL = 4
    PROGRESS = 8
    GRAPH_CACHE = 16
    GROUP = 32
    #: SET_TENSOR is answered, as before protocol 2.0: only to measure what that costs
    ANSWERED_SETS = 64


#: what this release can do without being asked
FEATURES = (
    Feature.DEVICE_INFO | Feature.SUPPORTS_OP | Feature.CONTROL | Feature.PROGRESS | Feature.GRAPH_CACHE | Feature.GROUP
)

#: what it can do besides, for a client that asks
ON_REQUEST = Feature.ANSWERED_SETS


class DeviceCaps(enum.IntFlag):
    """What a device says about itself in DEVICE_INFO."""

    NONE = 0
    ASYNC = 1
    HOST_BUFFER = 2
    EVENTS = 4
    #: a tensor takes exactly its own bytes, so GET_ALLOC_SIZE need not be asked
    PLAIN_ALLOC_SIZE = 8


@message
class HerdHelloRequest(Message):
    """Ask for the extension; stock framing still."""

    magic: int = wire(U32, 'always "HERD"', default=MAGIC)
    extension: int = wire(U16, "number of the extension", default=EXTENSION)
    purpose: int = wire(U8, "0 stream, 1 control, 2 peer", default=int(Purpose.STREAM))
    padding: int = wire(U8, "zero", default=0)
    features: int = wire(U64, "bits this client can use", default=int(FEATURES))
    session: bytes = wire(fixed_bytes(SESSION_SIZE), "session to join, zero for a new stream", default=NO_SESSION)


@message
class HerdHelloResponse(Message):
    """The extension as agreed; stock framing still, both directions switch after it."""

    status: int = wire(U16, "0 = agreed, otherwise a status of errors.py", default=0)
    extension: int = wire(U16, "number of the extension", default=EXTENSION)
    features: int = wire(U64, "bits both ends have", default=0)
    session: bytes = wire(fixed_bytes(SESSION_SIZE), "name of the session", default=NO_SESSION)
    window: int = wire(U64, "bytes the client may have in flight", default=64 << 20)
    max_frame: int = wire(U64, "largest payload the worker takes", default=1 << 40)
    build: str = wire(TEXT, "ggml build of the worker, or why it refused", default="")
    ops: tuple[str, ...] = wire(TEXTS, "operations by number", default=())
    unary_ops: tuple[str, ...] = wire(TEXTS, "unary operations by number", default=())
    glu_ops: tuple[str, ...] = wire(TEXTS, "GLU operations by number", default=())
    types: tuple[str, ...] = wire(TEXTS, "tensor types by number", default=())


@message
class DeviceInfoRequest(Message):
    """Ask what a device is."""

    device: int = wire(U32, "index of the device")


@message
class DeviceInfoResponse(Message):
    """What a device is."""

    name: str = wire(TEXT, "ggml's name of the device")
    description: str = wire(TEXT, "what people call it")
    type: int = wire(U32, "enum ggml_backend_dev_type")
    caps: int = wire(U32, "1 async, 2 host buffer, 4 events, 8 a tensor takes exactly its own bytes")
    memory_free: int = wire(U64, "bytes")
    memory_total: int = wire(U64, "bytes")
    alignment: int = wire(U64, "bytes")
    max_size: int = wire(U64, "largest buffer, bytes")


@message
class PingRequest(Message):
    """Ask whether the worker's session lives."""

    nonce: int = wire(U64, "comes back in the answer")


@message
class PingResponse(Message):
    """It lives."""

    nonce: int = wire(U64, "as asked")


@message
class CancelRequest(Message):
    """Stop the graph that runs now and drop what is queued."""


@message
class ErrorNotice(Message):
    """Unasked: a command without an answer failed; the session takes no more commands."""

    opcode: int = wire(U8, "the command that failed")
    status: int = wire(U16, "a status of errors.py")
    sequence: int = wire(U32, "which one it was")
    reason: str = wire(TEXT, "why, one sentence")


@message
class ProgressNotice(Message):
    """Unasked: how far a long command is."""

    opcode: int = wire(U8, "the command")
    sequence: int = wire(U32, "which one it is")
    done: int = wire(U64, "units done")
    total: int = wire(U64, "units in all, 0 = unknown")
