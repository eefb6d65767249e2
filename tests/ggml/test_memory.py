from __future__ import annotations

import time

import numpy as np
import pytest

from wireherd.ggml import memory
from wireherd.ggml.structs import TENSOR, TENSOR_SIZE, TensorOffset


def scattered(n):
    noise = np.random.default_rng(1)
    block = noise.integers(0, 255, (3 * n + 1) * TENSOR_SIZE, dtype=np.uint8)
    start = -memory.address_of(block) % 16
    places = start + TENSOR_SIZE * noise.permutation(3 * n)[:n]
    return block, places, (places + memory.address_of(block)).astype(np.uint64)


def test_gather_copies_structs_from_anywhere():
    block, places, addresses = scattered(500)
    rows = memory.gather(addresses)
    assert rows.dtype == TENSOR
    assert [row.tobytes() for row in rows] == [block[p : p + TENSOR_SIZE].tobytes() for p in places]
    block[:] = 0
    assert rows.view(np.uint8).any(), "a copy, not a view"


def test_gather_is_fast():
    _block, _places, addresses = scattered(1300)
    took = []
    for _ in range(20):
        start = time.perf_counter()
        memory.gather(addresses)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.0005


def test_gather_of_none():
    assert len(memory.gather(np.zeros(0, np.uint64))) == 0


def test_gather_refuses_null():
    with pytest.raises(ValueError, match="NULL"):
        memory.gather(np.array([0], np.uint64))


def test_views_share_memory():
    block = bytearray(range(64))
    where = memory.address_of(block)
    view = memory.view(where + 8, 8)
    assert bytes(view) == bytes(range(8, 16))
    assert view.format == "B"
    view[0] = 99
    assert block[8] == 99
    assert memory.view(where, 4, readonly=True).readonly
    assert len(memory.view(where, 0)) == 0
    assert memory.array(where, 2, np.uint32).tolist() == [0x03020100, 0x07060504]


def test_words():
    block = bytearray(16)
    where = memory.address_of(block)
    memory.write_u64(where, 2**64 - 2)
    memory.write_i32(where + 8, -3)
    assert memory.read_u64(where) == 2**64 - 2
    assert memory.read_i32(where + 8) == -3
    memory.fill(where, 7, 3)
    memory.copy(where + 1, where, 3)
    assert bytes(block[:5]) == b"\x07\x07\x07\x07\xff"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.array])
def test_addresses_of_buffers(kind):
    buffer = kind(b"abc") if kind is not np.array else np.frombuffer(b"abc", np.uint8).copy()
    assert bytes(memory.view(memory.address_of(buffer), 3, readonly=True)) == b"abc"


def test_text():
    text = b"some text\0and more"
    where = memory.address_of(text)
    assert memory.read_text(where) == "some text"
    assert memory.read_text(where, 4) == "some"
    assert memory.read_text(0) == ""
    assert memory.address_of(b"") == 0


def test_offsets_agree_with_the_dtype():
    for name, offset in vars(TensorOffset).items():
        if name.isupper():
            assert TENSOR.fields[name.lower()][1] == offset
