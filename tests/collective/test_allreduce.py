"""Reductions over real sockets: every size and mask, tiny buffers, the same bits on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from linked import form, in_order, randoms, reduce_all

from wireherd.collective import links
from wireherd.collective.links import HEAD_SIZE, Link
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.framing import HERD
from wireherd.protocol.messages_peer import GroupPartRequest
from wireherd.protocol.table import Opcode
from wireherd.protocol.version import NEWEST


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("buffer", [None, 4096])
def test_all_sizes_and_masks(world, buffer):
    everyone = (1 << world) - 1
    cases = [(count, everyone) for count in (1, 7, 576, 16383, 16384, 50_000)]
    cases += [(count, mask) for count in (33, 20_000) for mask in range(1 << world)]
    if buffer is None:
        cases += [(1_500_000, everyone), (1_100_000, 1), (1_100_000, everyone - 1)]
    counts, masks = [count for count, _ in cases], [mask for _, mask in cases]
    parts = randoms(world, counts, world)
    groups = form(world, buffer)
    try:
        results = reduce_all(groups, parts, masks)
        for index, mask in enumerate(masks):
            wanted = in_order([own[index] for own in parts], mask).tobytes()
            assert all(own[index].tobytes() == wanted for own in results), cases[index]
    finally:
        for group in groups:
            group.close()


def test_special_numbers_are_the_same_bits_everywhere():
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3.4e38, -3.4e38], np.float32)
    parts = [[np.roll(values, rank)] for rank in range(3)]
    groups = form(3)
    results = reduce_all(groups, parts, [7])
    assert len({own[0].tobytes() for own in results}) == 1
    for group in groups:
        group.close()


def test_a_head_is_what_the_message_table_says():
    link = Link(1, "addr", None, sent=4)
    head = link.head(77, 3, 2304)
    assert len(head) == HEAD_SIZE
    frame = HERD.unpack(head, 0)
    assert (frame.opcode, frame.flags, frame.status, frame.sequence) == (Opcode.GROUP_PART, 0, 0, 5)
    dialect = dialect_for(NEWEST, herd=True)
    assert frame.size == dialect.fixed_size(Opcode.GROUP_PART) + 2304
    assert dialect.decode_request(Opcode.GROUP_PART, head[HERD.size :]) == GroupPartRequest(77, 3, links.F32, 2304)


def test_what_is_bound_is_bound_once_and_forgotten_with_its_memory():
    groups = form(2)
    part = memoryview(bytearray(64))
    bound = groups[0].bind(b"a", 3, part)
    assert groups[0].reduction(b"a", 3) is bound
    assert groups[0].reduction(b"a", 1) is None
    groups[0].forget()
    assert groups[0].reduction(b"a", 3) is None
    for group in groups:
        group.close()
