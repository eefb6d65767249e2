"""Groups of one session: how the members find each other, and one member's side of every reduction.

Theory of operation. A group is opened first (it expects links from the ranks above from then on) and joined later, when
all members have opened theirs: then each dials those below it and waits for the others. Links are taken by other
threads than the one that joins and reduces; they only put the finished link down here. What fails closes the group:
a group with a link missing is none.

Who dials whom: the higher rank the lower one; except where the lower one can only be reached from its own machine (it
listens on loopback or a unix socket) and the higher one from anywhere. Both ends see that from the addresses.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from typing import TYPE_CHECKING, Final

from wireherd.collective.allreduce import SLICE_S, Reduction, Scratch
from wireherd.collective.links import Link, dial
from wireherd.collective.schedule import MAX_WORLD
from wireherd.errors import (
    BadRequest,
    LimitExceeded,
    PeerLost,
    ProtocolError,
    RemoteError,
    RemoteProtocolError,
    TransportError,
    UsageError,
    WireherdError,
    WorkerError,
)
from wireherd.obs.log import get_logger
from wireherd.transport import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = get_logger(__name__)

#: all links of a group must stand within this time
JOIN_S: Final = 5.0
#: one address that does not answer must not take all of it
_ADDRESS_S: Final = 2.0
#: a member may be silent this long, or `_PATIENCE` times what this one computed since the last reduction: processor
#: time, as a client that says nothing for an hour is no reason to wait for hours
SILENCE_S: Final = 10.0
_PATIENCE: Final = 10.0
#: addresses of one member that are tried
_MAX_ADDRESSES: Final = 16
#: groups of one session
MAX_GROUPS: Final = 16
#: reductions kept bound; a token has some sixty a model
_MAX_BOUND: Final = 4096
_MASK: Final = (1 << 32) - 1


class Group:
    """One member of one group."""

    def __init__(self, name: bytes, rank: int, world: int) -> None:
        """Expect links.

        Raises:
            BadRequest: there is no such rank.
        """
        if not 2 <= world <= MAX_WORLD or not 0 <= rank < world:
            raise BadRequest(f"a group of {world} has no rank {rank}; from 2 to {MAX_WORLD} ranks can be")
        self.name = name
        self.rank = rank
        self.world = world
        self.joined = False
        self._links: dict[int, Link] = {}
        self._changed = threading.Condition()
        self._failure: RemoteError | None = None
        self._bound: dict[tuple[bytes, int], Reduction] = {}
        self._scratch = Scratch()
        self._sequence = 0
        self._began = 0.0
        #: addresses by rank, for sentences
        self._names: tuple[str, ...] = ("?",) * world

    def expect(self, rank: int) -> int:
        """Make sure that a link from `rank` may come; gives the own rank.

        Raises:
            RemoteProtocolError: it may not.
        """
        with self._changed:
            if self._failure is not None or self.joined:
                raise RemoteProtocolError("the group takes no links any more")
            if not 0 <= rank < self.world or rank == self.rank or rank in self._links:
                raise RemoteProtocolError(f"the group expects no link from rank {rank}")
        return self.rank

    def put(self, link: Link) -> None:
        """Take a link in, from any thread; one that comes too late is closed."""
        link.stream.settimeout(SLICE_S)
        with self._changed:
            if self._failure is None and not self.joined and link.rank not in self._links:
                self._links[link.rank] = link
                self._changed.notify_all()
                return
        link.close()

    def join(
        self, sessions: Sequence[str], addresses: Sequence[str], permitted: Callable[[Address], str | None]
    ) -> str:
        """Link up with all members.

        Args:
            sessions: name of each member's session, hexadecimal, by rank.
            addresses: addresses of each member's worker, separated by spaces, by rank.
            permitted: says why an address must not be dialled, or None.

        Returns:
            Why it failed, one sentence; empty if all links stand. After a failure the group is closed.

        Raises:
            BadRequest: the lists make no sense.
        """
        if len(sessions) != self.world or len(addresses) != self.world:
            raise BadRequest(f"a group of {self.world} needs as many sessions and addresses")
        if self.joined or self._failure is not None:
            raise BadRequest("the group was joined before")
        names = [_session(text) for text in sessions]
        places = [_addresses(text) for text in addresses]
        self._names = tuple(str(place[0]) if place else "?" for place in places)
        end = time.monotonic() + JOIN_S
        try:
            for peer in range(self.world):
                if peer != self.rank and _dials(self.rank, peer, places):
                    self.put(self._dial(peer, names[peer], places[peer], permitted, end))
            self._stand(end - time.monotonic())
        except WireherdError as error:
            self.fail(error if isinstance(error, RemoteError) else PeerLost(str(error)))
            return str(error)
        return ""

    def _dial(
        self,
        peer: int,
        session: bytes,
        addresses: Sequence[Address],
        permitted: Callable[[Address], str | None],
        end: float,
    ) -> Link:
        reasons: list[str] = []
        for address in addresses:
            left = end - time.monotonic()
            if left <= 0:
                break
            why = permitted(address)
            if why is None:
                try:
                    return dial(address, session, self.name, self.rank, peer, min(left, _ADDRESS_S))
                except (WorkerError, TransportError, ProtocolError, RemoteError) as error:
                    why = error.reason if isinstance(error, WorkerError) else str(error)
            reasons.append(f"{address} {why}")
            log.info("no link to rank %d: %s", peer, reasons[-1])
        raise PeerLost.of(peer, self._names[peer], f"cannot be linked up with: {'; '.join(reasons) or 'no address'}")

    def _stand(self, timeout_s: float) -> None:
        """Wait until all links stand."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while len(self._links) < self.world - 1 and self._failure is None:
                left = end - time.monotonic()
                if left <= 0:
                    late = next(peer for peer in range(self.world) if peer != self.rank and peer not in self._links)
                    raise PeerLost.of(late, self._names[late], f"did not link up within {JOIN_S:g} s")
                self._changed.wait(left)
            if self._failure is not None:
                raise self._failure
            self.joined = True
        for link in self._links.values():
            link.name = self._names[link.rank]
        self._began = time.process_time()

    def reduction(self, key: bytes, mask: int) -> Reduction | None:
        """What `bind` remembered for a tensor and a mask."""
        return self._bound.get((key, mask))

    def bind(self, key: bytes, mask: int, part: memoryview, *, keep: bool = True) -> Reduction:
        """Prepare the reduction of `part`, writable bytes of F32, and remember it as `key`.

        Raises:
            BadRequest: there are no links, or the mask names ranks that do not exist.
        """
        if not self.joined:
            raise BadRequest("the group has not been joined")
        if mask >> self.world:
            raise BadRequest(f"a mask of {mask:#x} in a group of {self.world}")
        bound = Reduction(part, mask, self.rank, self.world, self._links, self._scratch)
        if keep:
            if len(self._bound) >= _MAX_BOUND:
                self._bound.clear()
            self._bound[key, mask] = bound
        return bound

    def run(self, bound: Reduction) -> None:
        """Carry out the next reduction of the group.

        Raises:
            PeerLost: a member failed; the group is closed, and the sentence names the member.
        """
        if self._failure is not None:
            raise self._failure
        sequence = self._sequence
        self._sequence = (sequence + 1) & _MASK
        limit_s = max(SILENCE_S, (time.process_time() - self._began) * _PATIENCE)
        try:
            bound.run(sequence, limit_s)
        except PeerLost as error:
            blamed = self._failure or self._blame(error)
            self.fail(blamed)
            raise blamed from error
        self._began = time.process_time()

    def _blame(self, seen: PeerLost) -> PeerLost:
        """Who is at fault: a member that says so itself is believed before one that is merely gone."""
        for link in self._links.values():
            verdict = link.verdict()
            if verdict is not None and verdict.rank not in {None, self.rank, link.rank}:
                return verdict
        return seen

    def forget(self) -> None:
        """Drop what is bound to tensors; to be called before their memory goes."""
        self._bound.clear()

    def fail(self, error: RemoteError) -> None:
        """End the group, and tell the other members why."""
        reason = str(error)
        if not isinstance(error, PeerLost) or error.rank is None:
            reason = f"rank {self.rank} ({self._names[self.rank]}) failed: {reason}"
        with self._changed:
            if self._failure is not None:
                return
            self._failure = error
            self._changed.notify_all()
        self._bound.clear()
        for link in self._links.values():
            link.complain(error.status, reason)  # closing it now could take the words back

    def stop(self) -> None:
        """Wake whoever waits for a member, for good; from any thread."""
        with self._changed:
            if self._failure is None:
                self._failure = PeerLost("the group was stopped")
            self._changed.notify_all()
            links = list(self._links.values())
        for link in links:
            link.shutdown()

    def close(self) -> None:
        """Leave the group."""
        with self._changed:
            if self._failure is None:
                self._failure = PeerLost("the group was closed")
            self._changed.notify_all()
        self._end()

    def _end(self) -> None:
        self._bound.clear()
        for link in self._links.values():
            link.shutdown()
            link.close()


class Groups:
    """The groups of one session, by the client's number."""

    def __init__(self) -> None:
        self._by_slot: dict[int, Group] = {}

    def open(self, slot: int, name: bytes, rank: int, world: int) -> Group:
        """Make a group.

        Raises:
            BadRequest: the number or the name is taken, or there is no such rank.
            LimitExceeded: there are too many.
        """
        if slot in self._by_slot:
            raise BadRequest(f"group {slot} exists already")
        if any(group.name == name for group in self._by_slot.values()):
            raise BadRequest("a session takes one rank of a group: its commands run one after the other")
        if len(self._by_slot) >= MAX_GROUPS:
            raise LimitExceeded(f"a session may have {MAX_GROUPS} groups")
        group = Group(name, rank, world)
        self._by_slot[slot] = group
        return group

    def get(self, slot: int) -> Group:
        """The group of that number.

        Raises:
            BadRequest: there is none.
        """
        group = self._by_slot.get(slot)
        if group is None:
            raise BadRequest(f"there is no group {slot}")
        return group

    def named(self, name: bytes) -> Group:
        """The group of that name; from any thread.

        Raises:
            RemoteProtocolError: there is none.
        """
        for group in list(self._by_slot.values()):
            if group.name == name:
                return group
        raise RemoteProtocolError("a link for a group that does not exist")

    def close(self, slot: int) -> None:
        """Leave a group; a number that is none is none afterwards too."""
        group = self._by_slot.pop(slot, None)
        if group is not None:
            group.close()

    def forget(self) -> None:
        """Drop what is bound to tensors of any group; to be called before memory goes."""
        for group in self._by_slot.values():
            group.forget()

    def fail(self, error: RemoteError) -> None:
        """The session cannot go on: tell all members of all groups."""
        for group in self._by_slot.values():
            group.fail(error)

    def stop(self) -> None:
        """Wake whoever waits for a member, for good; from any thread."""
        for group in list(self._by_slot.values()):
            group.stop()

    def close_all(self) -> None:
        """Leave all groups."""
        for slot in list(self._by_slot):
            self.close(slot)


def _session(text: str) -> bytes:
    try:
        name = bytes.fromhex(text)
    except ValueError:
        name = b""
    if len(name) != 16:
        raise BadRequest(f"{text[:64]!r} is no name of a session")
    return name


def _addresses(text: str) -> list[Address]:
    """The addresses in a text; names are left out: what they stand for may change after it was looked at.

    So is whatever else a client may have for an address: a link needs one that works, not all.
    """
    found = []
    for word in text.split()[:_MAX_ADDRESSES]:
        try:
            address = Address.parse(word)
        except UsageError:
            continue
        if address.scheme == "unix" or _ip(address) is not None:
            found.append(address)
    return found


def _ip(address: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address.host.partition("%")[0])
    except ValueError:
        return None


def _dials(rank: int, peer: int, places: Sequence[Sequence[Address]]) -> bool:
    """Whether `rank` dials `peer`, rather than the other way round."""
    lower, higher = sorted((rank, peer))
    turned = not _reachable(places[lower]) and _reachable(places[higher])
    return (rank == lower) if turned else (rank == higher)


def _reachable(addresses: Sequence[Address]) -> bool:
    """Whether another machine could get there."""
    return any(ip is not None and not ip.is_loopback for ip in map(_ip, addresses))
