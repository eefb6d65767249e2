"""ggml's structs as numpy dtypes and ctypes classes, one set per backend API version.

Sources: ggml.h (`ggml_tensor`), ggml-impl.h (`ggml_cgraph`), ggml-backend-impl.h (the vtables).
All of it assumes 64-bit pointers. Between API 2 and 3 only the buffer type differs: 3 added `alloc_buffer_n` and
`get_alloc_size_n`. Which set a library needs is told by the first int of any registry struct; `check.py` proves it.

In every signature an address is a `POINTER_T`: a plain int, 0 for NULL, both ways.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

#: how an address crosses the border: as an unsigned 64-bit int
POINTER_T: Final = ctypes.c_size_t
SIZE_T: Final = ctypes.c_size_t

#: `struct ggml_tensor`, 336 bytes
TENSOR: Final = np.dtype(
    {
        "names": [
            "type",
            "buffer",
            "ne",
            "nb",
            "op",
            "op_params",
            "flags",
            "src",
            "view_src",
            "view_offs",
            "data",
            "name",
            "extra",
        ],
        "formats": [
            "<i4",
            "<u8",
            ("<i8", 4),
            ("<u8", 4),
            "<i4",
            ("<i4", 16),
            "<i4",
            ("<u8", 10),
            "<u8",
            "<u8",
            "<u8",
            "S64",
            "<u8",
        ],
        "offsets": [0, 8, 16, 48, 80, 84, 148, 152, 232, 240, 248, 256, 320],
        "itemsize": 336,
    },
)
TENSOR_SIZE: Final = TENSOR.itemsize


class TensorOffset:
    """Byte offsets inside `ggml_tensor`, for reading one field by address."""

    TYPE: Final = 0
    BUFFER: Final = 8
    NE: Final = 16
    NB: Final = 48
    OP: Final = 80
    OP_PARAMS: Final = 84
    FLAGS: Final = 148
    SRC: Final = 152
    VIEW_SRC: Final = 232
    VIEW_OFFS: Final = 240
    DATA: Final = 248
    NAME: Final = 256
    EXTRA: Final = 320


class GraphOffset:
    """Byte offsets inside `ggml_cgraph` (ggml-impl.h)."""

    SIZE: Final = 0
    N_NODES: Final = 4
    N_LEAFS: Final = 8
    NODES: Final = 16
    GRADS: Final = 24
    LEAFS: Final = 40
    USE_COUNTS: Final = 48
    HASH_SIZE: Final = 56
    HASH_USED: Final = 64
    HASH_KEYS: Final = 72
    ORDER: Final = 80
    UID: Final = 88
    #: the size of the whole struct
    END: Final = 96


class InitParams(ctypes.Structure):
    """`struct ggml_init_params`."""

    _fields_ = (("mem_size", SIZE_T), ("mem_buffer", POINTER_T), ("no_alloc", ctypes.c_bool))


class DeviceProps(ctypes.Structure):
    """`struct ggml_backend_dev_props` with its caps laid flat."""

    _fields_ = (
        ("name", POINTER_T),
        ("description", POINTER_T),
        ("memory_free", SIZE_T),
        ("memory_total", SIZE_T),
        ("type", ctypes.c_int),
        ("device_id", POINTER_T),
        ("caps_async", ctypes.c_bool),
        ("caps_host_buffer", ctypes.c_bool),
        ("caps_buffer_from_host_ptr", ctypes.c_bool),
        ("caps_events", ctypes.c_bool),
        ("caps_mmap_support", ctypes.c_bool),
    )


class Event(ctypes.Structure):
    """`struct ggml_backend_event`."""

    _fields_ = (("device", POINTER_T), ("context", POINTER_T))


_void = ctypes.CFUNCTYPE(None, POINTER_T)
_void_2 = ctypes.CFUNCTYPE(None, POINTER_T, POINTER_T)
_void_3 = ctypes.CFUNCTYPE(None, POINTER_T, POINTER_T, POINTER_T)
_pointer = ctypes.CFUNCTYPE(POINTER_T, POINTER_T)
_pointer_2 = ctypes.CFUNCTYPE(POINTER_T, POINTER_T, POINTER_T)
_size = ctypes.CFUNCTYPE(SIZE_T, POINTER_T)
_size_2 = ctypes.CFUNCTYPE(SIZE_T, POINTER_T, POINTER_T)
_int = ctypes.CFUNCTYPE(ctypes.c_int, POINTER_T)
_int_2 = ctypes.CFUNCTYPE(ctypes.c_int, POINTER_T, POINTER_T)
_bool = ctypes.CFUNCTYPE(ctypes.c_bool, POINTER_T)
_bool_2 = ctypes.CFUNCTYPE(ctypes.c_bool, POINTER_T, POINTER_T)
_bool_3 = ctypes.CFUNCTYPE(ctypes.c_bool, POINTER_T, POINTER_T, POINTER_T)
_bool_4 = ctypes.CFUNCTYPE(ctypes.c_bool, POINTER_T, POINTER_T, POINTER_T, POINTER_T)
#: (buffer or backend, tensor, data, offset, size)
_move = ctypes.CFUNCTYPE(None, POINTER_T, POINTER_T, POINTER_T, SIZE_T, SIZE_T)
#: (buffer or backend, tensor, data, offset, size, n_copies, stride_tensor, stride_data)
_move_2d = ctypes.CFUNCTYPE(None, POINTER_T, POINTER_T, POINTER_T, SIZE_T, SIZE_T, SIZE_T, SIZE_T, SIZE_T)


class _BufferTypeInterface2(ctypes.Structure):
    """`struct ggml_backend_buffer_type_i` of API 2: 6 slots."""

    _fields_ = (
        ("get_name", _pointer),
        ("alloc_buffer", ctypes.CFUNCTYPE(POINTER_T, POINTER_T, SIZE_T)),
        ("get_alignment", _size),
        ("get_max_size", _size),
        ("get_alloc_size", _size_2),
        ("is_host", _bool),
    )


class _BufferTypeInterface3(ctypes.Structure):
    """`struct ggml_backend_buffer_type_i` of API 3: 8 slots."""

    _fields_ = (
        ("get_name", _pointer),
        ("alloc_buffer", ctypes.CFUNCTYPE(POINTER_T, POINTER_T, SIZE_T)),
        ("alloc_buffer_n", ctypes.CFUNCTYPE(POINTER_T, POINTER_T, POINTER_T, ctypes.c_int)),
        ("get_alignment", _size),
        ("get_max_size", _size),
        ("get_alloc_size", _size_2),
        ("get_alloc_size_n", ctypes.CFUNCTYPE(SIZE_T, POINTER_T, POINTER_T, ctypes.c_int)),
        ("is_host", _bool),
    )


class BufferInterface(ctypes.Structure):
    """`struct ggml_backend_buffer_i`: 11 slots."""

    _fields_ = (
        ("free_buffer", _void),
        ("get_base", _pointer),
        ("init_tensor", _int_2),
        ("memset_tensor", ctypes.CFUNCTYPE(None, POINTER_T, POINTER_T, ctypes.c_uint8, SIZE_T, SIZE_T)),
        ("set_tensor", _move),
        ("get_tensor", _move),
        ("set_tensor_2d", _move_2d),
        ("get_tensor_2d", _move_2d),
        ("cpy_tensor", _bool_3),
        ("clear", ctypes.CFUNCTYPE(None, POINTER_T, ctypes.c_uint8)),
        ("reset", _void),
    )


class BackendInterface(ctypes.Structure):
    """`struct ggml_backend_i`: 16 slots."""

    _fields_ = (
        ("get_name", _pointer),
        ("free", _void),
        ("set_tensor_async", _move),
        ("get_tensor_async", _move),
        ("set_tensor_2d_async", _move_2d),
        ("get_tensor_2d_async", _move_2d),
        ("cpy_tensor_async", _bool_4),
        ("synchronize", _void),
        ("graph_plan_create", _pointer_2),
        ("graph_plan_free", _void_2),
        ("graph_plan_update", _void_3),
        ("graph_plan_compute", _int_2),
        ("graph_compute", _int_2),
        ("event_record", _void_2),
        ("event_wait", _void_2),
        ("graph_optimize", _void_2),
    )


class DeviceInterface(ctypes.Structure):
    """`struct ggml_backend_device_i`: 15 slots."""

    _fields_ = (
        ("get_name", _pointer),
        ("get_description", _pointer),
        ("get_memory", _void_3),
        ("get_type", _int),
        ("get_props", _void_2),
        ("init_backend", _pointer_2),
        ("get_buffer_type", _pointer),
        ("get_host_buffer_type", _pointer),
        ("buffer_from_host_ptr", ctypes.CFUNCTYPE(POINTER_T, POINTER_T, POINTER_T, SIZE_T, SIZE_T)),
        ("supports_op", _bool_2),
        ("supports_buft", _bool_2),
        ("offload_op", _bool_2),
        ("event_new", _pointer),
        ("event_free", _void_2),
        ("event_synchronize", _void_2),
    )


class RegInterface(ctypes.Structure):
    """`struct ggml_backend_reg_i`: 4 slots. `get_proc_address` gets the name as an address."""

    _fields_ = (
        ("get_name", _pointer),
        ("get_device_count", _size),
        ("get_device", ctypes.CFUNCTYPE(POINTER_T, POINTER_T, SIZE_T)),
        ("get_proc_address", _pointer_2),
    )


class _BufferType2(ctypes.Structure):
    """`struct ggml_backend_buffer_type` of API 2."""

    _fields_ = (("iface", _BufferTypeInterface2), ("device", POINTER_T), ("context", POINTER_T))


class _BufferType3(ctypes.Structure):
    """`struct ggml_backend_buffer_type` of API 3."""

    _fields_ = (("iface", _BufferTypeInterface3), ("device", POINTER_T), ("context", POINTER_T))


class Buffer(ctypes.Structure):
    """`struct ggml_backend_buffer`."""

    _fields_ = (
        ("iface", BufferInterface),
        ("buft", POINTER_T),
        ("context", POINTER_T),
        ("size", SIZE_T),
        ("usage", ctypes.c_int),
    )


class Backend(ctypes.Structure):
    """`struct ggml_backend`; `guid` points at 16 bytes."""

    _fields_ = (("guid", POINTER_T), ("iface", BackendInterface), ("device", POINTER_T), ("context", POINTER_T))


class Device(ctypes.Structure):
    """`struct ggml_backend_device`."""

    _fields_ = (("iface", DeviceInterface), ("reg", POINTER_T), ("context", POINTER_T))


class Reg(ctypes.Structure):
    """`struct ggml_backend_reg`."""

    _fields_ = (("api_version", ctypes.c_int), ("iface", RegInterface), ("context", POINTER_T))


@dataclass(frozen=True, slots=True)
class Abi:
    """The struct classes of one backend API version."""

    api: int
    BufferTypeInterface: Any
    BufferType: Any
    BufferInterface: Any = BufferInterface
    Buffer: Any = Buffer
    BackendInterface: Any = BackendInterface
    Backend: Any = Backend
    DeviceInterface: Any = DeviceInterface
    Device: Any = Device
    RegInterface: Any = RegInterface
    Reg: Any = Reg
    Event: Any = Event
    DeviceProps: Any = DeviceProps


#: API version (`GGML_BACKEND_API_VERSION`) → its layout
ABIS: Final[dict[int, Abi]] = {
    2: Abi(2, _BufferTypeInterface2, _BufferType2),
    3: Abi(3, _BufferTypeInterface3, _BufferType3),
}
