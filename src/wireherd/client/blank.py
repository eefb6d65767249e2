"""A device that holds and computes nothing: to see how llama.cpp takes a model apart, without moving a byte of it.

Its buffers are ranges of addresses with no memory behind them, what is written is dropped, graphs succeed unrun, and
what is read is zero. So a model of any size "loads" in the time that libllama needs to read its header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wireherd.client.device import device_name
from wireherd.ggml import memory, vtable
from wireherd.ggml.enums import DeviceType, Status

if TYPE_CHECKING:
    from wireherd.ggml.library import Library

_GUID: Final = b"wireherd-nothing"
_REGISTRY: Final = b"BLANK\0"
_ALIGNMENT: Final = 128
#: buffers begin here; nobody looks at what is there, for the memory is said to be no host memory
_FIRST_BASE: Final = 1 << 40


class BlankDevice:
    """One such device with its registry, memory and backends; its methods are the slots of all five vtables."""

    def __init__(self, lib: Library, number: int, memory_free: int) -> None:
        """Make device `number`, which says that it has `memory_free` bytes."""
        self._lib = lib
        self._memory = memory_free
        self._name = device_name(number).encode() + b"\0"
        self._bases: dict[int, int] = {}
        self._next = _FIRST_BASE
        #: exceptions out of the slots; none is expected
        self.errors: list[BaseException] = []
        abi = lib.abi

        def on_error(_slot: str, error: BaseException) -> None:
            self.errors.append(error)

        self._buffers = vtable.bind(abi.BufferInterface, self, on_error=on_error)
        self._backends = vtable.bind(abi.BackendInterface, self, on_error=on_error)
        self._kept: list[object] = []
        self._reg = abi.Reg()
        self._reg.api_version = lib.api
        self._reg.iface = vtable.bind(abi.RegInterface, _BlankRegistry(self), on_error=on_error)
        self._type = abi.BufferType()
        self._type.iface = vtable.bind(abi.BufferTypeInterface, self, on_error=on_error)
        self._device = abi.Device()
        self._device.iface = vtable.bind(abi.DeviceInterface, self, on_error=on_error)
        self._device.reg = memory.address_of(self._reg)
        #: addresses of the structs
        self.pointer = memory.address_of(self._device)
        self.buffer_type = memory.address_of(self._type)
        self._type.device = self.pointer

    # every vtable

    def get_name(self, _it: int) -> int:
        """Address of the name."""
        return memory.address_of(self._name)

    # device

    def get_description(self, _device: int) -> int:
        """The name again."""
        return memory.address_of(self._name)

    def get_memory(self, _device: int, free: int, total: int) -> None:
        """Store what it was told to say."""
        memory.write_u64(free, self._memory)
        memory.write_u64(total, self._memory)

    def get_type(self, _device: int) -> int:
        """GPU, as workers' devices."""
        return DeviceType.GPU

    def get_props(self, _device: int, props: int) -> None:
        """Fill a `ggml_backend_dev_props` as a worker's device does."""
        told = self._lib.abi.DeviceProps.from_address(props)
        told.name = told.description = memory.address_of(self._name)
        told.memory_free = told.memory_total = self._memory
        told.type = DeviceType.GPU
        told.device_id = 0
        told.caps_async = told.caps_host_buffer = told.caps_buffer_from_host_ptr = told.caps_events = False
        told.caps_mmap_support = True

    def init_backend(self, _device: int, _params: int) -> int:
        """Address of a new backend."""
        struct = self._lib.abi.Backend()
        struct.guid = memory.address_of(_GUID)
        struct.iface = self._backends
        struct.device = self.pointer
        self._kept.append(struct)
        return memory.address_of(struct)

    def get_buffer_type(self, _device: int) -> int:
        """Address of the buffer type."""
        return self.buffer_type

    def supports_op(self, _device: int, node: int) -> bool:
        """What the CPU here can run."""
        return self._lib.cpu_device().supports_op(node)

    def supports_buft(self, _device: int, buffer_type: int) -> bool:
        """Only its own."""
        return buffer_type == self.buffer_type

    # buffer type

    def alloc_buffer(self, buffer_type: int, size: int) -> int:
        """A range of addresses."""
        pointer: int = self._lib.c.ggml_backend_buffer_init(buffer_type, self._buffers, 0, size)
        self._bases[pointer] = self._next
        self._next += -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        return pointer

    def get_alignment(self, _type: int) -> int:
        """Bytes."""
        return _ALIGNMENT

    def get_max_size(self, _type: int) -> int:
        """No limit."""
        return 1 << 60

    def is_host(self, _type: int) -> bool:
        """No: there is nothing to look at."""
        return False

    # buffer

    def free_buffer(self, buffer: int) -> None:
        """Forget the range."""
        self._bases.pop(buffer, None)

    def get_base(self, buffer: int) -> int:
        """Where the range begins."""
        return self._bases[buffer]

    def memset_tensor(self, _buffer: int, _tensor: int, _value: int, _offset: int, _size: int) -> None:
        """Nothing."""

    def set_tensor(self, _buffer: int, _tensor: int, _data: int, _offset: int, _size: int) -> None:
        """Nothing."""

    def get_tensor(self, _buffer: int, _tensor: int, data: int, _offset: int, size: int) -> None:
        """Zeros."""
        memory.fill(data, 0, size)

    def set_tensor_2d(
        self, _buffer: int, _tensor: int, _data: int, _offset: int, _size: int, _rows: int, _to: int, _from: int
    ) -> None:
        """Nothing."""

    def get_tensor_2d(
        self, _buffer: int, _tensor: int, data: int, _offset: int, size: int, rows: int, _from: int, stride: int
    ) -> None:
        """Zeros."""
        for row in range(rows):
            memory.fill(data + row * stride, 0, size)

    def cpy_tensor(self, _buffer: int, _source: int, _destination: int) -> bool:
        """Done: there was nothing to copy."""
        return True

    def clear(self, _buffer: int, _value: int) -> None:
        """Nothing."""

    # backend

    def free(self, _backend: int) -> None:
        """The struct stays, as long as the device."""

    def graph_compute(self, _backend: int, _graph: int) -> int:
        """Success."""
        return Status.SUCCESS


class _BlankRegistry:
    """The registry slots, which would collide with the device's."""

    def __init__(self, device: BlankDevice) -> None:
        self._device = device

    def get_name(self, _reg: int) -> int:
        return memory.address_of(_REGISTRY)

    def get_device_count(self, _reg: int) -> int:
        return 1

    def get_device(self, _reg: int, _index: int) -> int:
        return self._device.pointer

    def get_proc_address(self, _reg: int, _name: int) -> int:
        return 0
