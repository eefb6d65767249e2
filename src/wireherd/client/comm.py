"""All-reduce for `-sm tensor`: workers add up a tensor among themselves, and this client only says when.

libllama asks for a group when it makes its backends, and then, some sixty times a token, for the sum of one tensor of
each. A group is formed in two steps, each posted to all members before any answer is waited for; a sum is one small
command a member, and nothing is waited for. Whenever something is missing (members that cannot take part, workers that
cannot reach each other, a tensor of another kind) the answer is no, and libllama adds up through this client instead:
slower, not wrong.

Which group it becomes: our own workers, any number of them; or exactly two servers of stock 8.0. A mixture has none.
"""

from __future__ import annotations

import secrets
import struct
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from wireherd.client import comm_stock
from wireherd.errors import PeerLost, WireherdError, WorkerError, WorkerLost
from wireherd.ggml import memory
from wireherd.ggml.structs import TENSOR_SIZE, TensorOffset
from wireherd.obs.log import get_logger
from wireherd.protocol.messages_herd import Feature
from wireherd.protocol.messages_peer import (
    GROUP_SIZE,
    GroupCloseRequest,
    GroupJoinRequest,
    GroupJoinResponse,
    GroupOpenRequest,
    GroupOpenResponse,
    GroupReduceRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wireherd.client.device import RemoteDevice
    from wireherd.client.endpoint import Endpoint
    from wireherd.protocol.connection import Prepared
    from wireherd.protocol.fields import Message

log = get_logger(__name__)

#: what a mask has bits for
MAX_RANKS: Final = 64
#: sums remembered before the memory is emptied: those of a graph's sixty places, for a few batch shapes
MEMO_LIMIT: Final = 4096
_FLAG_COMPUTE: Final = 16
_F32: Final = 0
_SIZES: Final = struct.Struct("<4q4Q")


class Reducer(Protocol):
    """How one kind of group adds up."""

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """The members, in libllama's order."""

    def messages(self, tensors: Sequence[int], computed: Sequence[bool]) -> Sequence[Message] | None:
        """The command for each member, in the order of `endpoints`; None: not this way."""

    def close(self) -> None:
        """Leave the group."""


class Collectives:
    """The groups of one cluster; `comm_init`, `comm_free` and `comm_allreduce` are what libllama calls."""

    def __init__(self, devices: Callable[[], Sequence[RemoteDevice]]) -> None:
        self._devices = devices
        self._groups: dict[int, _Group] = {}
        self._lock = threading.RLock()  # all members must see all sums in one order, whoever asks for them
        self._last_slot = 0

    def comm_init(self, backends: int, count: int) -> int:
        """Form a group of the `count` backends whose addresses stand at `backends`; 0 if there is none."""
        members = [self._device_of(memory.read_u64(backends + 8 * index)) for index in range(count)]
        found = [member for member in members if member is not None]
        if not 2 <= len(found) <= MAX_RANKS or len(found) < count:
            return 0
        with self._lock:
            self._last_slot += 1
            reducer = _form(found, self._last_slot)
            if reducer is None:
                return 0
            self._groups[self._last_slot] = _Group(reducer)
            return self._last_slot

    def comm_free(self, group: int) -> None:
        """Let a group go."""
        with self._lock:
            gone = self._groups.pop(group, None)
        if gone is not None:
            gone.close()

    def comm_allreduce(self, group: int, tensors: int) -> bool:
        """Add up a group's tensors, whose addresses stand at `tensors`, into each; false: libllama shall do it."""
        known = self._groups.get(group)
        if known is None:
            return False
        with self._lock:
            return known.reduce(tensors)

    def culprit(self, accuser: Endpoint, lost: PeerLost) -> WorkerError | None:
        """The failure of the member that another one complains of, None if nobody can tell which that is."""
        rank = lost.rank
        if rank is None:
            return None
        for group in reversed(self._groups.values()):
            reducer = group.reducer
            if isinstance(reducer, HerdReducer) and accuser in reducer.endpoints and rank < len(reducer.endpoints):
                return WorkerLost(reducer.ranked(rank).name, f"lost, as worker {accuser.name} says: {lost}")
        return None

    def _device_of(self, backend: int) -> RemoteDevice | None:
        return next((device for device in self._devices() if backend in device.backends), None)


class _Group:
    """A group with what it remembers. A sum is known by the raw structs of its tensors, so that nothing is stale."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self._count = len(reducer.endpoints)
        self._pointers = struct.Struct(f"<{self._count}Q")
        self._memo: dict[bytes, list[tuple[Endpoint, Prepared]] | None] = {}
        for endpoint in reducer.endpoints:
            endpoint.memos.append(self._memo)

    def close(self) -> None:
        for endpoint in self.reducer.endpoints:
            endpoint.memos = [memo for memo in endpoint.memos if memo is not self._memo]
        self.reducer.close()

    def reduce(self, tensors: int) -> bool:
        pointers = self._pointers.unpack(memory.raw(tensors, self._pointers.size))
        key = b"".join([memory.raw(pointer, TENSOR_SIZE) for pointer in pointers])
        try:
            commands = self._memo[key]
        except KeyError:
            commands = self._learn(key, pointers)
        if commands is None:
            return False
        for endpoint, prepared in commands:
            if endpoint.failure is None:
                try:
                    endpoint.session.repeat(prepared)
                except WireherdError as error:
                    endpoint.fail(error)  # the others will say the same of it
        return True

    def _learn(self, key: bytes, pointers: Sequence[int]) -> list[tuple[Endpoint, Prepared]] | None:
        endpoints = self.reducer.endpoints
        if any(not endpoint.alive for endpoint in endpoints):
            return None
        commands = None
        if _reducible(endpoints, pointers):
            computed = [bool(memory.read_i32(each + TensorOffset.FLAGS) & _FLAG_COMPUTE) for each in pointers]
            messages = self.reducer.messages(pointers, computed)
            if messages is not None:
                commands = [
                    (endpoint, endpoint.session.prepare(message))
                    for endpoint, message in zip(endpoints, messages, strict=True)
                ]
        if len(self._memo) >= MEMO_LIMIT:
            self._memo.clear()
        self._memo[key] = commands
        return commands


class HerdReducer:
    """A group of our own workers: any number, the sum in the order of ranks, in F32, the same bits everywhere.

    Ranks are this group's own and need not be libllama's order: a rank dials those below it, so members that the
    others cannot dial come last.
    """

    def __init__(self, members: Sequence[RemoteDevice], slot: int) -> None:
        """Number the members; `form` links them up."""
        self.endpoints: Sequence[Endpoint] = [member.endpoint for member in members]
        self._slot = slot
        self._devices = [member.facts.index for member in members]
        order = sorted(range(len(members)), key=lambda index: _is_here(self.endpoints[index]))
        #: rank of each member
        self._ranks = [order.index(index) for index in range(len(members))]
        self._order = order

    def ranked(self, rank: int) -> Endpoint:
        """The member of that rank."""
        return self.endpoints[self._order[rank]]

    def form(self) -> str:
        """Link the members up; gives the reason if they cannot be, empty if all is well.

        Raises:
            WorkerError: one of them died.
        """
        name = secrets.token_bytes(GROUP_SIZE)
        world = len(self.endpoints)
        opened: list[GroupOpenResponse] = self._ask(
            [
                GroupOpenRequest(self._slot, device, name, rank, world)
                for device, rank in zip(self._devices, self._ranks, strict=True)
            ]
        )
        joining = GroupJoinRequest(
            self._slot,
            tuple(_session_name(self.endpoints[index]) for index in self._order),
            tuple(" ".join(self._addresses(index, opened[index])) for index in self._order),
        )
        joined: list[GroupJoinResponse] = self._ask([joining] * world)
        reasons = [
            f"worker {endpoint.name}: {answer.reason}"
            for endpoint, answer in zip(self.endpoints, joined, strict=True)
            if not answer.ok
        ]
        return "; ".join(dict.fromkeys(reasons))

    def _addresses(self, index: int, opened: GroupOpenResponse) -> list[str]:
        """Where peers try to reach a member: as it says itself, then as the user spelled it."""
        session = self.endpoints[index].session
        spelled = str(replace(session.address, via=""))
        told = [address for address in opened.addresses if address and not any(map(str.isspace, address))]
        if not _is_here(self.endpoints[index]) and spelled not in told:
            told.append(spelled)
        return told

    def _ask(self, messages: Sequence[Message]) -> list[Any]:
        """Send each member its command before any answer is waited for; every answer is waited for."""
        begun = [
            (endpoint, endpoint.session.begin(message))
            for endpoint, message in zip(self.endpoints, messages, strict=True)
        ]
        answers = []
        refusal: WireherdError | None = None
        for endpoint, answer in begun:
            try:
                answers.append(endpoint.session.finish(answer))
            except WorkerError as error:
                endpoint.fail(error)
                refusal = refusal or error
            except WireherdError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return answers

    def messages(self, tensors: Sequence[int], computed: Sequence[bool]) -> Sequence[Message] | None:
        """One GROUP_REDUCE a member; the mask says which ranks have a part."""
        mask = sum(1 << rank for rank, live in zip(self._ranks, computed, strict=True) if live)
        return [
            GroupReduceRequest(self._slot, mask, endpoint.records.record(tensor))
            for endpoint, tensor in zip(self.endpoints, tensors, strict=True)
        ]

    def close(self) -> None:
        """Tell every member that lives to leave."""
        for endpoint in self.endpoints:
            if endpoint.alive:
                try:
                    endpoint.post(GroupCloseRequest(self._slot), flush=True)
                except WireherdError as error:
                    endpoint.fail(error)


def _is_here(endpoint: Endpoint) -> bool:
    """Whether other machines cannot dial it: a unix socket, or this machine's own address."""
    address = endpoint.session.address
    return not address.host or address.host == "localhost" or address.host.startswith("127.") or address.host == "::1"


def _session_name(endpoint: Endpoint) -> str:
    return endpoint.hello.session.hex() if endpoint.hello is not None else ""


def _form(members: Sequence[RemoteDevice], slot: int) -> Reducer | None:
    """Form the group that these members can have; None if they can have none, said in the log."""
    endpoints = [member.endpoint for member in members]
    names = " and ".join(dict.fromkeys(endpoint.name for endpoint in endpoints))
    if len({id(endpoint) for endpoint in endpoints}) < len(endpoints):
        log.info("several devices of one worker (%s): tensors are added up through this client", names)
        return None
    if any(not endpoint.alive for endpoint in endpoints):
        return None
    try:
        if all(endpoint.hello is not None and endpoint.hello.features & Feature.GROUP for endpoint in endpoints):
            herd = HerdReducer(members, slot)
            try:
                reason = herd.form()
            except BaseException:
                herd.close()  # members that took a rank before another one refused would keep it
                raise
            if not reason:
                log.info("workers %s add up tensors among themselves", names)
                return herd
            herd.close()
            log.warning("workers cannot reach each other, so tensors are added up through this client: %s", reason)
            return None
        if comm_stock.possible(endpoints):
            stock, reason = comm_stock.form(members)
            if stock is None:
                log.warning("tensors are added up through this client: %s", reason)
            return stock
    except WorkerError as error:
        log.info("no group of workers: %s", error)
        return None
    except WireherdError as error:
        log.warning("tensors are added up through this client: %s", error)
        return None
    log.warning(
        "tensors are added up through this client: only wireherd workers, or two servers of stock 8.0, can do it "
        "among themselves, not %s",
        ", ".join(f"{endpoint.name} ({endpoint.protocol})" for endpoint in endpoints),
    )
    return None


def _reducible(endpoints: Sequence[Endpoint], tensors: Sequence[int]) -> bool:
    """Whether all are F32, contiguous, of one shape, not empty, and each on its own worker."""
    first = memory.view(tensors[0] + TensorOffset.NE, _SIZES.size, readonly=True)
    ne0, ne1, ne2, ne3, *strides = _SIZES.unpack(first)
    if min(ne0, ne1, ne2, ne3) < 1 or strides != [4, 4 * ne0, 4 * ne0 * ne1, 4 * ne0 * ne1 * ne2]:
        return False
    return all(
        endpoint.owns(tensor)
        and memory.read_i32(tensor + TensorOffset.TYPE) == _F32
        and memory.view(tensor + TensorOffset.NE, _SIZES.size, readonly=True) == first
        for endpoint, tensor in zip(endpoints, tensors, strict=True)
    )
