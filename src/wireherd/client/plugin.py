"""A cluster: workers whose devices libllama uses like its own.

    lib = ggml.load()
    with Cluster(lib, ["host-a:50052", "host-b:50052"]) as cluster:
        ... llama_model_params.devices = cluster.device_pointers ...
        cluster.check()

Nothing is registered with ggml. The structs that C may still point at live as long as the process: a model that is
freed after its cluster, or never, must not find them gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

from wireherd.client.device import RemoteDevice
from wireherd.client.endpoint import Endpoint
from wireherd.client.reg import Registry
from wireherd.errors import PeerLost, UsageError, WorkerError
from wireherd.obs.log import get_logger
from wireherd.session.client import ClientOptions, ClientSession
from wireherd.session.group import SessionGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from wireherd.ggml.library import Library

log = get_logger(__name__)

#: clusters whose structs C may hold; a closed one keeps nothing but those
_KEPT: Final[list[tuple[Any, ...]]] = []


class WorkerStats(TypedDict):
    """What went over the wire to one worker; `protocol` as in `5.0`, or `8.0+herd` for our own.

    `graphs_sent` went whole, `graphs_rerun` as their name; `graph_cache_hits` are those of them that a cache held, not
    just a slot for the last graph (3.5 to 7.0). `graph_cache_resets`: how often a full cache was emptied.
    """

    endpoint: str
    protocol: str
    bytes_sent: int
    bytes_received: int
    round_trips: int
    graphs_sent: int
    graphs_rerun: int
    graph_cache_hits: int
    graph_cache_resets: int


class Cluster:
    """Connected workers and their devices.

    Attributes:
        endpoints: one for each worker, in the order given.
        devices: all devices of all workers, in that order.
    """

    def __init__(self, lib: Library, endpoints: Sequence[str], options: ClientOptions | None = None) -> None:
        """Connect to every worker and learn its devices.

        Raises:
            UsageError: no worker, or one named twice, or options that make no sense.
            WorkerLost, WorkerRefused, VersionMismatch: one sentence that names the endpoint.
        """
        options = options or ClientOptions()
        options.check()
        if not endpoints:
            raise UsageError("a cluster needs at least one worker")
        for position, name in enumerate(endpoints):
            if name in endpoints[:position]:
                raise UsageError(f"worker {name} is named twice")
        self._group = SessionGroup()
        self._closed = False
        self._also: list[Callable[[], None]] = []
        self._last_failure: WorkerError | None = None
        self.endpoints: list[Endpoint] = []
        self.devices: list[RemoteDevice] = []
        self._registry = Registry(lib, _log_error)
        try:
            for name in endpoints:
                session = ClientSession.connect(name, options, self._group)
                try:
                    self.endpoints.append(Endpoint.adopt(lib, session))
                except BaseException:
                    session.close()
                    raise
            for endpoint in self.endpoints:
                for facts in endpoint.devices:
                    number = len(self.devices)
                    self.devices.append(RemoteDevice(lib, endpoint, facts, number, self._registry.pointer))
        except BaseException:
            self.close()
            raise
        self._registry.devices = tuple(self.devices)
        _KEPT.append((self._registry, *self.devices))

    @property
    def device_pointers(self) -> list[int]:
        """Addresses of the device structs, for `llama_model_params.devices`."""
        return [device.pointer for device in self.devices]

    @property
    def failure(self) -> WorkerError | None:
        """The failure of a worker, None while all are well; noticed without a wait, also between calls."""
        if self._closed:
            return self._last_failure
        dead = [endpoint for endpoint in self.endpoints if not endpoint.alive]
        if not dead:
            return None
        # a worker that complains of another one is a witness, not the one at fault
        guilty = [endpoint for endpoint in dead if not isinstance(_cause(endpoint), PeerLost)]
        first = min(guilty or dead, key=lambda endpoint: endpoint.failed_at)
        lost = _cause(first)
        if isinstance(lost, PeerLost):
            return self._registry.collectives.culprit(first, lost) or first.failure
        return first.failure

    @property
    def refusal(self) -> WorkerError | None:
        """The last allocation that a worker refused and libllama did not get over."""
        return next((endpoint.refusal for endpoint in self.endpoints if endpoint.refusal is not None), None)

    @property
    def interrupted(self) -> BaseException | None:
        """Ctrl-C that hit inside a callback."""
        return next((each.interrupted for each in self.endpoints if each.interrupted is not None), None)

    def check(self) -> None:
        """Raise what went wrong since the start, if anything did.

        To be called whenever libllama reports a failure, and after `llama_synchronize` before logits are used.

        Raises:
            KeyboardInterrupt: it came within a callback.
            WorkerLost, WorkerRefused: the first failure, or the last refused allocation.
        """
        interrupted = self.interrupted
        if interrupted is not None:
            raise interrupted
        failure = self.failure or self.refusal
        if failure is not None:
            raise type(failure)(failure.endpoint, failure.reason) from failure.__cause__

    def ping(self) -> None:
        """Wait until every worker has taken everything that was sent to it.

        Raises:
            WorkerLost, WorkerRefused: one of them failed.
        """
        for endpoint in self.endpoints:
            if not endpoint.alive:
                self.check()
            try:
                endpoint.ping()
            except WorkerError as error:
                endpoint.fail(error)
                self.check()  # who is at fault may be another one
                raise

    def stats(self) -> list[WorkerStats]:
        """What each worker was sent and answered so far."""
        return [
            WorkerStats(
                endpoint=endpoint.name,
                protocol=endpoint.protocol,
                bytes_sent=endpoint.session.stats.bytes_sent,
                bytes_received=endpoint.session.stats.bytes_received,
                round_trips=endpoint.session.stats.round_trips,
                graphs_sent=sum(store.counts.sent for store in endpoint.graphs),
                graphs_rerun=sum(store.counts.rerun for store in endpoint.graphs),
                graph_cache_hits=sum(store.counts.rerun for store in endpoint.graphs if store.many),
                graph_cache_resets=sum(store.counts.resets for store in endpoint.graphs),
            )
            for endpoint in self.endpoints
        ]

    def cancel(self) -> None:
        """Stop what the workers do and fail the sessions; wakes a call that waits. From any thread."""
        for endpoint in self.endpoints:
            endpoint.session.cancel()

    def also_close(self, close: Callable[[], None]) -> None:
        """Have something end with the cluster, after its sessions."""
        self._also.append(close)

    def close(self) -> None:
        """End all sessions. Models and contexts may be freed before or after."""
        if not self._closed:
            self._last_failure = self.failure
            self._closed = True
        for endpoint in self.endpoints:
            endpoint.close()
        while self._also:
            self._also.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(endpoint.name for endpoint in self.endpoints)
        return f"<Cluster of {names}: {len(self.devices)} devices>"


def _cause(endpoint: Endpoint) -> BaseException | None:
    return endpoint.failure.__cause__ if endpoint.failure is not None else None


def _log_error(slot: str, error: BaseException) -> None:
    log.error("%s of the registry failed: %r", slot, error)
