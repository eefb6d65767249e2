"""Numbers of ggml.h and llama.h that do not move between the supported builds.

Operation, unary, GLU and type numbers do move: ask `Library.numbering()` for those.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Status(IntEnum):
    """`enum ggml_status`."""

    ALLOC_FAILED = -2
    FAILED = -1
    SUCCESS = 0
    ABORTED = 1


class DeviceType(IntEnum):
    """`enum ggml_backend_dev_type`."""

    CPU = 0
    GPU = 1
    IGPU = 2
    ACCEL = 3
    META = 4


class BufferUsage(IntEnum):
    """`enum ggml_backend_buffer_usage`."""

    ANY = 0
    WEIGHTS = 1
    COMPUTE = 2


class Caps(IntFlag):
    """What a device can do, as `NativeDevice.caps` tells it (our own bits, not ggml's)."""

    ASYNC = 1
    HOST_BUFFER = 2
    EVENTS = 4
    #: the buffer type needs exactly `ggml_nbytes` for every tensor (it has no `get_alloc_size` slot)
    PLAIN_ALLOC_SIZE = 8


class LogLevel(IntEnum):
    """`enum ggml_log_level`; CONT continues the line before it."""

    NONE = 0
    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    CONT = 5


class SplitMode(IntEnum):
    """`enum llama_split_mode`."""

    NONE = 0
    LAYER = 1
    ROW = 2
    TENSOR = 3


class LoadMode(IntEnum):
    """`enum llama_load_mode`: how a model file is read."""

    AUTO = -1
    NONE = 0
    MMAP = 1
    MLOCK = 2
    MMAP_MLOCK = 3
    DIRECT_IO = 4


class FlashAttention(IntEnum):
    """`enum llama_flash_attn_type`."""

    AUTO = -1
    DISABLED = 0
    ENABLED = 1


#: `enum ggml_type` of the types a KV cache may have; these numbers have never moved
KV_TYPES: dict[str, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}

#: `LLAMA_DEFAULT_SEED`: a sampler seeded with it draws a random seed
DEFAULT_SEED = 0xFFFFFFFF
