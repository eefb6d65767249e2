"""Plans: every rank ends with the sum in rank order, and no order of messages can block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linked import in_order

from wireherd.collective import schedule
from wireherd.collective.reduce import add_in_order
from wireherd.collective.schedule import SCATTER_BYTES, SEGMENT_BYTES, is_live, plan

#: around every bound: none, one, a line, the size from which ranks scatter, a segment
COUNTS = (0, 1, 3, 16, 17, 1000, SCATTER_BYTES // 4 - 1, SCATTER_BYTES // 4, SCATTER_BYTES // 4 + 7)
LARGE = (SEGMENT_BYTES // 4, SEGMENT_BYTES // 4 + 1, 2 * SEGMENT_BYTES // 4 + 100)


def carry_out(world, mask, parts):
    """Run the plans of all ranks step by step, as the system would deliver the messages."""
    count = len(parts[0])
    plans = [plan(world, rank, mask, count) for rank in range(world)]
    assert len({len(each) for each in plans}) == 1, "ranks disagree on the number of steps"
    memory = [part.copy() for part in parts]
    for number in range(len(plans[0])):
        steps = [each[number] for each in plans]
        sent = {
            (rank, move.peer, move.start, move.stop): memory[rank][move.start : move.stop].copy()
            for rank, step in enumerate(steps)
            for move in step.sends
        }
        wanted = {(move.peer, rank, move.start, move.stop) for rank, step in enumerate(steps) for move in step.receives}
        assert set(sent) == wanted, "what one rank sends another one does not expect"
        for rank, step in enumerate(steps):
            assert step.number == number
            assert list(step.receives) == sorted(step.receives)
            assert all(move.start < move.stop for move in (*step.sends, *step.receives))
            got = {move.peer: sent[move.peer, rank, move.start, move.stop] for move in step.receives}
            if step.total is None:
                for move in step.receives:
                    memory[rank][move.start : move.stop] = got[move.peer]
                continue
            start, stop = step.total
            out = memory[rank][start:stop]
            if is_live(mask, rank):
                got[rank] = out
            add_in_order([got[peer] for peer in sorted(got)], out)
    return memory


@pytest.mark.parametrize("world", range(2, 9))
def test_every_mask_of_every_world_gives_the_sum_in_rank_order(world):
    random = np.random.default_rng(world)
    parts = [random.standard_normal(COUNTS[-1], np.float32) * 1e3 for _ in range(world)]
    for mask in range(1, 1 << world):
        for count in COUNTS if world <= 4 else (17, COUNTS[-1]):
            cut = [part[:count] for part in parts]
            wanted = in_order(cut, mask).tobytes()
            for rank, result in enumerate(carry_out(world, mask, cut)):
                assert result.tobytes() == wanted, (mask, count, rank)


@pytest.mark.parametrize("count", LARGE)
def test_large_tensors_go_in_segments(count):
    random = np.random.default_rng(count)
    for world in (2, 3):
        parts = [random.standard_normal(count, np.float32) for _ in range(world)]
        results = carry_out(world, (1 << world) - 1, parts)
        wanted = in_order(parts, -1).tobytes()
        assert [result.tobytes() == wanted for result in results] == [True] * world
        for step in plan(world, 0, -1 & ((1 << world) - 1), count):
            assert all((move.stop - move.start) * 4 <= SEGMENT_BYTES for move in (*step.sends, *step.receives))


@given(st.integers(2, 64), st.data(), st.integers(0, 1 << 22))
def test_each_rank_sends_a_scattered_tensor_about_twice_at_most(world, data, count):
    mask = data.draw(st.integers(1, (1 << world) - 1))
    for rank in {0, world - 1, data.draw(st.integers(0, world - 1))}:
        sent = sum(move.stop - move.start for step in plan(world, rank, mask, count) for move in step.sends)
        if world > 2 and count * 4 >= SCATTER_BYTES and count % (SEGMENT_BYTES // 4) * 4 >= SCATTER_BYTES:
            segments = -(-count * 4 // SEGMENT_BYTES)
            assert sent <= 2 * count + 64 * world * segments
        else:
            assert sent <= max(world - 1, 2) * count + 64 * world


def test_nothing_to_add_takes_no_steps():
    assert plan(3, 1, 0, 1000) == ()
    assert plan(3, 1, 7, 0) == ()


@given(st.integers(1, 9), st.data())
def test_the_sum_is_taken_in_order_wherever_it_goes(count, data):
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    parts = [random.standard_normal(33, np.float32) * 10.0 ** random.integers(-3, 4) for _ in range(count)]
    parts = [part.astype(np.float32) for part in parts]
    wanted = in_order(parts, -1)
    place = data.draw(st.integers(-1, count - 1))
    out = np.full(33, np.nan, np.float32) if place < 0 else parts[place]
    add_in_order(parts, out)
    assert out.tobytes() == wanted.tobytes()


def test_no_parts_are_zeros():
    out = np.ones(5, np.float32)
    add_in_order([], out)
    assert not out.any()
    assert schedule.MAX_WORLD == 64
