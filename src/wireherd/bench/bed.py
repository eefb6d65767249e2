"""Where a bench finds its workers: those that were named, or fresh ones of its own, and the link in front of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from wireherd.bench.link import Link
from wireherd.errors import UsageError
from wireherd.protocol.version import NEWEST, Version
from wireherd.transport import Address
from wireherd.worker import WorkerSettings, spawn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from wireherd.bench.link import LinkShape
    from wireherd.worker import WorkerProcess

#: a worker beside the client, which no link can stand in front of
_LOCAL: Final = "local"


@dataclass(frozen=True, slots=True)
class Site:
    """Where one side of a measurement finds its workers.

    Attributes:
        endpoints: workers that run already; may be empty.
        fresh: how many workers the bench starts itself, instead of `endpoints`.
        protocol: the stock version that fresh ones answer with.
        plain: whether they hide our extension.
    """

    endpoints: Sequence[str] = ()
    fresh: int = 0
    protocol: Version = NEWEST
    plain: bool = False


class Bed:
    """Starts what sites need, each once, and ends it. Use it as a context manager.

    Attributes:
        link: the link in front of all workers; None leads straight to them.
    """

    def __init__(self, worker: WorkerSettings, link: LinkShape | None = None) -> None:
        """Set what fresh workers are like, and the link in front of all workers.

        Args:
            worker: settings of fresh workers: threads, library, devices.
            link: what stands in front of all workers, if anything.
        """
        self._worker = worker
        self.link = link
        self._stack = contextlib.ExitStack()
        self._stood: dict[Site, tuple[str, ...]] = {}
        self._workers: list[WorkerProcess] = []

    def stand(self, site: Site) -> tuple[str, ...]:
        """Where the client reaches the workers of a site; the same ones for the same site.

        Raises:
            UsageError: a link cannot stand in front of such an address.
            WorkerStartError, LinkError: a process did not start.
        """
        if site not in self._stood:
            self._stood[site] = self._fresh(site) if site.fresh else self._linked(tuple(site.endpoints))
        return self._stood[site]

    def _fresh(self, site: Site) -> tuple[str, ...]:
        link = self._link(site.fresh)
        endpoints = []
        for number in range(site.fresh):
            settings = replace(self._worker, port=0, protocol=site.protocol, plain=site.plain)
            if link is not None:
                settings = replace(settings, advertise=(link.peer_doors[number],))
            worker = self._stack.enter_context(spawn(settings))
            self._workers.append(worker)
            endpoints.append(worker.endpoint)
            if link is not None:
                link.aim(number, worker.endpoint)
        return tuple(endpoints) if link is None else tuple(link.client_doors)

    def _linked(self, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        far = [endpoint for endpoint in endpoints if endpoint != _LOCAL]
        if self.link is None or not endpoints:
            return endpoints
        if len(far) < len(endpoints):
            raise UsageError("--link cannot stand in front of a worker that is started for the run: leave out `local`")
        for endpoint in far:
            address = Address.parse(endpoint)
            if address.scheme not in {"tcp", "unix"} or address.via:
                raise UsageError(f"--link cannot stand in front of {endpoint}: it takes host:port and unix:PATH")
        link = self._link(len(far))
        if link is None:
            return endpoints
        for number, endpoint in enumerate(far):
            link.aim(number, endpoint)
        return tuple(link.client_doors)

    def _link(self, count: int) -> Link | None:
        return None if self.link is None else self._stack.enter_context(Link(self.link, count))

    def kill(self) -> None:
        """End the workers at once; from any thread."""
        for worker in self._workers:
            worker.kill()

    def close(self) -> None:
        """End workers and links."""
        self._stack.close()
        self._stood.clear()
        self._workers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
