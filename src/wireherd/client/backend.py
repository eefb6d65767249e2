"""The backend vtable: the ordered stream of work for one device (`ggml_backend_i`). This runs for every token.

Nothing here waits but `synchronize`, and that only for gets that are outstanding: the stream is ordered and copied
its data, so a second micro-batch may start on one worker while another still computes the first. A graph that the
worker holds goes as its name; any other goes whole. On our own worker the name is a hash of the content: libllama gives
a new uid to whatever it builds, also where batches of two sizes take turns and nothing is new but the uid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wireherd.bridge.gather import gather, running
from wireherd.client.graphs import content_key
from wireherd.ggml import memory, vtable
from wireherd.ggml.enums import Status
from wireherd.ggml.structs import GraphOffset
from wireherd.protocol.messages_graph import GraphComputeRequest, GraphRecomputeRequest

if TYPE_CHECKING:
    from wireherd.client.endpoint import Endpoint
    from wireherd.ggml.library import Library
    from wireherd.protocol.connection import Prepared

#: how ggml tells backends apart
_GUID: Final = b"wireherd-backend"
#: uids whose GRAPH_RECOMPUTE command is kept
_MEMO_LIMIT: Final = 4096
_OK: Final = int(Status.SUCCESS)
_FAILED: Final = int(Status.FAILED)


class RemoteBackends:
    """All backends of one device: they share its stream, so they share one table; its methods are the slots."""

    def __init__(self, lib: Library, endpoint: Endpoint, device: int, c_name: bytes) -> None:
        self._lib = lib
        self._endpoint = endpoint
        self._device = device
        self._graphs = endpoint.graphs[device]
        self._c_name = c_name
        self._structs: dict[int, Any] = {}
        self._again: dict[int, Prepared] = {}
        #: uid → name of a graph that was named by its content
        self._names: dict[int, int] = {}
        self._table = vtable.bind(lib.abi.BackendInterface, self, on_error=endpoint.on_error)

    def __len__(self) -> int:
        return len(self._structs)

    def __contains__(self, backend: int) -> bool:
        return backend in self._structs

    def make(self, device: int) -> int:
        """Make a backend for the device struct at that address; its own address."""
        struct = self._lib.abi.Backend()
        struct.guid = memory.address_of(_GUID)
        struct.iface = self._table
        struct.device = device
        pointer = memory.address_of(struct)
        self._structs[pointer] = struct
        return pointer

    # slots

    def get_name(self, _backend: int) -> int:
        """Address of the device's name."""
        return memory.address_of(self._c_name)

    def free(self, backend: int) -> None:
        """Forget the backend; what was still to be read for it goes nowhere."""
        self._endpoint.abandon(backend)
        self._structs.pop(backend, None)

    def set_tensor_async(self, _backend: int, tensor: int, data: int, offset: int, size: int) -> None:
        """Write to a tensor; the data is copied before this returns."""
        if self._endpoint.failure is None:
            self._endpoint.write(tensor, data, offset, size)

    def get_tensor_async(self, backend: int, tensor: int, data: int, offset: int, size: int) -> None:
        """Ask for part of a tensor; it is at `data` after `synchronize`. Zeros after a failure."""
        endpoint = self._endpoint
        if endpoint.failure is not None:
            memory.fill(data, 0, size)
            return
        try:
            endpoint.read_later(endpoint.records.record(tensor), offset, data, size, backend)
        except BaseException:
            memory.fill(data, 0, size)
            raise

    def cpy_tensor_async(self, _source: int, _destination: int, source: int, destination: int) -> bool:
        """Copy between tensors of this worker; false if one lies elsewhere, and ggml reads and writes instead."""
        return self._endpoint.copy(source, destination, wait=False)

    def synchronize(self, backend: int) -> None:
        """Wait for this backend's outstanding gets."""
        self._endpoint.synchronize(backend)

    def graph_compute(self, _backend: int, graph: int) -> int:
        """Run a graph; success means that it is on its way."""
        endpoint = self._endpoint
        if endpoint.failure is not None:
            return _FAILED
        endpoint.refusal = None  # whatever was refused, libllama found a way without it
        uid = memory.read_u64(graph + GraphOffset.UID)
        with endpoint.lock:  # what the worker holds follows from the order of what is sent
            name = self._names.get(uid, 0) if self._graphs.by_content else uid
            if self._graphs.again(name):
                self._rerun(name)
            else:
                self._send(graph, uid)
        return _OK

    def _rerun(self, uid: int) -> None:
        session = self._endpoint.session
        command = self._again.get(uid)
        if command is None:
            if len(self._again) >= _MEMO_LIMIT:
                self._again.clear()
            command = self._again[uid] = session.prepare(GraphRecomputeRequest(self._device, uid))
        session.repeat(command)
        self._graphs.counts.rerun += 1

    def _send(self, graph: int, uid: int) -> None:
        snapshot = gather(graph)
        if not self._endpoint.dialect.marks_nodes:
            snapshot = running(snapshot)
        if not snapshot.n_nodes:
            return
        endpoint, graphs = self._endpoint, self._graphs
        if graphs.by_content:
            name = content_key(snapshot, endpoint.handles)
            if uid:
                if len(self._names) >= _MEMO_LIMIT:
                    self._names.clear()
                self._names[uid] = name
            uid = name
            if graphs.again(uid):
                self._rerun(uid)
                return
        node_ids, tensors = endpoint.wire_graph(snapshot)
        endpoint.post(GraphComputeRequest(self._device, uid, node_ids, tensors), flush=True)
        graphs.sent(uid, node_ids, tensors)  # after it has left: the worker need not wait for our bookkeeping
        graphs.counts.sent += 1
