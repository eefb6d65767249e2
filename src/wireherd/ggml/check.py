"""Proof, at load, that the layouts of `structs.py` are the ones a library was built with.

Nothing in a binary tells its struct layouts, so they are tried on objects that the library made itself: the slots of
the CPU backend's vtables must point at code of the library and the word after the last slot must not; a tensor and a
graph built through the public API must show the right values at the assumed offsets. It takes well under a millisecond.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from wireherd.errors import UnknownBuild
from wireherd.ggml import memory
from wireherd.ggml.structs import TENSOR, TENSOR_SIZE, GraphOffset, InitParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wireherd.ggml.functions import Functions
    from wireherd.ggml.image import Image
    from wireherd.ggml.structs import Abi

_F16 = 1  # GGML_TYPE_F16 and _F32 have never moved
_F32 = 0
_OBJECT_SIZE = 32  # sizeof(struct ggml_object), part of ggml_tensor_overhead()


def check_layouts(path: str, c: Functions, abi: Abi, image: Image, cpu_device: int) -> None:
    """Raise `UnknownBuild` unless every layout of `abi` fits the library.

    Args:
        path: name of the library, for the message.
        c: its functions.
        abi: the layout to prove.
        image: where its code lies.
        cpu_device: address of its CPU device, whose vtables are looked at.
    """
    for what, fits in _trials(c, abi, image, cpu_device):
        if not fits:
            raise UnknownBuild(
                f"{path} says it has ggml backend API {abi.api}, but its {what} is laid out otherwise: "
                "this release cannot use it",
            )


def _trials(c: Functions, abi: Abi, image: Image, cpu_device: int) -> Iterator[tuple[str, bool]]:
    reg = c.ggml_backend_dev_backend_reg(cpu_device)
    yield "registry", bool(reg) and _slots_fit(abi.Reg, reg, image)
    yield "device", _slots_fit(abi.Device, cpu_device, image)
    # slots at the end of a vtable may be empty, so the field behind them is looked at too where its value is known
    yield "device", abi.Device.from_address(cpu_device).reg == reg
    yield "device properties", _props_fit(c, abi, cpu_device)
    buft = c.ggml_backend_dev_buffer_type(cpu_device)
    yield "buffer type", bool(buft) and _slots_fit(abi.BufferType, buft, image)
    yield "buffer type", abi.BufferType.from_address(buft).device == c.ggml_backend_buft_get_device(buft)
    buffer = c.ggml_backend_buft_alloc_buffer(buft, 4096)
    if not buffer:
        yield "buffer", False
        return
    try:
        yield "buffer", _slots_fit(abi.Buffer, buffer, image)
        found = abi.Buffer.from_address(buffer)
        yield "buffer", found.buft == buft and found.size == 4096 == c.ggml_backend_buffer_get_size(buffer)
    finally:
        c.ggml_backend_buffer_free(buffer)
    backend = c.ggml_backend_dev_init(cpu_device, None)
    if not backend:
        yield "backend", False
        return
    try:
        yield "backend", _slots_fit(abi.Backend, backend, image)
        yield "backend", abi.Backend.from_address(backend).device == cpu_device
    finally:
        c.ggml_backend_free(backend)
    yield "tensor", c.ggml_tensor_overhead() == _OBJECT_SIZE + TENSOR_SIZE
    context = c.ggml_init(InitParams(1 << 16, 0, True))
    if not context:
        yield "context", False
        return
    try:
        yield from _tensor_and_graph(c, context)
    finally:
        c.ggml_free(context)


def _slots_fit(kind: Any, address: int, image: Image) -> bool:
    """Every filled slot points at code, at least two are filled, and what follows the last slot is no code."""
    interface = kind.iface
    start = address + interface.offset
    slots = [memory.read_u64(start + 8 * index) for index in range(interface.size // 8)]
    filled = [slot for slot in slots if slot]
    return (
        len(filled) >= 2
        and all(image.is_code(slot) for slot in filled)
        and not image.is_code(memory.read_u64(start + interface.size))
    )


def _props_fit(c: Functions, abi: Abi, device: int) -> bool:
    """The properties must agree with the functions that answer the same questions, and end where we think."""
    size = ctypes.sizeof(abi.DeviceProps)
    room = (ctypes.c_uint8 * (size + 64))()
    ctypes.memset(room, 0xA5, len(room))
    c.ggml_backend_dev_get_props(device, ctypes.addressof(room))
    props = abi.DeviceProps.from_buffer(room)
    return bool(
        memory.read_text(props.name) == (c.ggml_backend_dev_name(device) or b"").decode()
        and memory.read_text(props.description) == (c.ggml_backend_dev_description(device) or b"").decode()
        and props.type == c.ggml_backend_dev_type(device)
        and all(byte == 0xA5 for byte in room[size:]),
    )


def _tensor_and_graph(c: Functions, context: int) -> Iterator[tuple[str, bool]]:
    left = c.ggml_new_tensor_2d(context, _F16, 32, 5)
    right = c.ggml_new_tensor_2d(context, _F32, 32, 7)
    c.ggml_set_name(left, b"left")
    c.ggml_set_output(left)
    part = c.ggml_view_1d(context, left, 16, 64)
    product = c.ggml_mul_mat(context, left, right)
    a = memory.array(left, 1, TENSOR)[0]
    v = memory.array(part, 1, TENSOR)[0]
    p = memory.array(product, 1, TENSOR)[0]
    yield (
        "tensor",
        bool(
            a["type"] == _F16
            and list(a["ne"]) == [32, 5, 1, 1]
            and list(a["nb"]) == [2, 64, 320, 320]
            and a["name"] == b"left"
            and a["flags"] == 2
            and a["op"] == 0
            and a["buffer"] == a["data"] == a["extra"] == 0,
        ),
    )
    yield (
        "tensor",
        bool(v["view_src"] == left and v["view_offs"] == 64 and v["src"][0] == left and v["op_params"][0] == 64),
    )
    yield (
        "tensor",
        bool(
            list(p["src"][:3]) == [left, right, 0]
            and c.ggml_op_name(int(p["op"])) != 0
            and memory.read_text(c.ggml_op_name(int(p["op"]))) == "MUL_MAT"
            and list(p["ne"]) == [5, 7, 1, 1]
        ),
    )
    graph = c.ggml_new_graph_custom(context, 16, False)
    c.ggml_build_forward_expand(graph, product)
    nodes = memory.read_u64(graph + GraphOffset.NODES)
    keys = memory.read_u64(graph + GraphOffset.HASH_KEYS)
    hash_size = memory.read_u64(graph + GraphOffset.HASH_SIZE)
    yield (
        "graph",
        bool(
            nodes == graph + GraphOffset.END == c.ggml_graph_nodes(graph)
            and memory.read_i32(graph + GraphOffset.SIZE) == 16 == c.ggml_graph_size(graph)
            and memory.read_i32(graph + GraphOffset.N_NODES) == 1 == c.ggml_graph_n_nodes(graph)
            and memory.read_i32(graph + GraphOffset.N_LEAFS) == 2
            and memory.read_u64(nodes) == product
            and memory.read_u64(graph + GraphOffset.UID) == 0
            and 32 <= hash_size < 1024
            and graph < keys < graph + (1 << 16),
        ),
    )
    if hash_size and graph < keys < graph + (1 << 16):
        counts = memory.read_u64(graph + GraphOffset.USE_COUNTS)
        slot = next((i for i in range(hash_size) if memory.read_u64(keys + 8 * i) == left), -1)
        yield "graph", slot >= 0 and memory.read_i32(counts + 4 * slot) == 1
