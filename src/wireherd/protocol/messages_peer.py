"""Messages of groups: ranks on several workers that add a tensor among themselves, without the client in between.

A group is formed in two steps, so that no worker dials before every other one expects it. GROUP_OPEN tells a worker
its rank and asks at which addresses its peers reach it; GROUP_JOIN tells it the members, and is answered when its links
to all of them stand. A link is a connection to the port of the member's worker: HERD_HELLO with purpose "peer" and the
name of the member's session, then GROUP_LINK. From there on it carries GROUP_PART frames only, both ways.
"""

from __future__ import annotations

from wireherd.protocol.fields import TENSOR, TEXT, TEXTS, U8, U16, U32, U64, Message, fixed_bytes, message, wire

GROUP_SIZE = 16


@message
class GroupOpenRequest(Message):
    """Take a rank in a group."""

    slot: int = wire(U32, "the client's number for the group within this session")
    device: int = wire(U32, "index of the device that takes part")
    group: bytes = wire(fixed_bytes(GROUP_SIZE), "name of the group, random")
    rank: int = wire(U16, "rank of this device")
    world: int = wire(U16, "number of ranks")


@message
class GroupOpenResponse(Message):
    """Where peers reach this worker."""

    addresses: tuple[str, ...] = wire(TEXTS, "host:port or unix:path, the most direct first")


@message
class GroupJoinRequest(Message):
    """Link up with the other members; arrays are by rank."""

    slot: int = wire(U32, "the group")
    sessions: tuple[str, ...] = wire(TEXTS, "name of each member's session, hexadecimal")
    addresses: tuple[str, ...] = wire(TEXTS, "addresses of each member's worker, separated by spaces")


@message
class GroupJoinResponse(Message):
    """The links stand, or why not."""

    ok: int = wire(U8, "1 = links to all members stand")
    reason: str = wire(TEXT, "why not, one sentence")


@message
class GroupReduceRequest(Message):
    """Add a tensor over the group, in rank order; every rank ends with the same bits."""

    slot: int = wire(U32, "the group")
    mask: int = wire(U64, "bit r: rank r has a part; the others only receive")
    tensor: bytes = wire(TENSOR, "the rank's own tensor, contiguous")


@message
class GroupCloseRequest(Message):
    """Leave a group; its links are closed."""

    slot: int = wire(U32, "the group")


@message
class GroupLinkRequest(Message):
    """First on a link: which group it belongs to, and who dials."""

    group: bytes = wire(fixed_bytes(GROUP_SIZE), "name of the group")
    rank: int = wire(U16, "rank of the end that dials")


@message
class GroupLinkResponse(Message):
    """The link is expected."""

    rank: int = wire(U16, "rank of the end that answers")


@message
class GroupPartRequest(Message):
    """Part of a tensor from one rank to another; its data follows."""

    sequence: int = wire(U32, "which reduction of the group, from 0, modulo 2^32")
    step: int = wire(U16, "which exchange within the reduction")
    type: int = wire(U16, "ggml type of the data: 0 F32, 1 F16, 30 BF16")
    size: int = wire(U64, "bytes that follow")
