"""One worker as the vtable slots see it: its session, the way to its numbers and handles, its devices, its failure.

Rules: `post`, `ask` and `get` are what slots use to reach the wire. After the first failure nothing here does any
more; the failure stays, so that one exception, the first, reaches the user. What is refused without harm to the
session (no memory) is kept beside it and forgotten when a graph runs again.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from wireherd.bridge.gather import Handles, Snapshot, TensorRecords, to_wire
from wireherd.bridge.numbering import NumberMap
from wireherd.client.graphs import GraphStore, stores_for
from wireherd.client.tensors import alike, buffer_of
from wireherd.errors import (
    OutOfMemory,
    RemoteError,
    TransportError,
    WireherdError,
    WorkerError,
    WorkerLost,
    WorkerRefused,
)
from wireherd.ggml import memory
from wireherd.obs.log import get_logger
from wireherd.protocol.messages_herd import (
    DeviceCaps,
    DeviceInfoRequest,
    DeviceInfoResponse,
    Feature,
    PingRequest,
    PingResponse,
)
from wireherd.protocol.messages_stock import (
    CopyTensorRequest,
    CopyTensorResponse,
    DeviceCountRequest,
    DeviceCountResponse,
    GetAlignmentRequest,
    GetAlignmentResponse,
    GetDeviceMemoryRequest,
    GetDeviceMemoryResponse,
    GetMaxSizeRequest,
    GetMaxSizeResponse,
    GetTensorRequest,
    SetTensorRequest,
)
from wireherd.protocol.numbering import Numbering, stock_numbering

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wireherd.ggml.library import Library
    from wireherd.protocol.dialect import Dialect
    from wireherd.protocol.fields import Message
    from wireherd.protocol.messages_herd import HerdHelloResponse
    from wireherd.session.client import ClientSession

log = get_logger(__name__)

_Response = TypeVar("_Response")
#: more devices than any machine has; a larger count is a broken server
MAX_DEVICES = 64
MAX_ALIGNMENT = 1 << 20
#: messages of writes to whole tensors remembered
MAX_SETS = 1024
#: landing places kept for the next token: the logits of one or a few rows, and few sizes of them
KEEP_LANDING = 16 << 20
MAX_LANDINGS = 8


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a worker says about one of its devices."""

    #: its number on that worker
    index: int
    name: str
    description: str
    #: a `DeviceType`, None from a stock server, which does not tell
    type: int | None
    #: a tensor takes exactly its own bytes there
    plain_alloc_size: bool
    #: bytes
    alignment: int
    #: largest buffer, bytes
    max_size: int


class _Awaited(NamedTuple):
    """A get without its answer yet."""

    #: where the answer lands
    landing: bytearray
    #: where the caller wants it
    address: int
    #: the backend that asked
    backend: int


class Endpoint:
    """A connected worker. Make one with `Endpoint.adopt`."""

    def __init__(self, session: ClientSession, ours: Numbering, theirs: Numbering) -> None:
        self.session = session
        self._post = session.post
        self._set: Any = session.call if session.dialect.answered_sets else session.post
        self._sets: dict[bytes, SetTensorRequest] = {}
        #: as the user spelled it
        self.name = session.endpoint
        self.dialect: Dialect = session.dialect
        self.hello: HerdHelloResponse | None = session.hello
        self.numbers = NumberMap(ours, theirs)
        self.handles = Handles()
        self.records = TensorRecords(self.dialect.tensor_dtype, self.handles, self.numbers)
        self.devices: list[DeviceFacts] = []
        #: what each device holds, by its index
        self.graphs: list[GraphStore] = []
        #: the first failure; nothing touches the wire after it
        self.failure: WorkerError | None = None
        #: when that was, by the monotonic clock
        self.failed_at = 0.0
        #: the last allocation that was refused, until a graph runs again
        self.refusal: WorkerRefused | None = None
        #: Ctrl-C that hit inside a callback
        self.interrupted: BaseException | None = None
        #: gets that were sent and not waited for
        self._awaited: list[_Awaited] = []
        #: contexts may decode on threads of their own. It guards the list above, and is held wherever what is sent
        #: follows from what was sent before
        self.lock = threading.RLock()
        #: what others remember of tensors here; emptied when a buffer comes or goes
        self.memos: list[dict[bytes, Any]] = []
        #: landing places to be used again, by size
        self._landings: dict[int, bytearray] = {}

    @classmethod
    def adopt(cls, lib: Library, session: ClientSession) -> Endpoint:
        """Make an endpoint of a fresh session and learn its devices.

        Raises:
            WorkerLost, WorkerRefused: it died, or says nonsense.
            VersionMismatch: a stock version whose operation numbers are unknown.
        """
        endpoint = cls(session, Numbering.of(*lib.numbering()), _numbering_of(session))
        try:
            endpoint.devices = endpoint._learn_devices()
            endpoint.graphs = stores_for(endpoint)
        except WorkerError:
            raise
        except RemoteError as error:
            raise WorkerRefused(endpoint.name, str(error)) from error
        except WireherdError as error:
            raise WorkerLost(endpoint.name, str(error)) from error
        return endpoint

    def _learn_devices(self) -> list[DeviceFacts]:
        count = self.call(DeviceCountRequest(), DeviceCountResponse).count
        if not 0 < count <= MAX_DEVICES:
            raise WorkerRefused(self.name, f"it offers {count} devices")
        asked = self.hello is not None and bool(self.hello.features & Feature.DEVICE_INFO)
        return [self._learn(index) if asked else self._guess(index) for index in range(count)]

    def _learn(self, index: int) -> DeviceFacts:
        info = self.call(DeviceInfoRequest(index), DeviceInfoResponse)
        return DeviceFacts(
            index,
            info.name,
            info.description,
            info.type,
            bool(info.caps & DeviceCaps.PLAIN_ALLOC_SIZE),
            self._checked_alignment(info.alignment),
            info.max_size,
        )

    def _guess(self, index: int) -> DeviceFacts:
        alignment = self.call(GetAlignmentRequest(index), GetAlignmentResponse).alignment
        max_size = self.call(GetMaxSizeRequest(index), GetMaxSizeResponse).max_size
        return DeviceFacts(index, "", "", None, False, self._checked_alignment(alignment), max_size)

    def _checked_alignment(self, alignment: int) -> int:
        if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise WorkerRefused(self.name, f"it aligns tensors by {alignment} bytes")
        return alignment

    @property
    def herd(self) -> bool:
        """Whether it is one of our workers."""
        return self.hello is not None

    @property
    def protocol(self) -> str:
        """The protocol, for people: `5.0`, or `8.0+herd` for our own."""
        return self.dialect.version.short + ("+herd" if self.herd else "")

    @property
    def alive(self) -> bool:
        """Whether slots may use the wire; a failure that only the session knows becomes ours here."""
        if self.failure is None and self.session.failure is not None:
            self.fail(self.session.failure)
        return self.failure is None

    def fail(self, error: BaseException) -> None:
        """Keep the first failure. Gets that are outstanding give zeros, once their backends are synchronised."""
        if not isinstance(error, Exception) and self.interrupted is None:
            self.interrupted = error
        if self.failure is None:
            self.failed_at = time.monotonic()
            self.failure = self._as_worker_error(error)
            log.debug("%s", self.failure, exc_info=error)

    def _as_worker_error(self, error: BaseException) -> WorkerError:
        if isinstance(error, WorkerError):
            return error
        if isinstance(error, RemoteError):
            made: WorkerError = WorkerRefused(self.name, str(error))
        elif isinstance(error, TransportError) or not isinstance(error, Exception):
            made = WorkerLost(self.name, str(error) or "interrupted")
        elif isinstance(error, WireherdError):
            made = WorkerRefused(self.name, str(error))
        else:
            made = WorkerLost(self.name, f"internal error in the client: {type(error).__name__}: {error}")
        made.__cause__ = error
        return made

    def on_error(self, slot: str, error: BaseException) -> None:
        """What the wall around the callbacks does with an exception."""
        log.debug("worker %s: %s: %r", self.name, slot, error)
        self.fail(error)

    def write(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Write `size` bytes at `data` to the tensor at that address, `offset` bytes from its start.

        This runs a dozen times a token, so the whole message is remembered where it says the same again.
        """
        record = self.records.record(tensor)
        message = self._sets.get(record) if offset == 0 else None
        if message is None:
            message = SetTensorRequest(record, 0, offset)
            if offset == 0:
                if len(self._sets) >= MAX_SETS:
                    self._sets.clear()
                self._sets[record] = message
        self._set(message, memory.view(data, size, readonly=True))

    def post(self, message: Message, bulk: Any = None, *, flush: bool = False) -> None:
        """Send a command that nobody waits for; an empty answer, where the dialect has one, is taken later."""
        self._post(message, bulk, flush=flush)

    def call(self, message: Message, expected: type[_Response]) -> _Response:
        """Send a command and wait for its answer."""
        answer = self.session.call(message)
        if not isinstance(answer, expected):
            raise WorkerRefused(self.name, f"it answered {type(message).__name__} with {type(answer).__name__}")
        return answer

    def read(self, message: Message, into: memoryview) -> None:
        """Send a command and wait until its raw answer stands in `into`."""
        self.session.call(message, into=into)

    def read_later(self, record: bytes, offset: int, address: int, size: int, backend: int) -> None:
        """Ask for a tensor's bytes for a backend; they stand at `address` after `synchronize`.

        They land in memory of our own first: libllama frees its output buffer before it frees the backends, and
        nothing may be written to it after that. Only within `synchronize` for that backend is it sure to be there.
        """
        with self.lock:
            landing = self._landings.pop(size, None) or bytearray(size)
            self._awaited.append(_Awaited(landing, address, backend))
            self.session.request(GetTensorRequest(record, offset, size), into=landing)

    def synchronize(self, backend: int) -> None:
        """Wait for the gets that a backend has outstanding, for nothing else; after a failure they give zeros."""
        if not self._awaited:
            return
        with self.lock:
            mine = [each for each in self._awaited if each.backend == backend]
            if not mine:
                return
            self._awaited = [each for each in self._awaited if each.backend != backend]
            try:
                self.session.drain()
            except BaseException:
                for landing, address, _ in mine:
                    memory.fill(address, 0, len(landing))
                raise
            for landing, address, _ in mine:
                memory.view(address, len(landing))[:] = landing
                if len(landing) <= KEEP_LANDING:
                    self._landings[len(landing)] = landing
            if len(self._landings) > MAX_LANDINGS:
                self._landings.clear()

    def abandon(self, backend: int) -> None:
        """A backend goes, and the memory that its outstanding gets were for may be gone: their answers go nowhere."""
        with self.lock:
            self._awaited = [each for each in self._awaited if each.backend != backend]

    def copy(self, source: int, destination: int, *, wait: bool) -> bool:
        """Copy one tensor (address of its struct) to another, both on this worker; false if it cannot be done there.

        Without `wait` nothing is waited for where the worker reports failure by itself; a stock server's answer is the
        only sign of it.
        """
        if self.failure is not None or not (self.owns(source) and self.owns(destination)):
            return False
        message = CopyTensorRequest(self.records.record(source), self.records.record(destination))
        if not self.herd:
            return self.call(message, CopyTensorResponse).result == 1
        if not alike(source, destination):
            return False
        if wait:
            self.call(message, CopyTensorResponse)
        else:
            self.post(message)
        return True

    def owns(self, tensor: int) -> bool:
        """Whether the tensor at that address lies on this worker."""
        return self.handles.get(buffer_of(tensor)) != 0

    def adopt_buffer(self, buffer: int, handle: int) -> None:
        """A buffer was made: its address here, and the worker's handle."""
        self.handles.add(buffer, handle)
        self._forget()

    def drop_buffer(self, buffer: int, handle: int) -> None:
        """A buffer is freed: its address may come back as another one's, and graphs that touch it are gone."""
        self.handles.remove(buffer)
        self._forget()
        for graphs in self.graphs:
            graphs.freed(handle)

    def _forget(self) -> None:
        self.records.forget()
        for memo in self.memos:
            memo.clear()

    def wire_graph(self, snapshot: Snapshot) -> tuple[NDArray[np.uint64], NDArray[np.void]]:
        """Turn a snapshot into what this worker reads."""
        return to_wire(snapshot, self.dialect.tensor_dtype, self.handles, self.numbers)

    def ping(self) -> None:
        """Wait until the worker has taken everything sent so far."""
        if self.herd:
            self.call(PingRequest(0), PingResponse)
        else:
            self.call(GetDeviceMemoryRequest(0), GetDeviceMemoryResponse)

    def memory_of(self, index: int) -> tuple[int, int]:
        """(free, total) bytes of a device, asked now; zeros after a failure."""
        if not self.alive:
            return 0, 0
        answer = self.call(GetDeviceMemoryRequest(index), GetDeviceMemoryResponse)
        return answer.free, answer.total

    def refuse_allocation(self, index: int, size: int, error: BaseException | None = None) -> None:
        """Keep why an allocation failed, in figures where it was for want of memory."""
        if error is not None and not isinstance(error, OutOfMemory):
            self.refusal = WorkerRefused(self.name, str(error))
        else:
            free, _ = self.memory_of(index)
            self.refusal = WorkerRefused(
                self.name, f"out of memory: asked {size / (1 << 20):,.0f} MiB, free {free / (1 << 20):,.0f} MiB"
            )
        self.refusal.__cause__ = error
        log.debug("%s", self.refusal)

    def close(self) -> None:
        """End the session; buffers that still exist are freed without a word."""
        if self.failure is None:
            self.failure = WorkerLost(self.name, "the cluster was closed")
        with self.lock:
            self._awaited.clear()
            self._landings.clear()
        self.records.forget()
        self._sets.clear()
        self.session.close()


def _numbering_of(session: ClientSession) -> Numbering:
    hello = session.hello
    if hello is not None:
        return Numbering.of(hello.ops, hello.unary_ops, hello.glu_ops, hello.types)
    if session.version is None:
        raise WorkerLost(session.endpoint, "it did not say its version")
    return stock_numbering(session.version)
