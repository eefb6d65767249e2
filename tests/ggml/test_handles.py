from __future__ import annotations

import numpy as np
import pytest
from graphs import Rows, cpu

from wireherd.errors import GgmlFailed
from wireherd.ggml import memory
from wireherd.ggml.enums import BufferUsage
from wireherd.ggml.handles import Switch


def tensor(buffer, block, index, width, offset):
    rows = block.rows
    rows["ne"][index] = [width, 1, 1, 1]
    rows["nb"][index] = [4, 4 * width, 4 * width, 4 * width]
    rows["buffer"][index] = buffer.ptr
    rows["data"][index] = buffer.base + offset
    return block.at(index)


def test_buffers(lib):
    with cpu(lib, 4096) as (_backend, buffer):
        assert buffer.size == 4096
        assert buffer.is_host
        assert buffer.base % lib.cpu_device().buffer_type().alignment == 0
        buffer.clear(7)
        assert bytes(buffer.view()) == b"\x07" * 4096
        buffer.set_usage(BufferUsage.WEIGHTS)
        block = Rows(2)
        one, two = tensor(buffer, block, 0, 64, 0), tensor(buffer, block, 1, 64, 1024)
        buffer.init_tensor(one)
        assert lib.cpu_device().buffer_type().alloc_size(one) == 256 == lib.c.ggml_nbytes(one)
        data = np.arange(64, dtype=np.float32)
        buffer.tensor_set(one, memory.address_of(data), 0, 256)
        buffer.tensor_copy(one, two)
        buffer.tensor_memset(two, 0, 128, 128)
        back = np.empty(64, np.float32)
        buffer.tensor_get(two, memory.address_of(back), 0, 256)
        assert back.tolist() == [*range(32), *[0] * 32]
    assert buffer.ptr == 0
    buffer.close()


def test_no_room(lib):
    with pytest.raises(GgmlFailed, match="has no room for 4611686018427387904 bytes"):
        lib.cpu_device().buffer_type().alloc(2**62)


def test_a_buffer_type(lib):
    kind = lib.cpu_device().buffer_type()
    assert kind.name == "CPU"
    assert kind.is_host
    assert kind.plain_alloc_size
    assert kind.max_size == 2**64 - 1


def test_kernels_are_known(lib):
    with cpu(lib, 4096) as (_backend, buffer):
        block = Rows(3)
        out, left, right = (tensor(buffer, block, i, 64, 256 * i) for i in range(3))
        block.rows["op"][0] = lib.numbering().ops.index("ADD")
        block.rows["src"][0, :2] = [left, right]
        assert lib.cpu_device().supports_op(out)


def test_the_switch(lib):
    switch = Switch(lib)
    assert not switch.is_set
    switch.set(True)
    assert switch.is_set
    switch.set(False)
    assert not switch.is_set
    switch.close()
    switch.close()
    switch.set(True)
    assert not switch.is_set


def test_functions_the_registry_offers(lib):
    device = lib.cpu_device()
    assert device.procedure("no_such_function", None) is None
    assert device.procedure("ggml_backend_set_n_threads", None) is not None
