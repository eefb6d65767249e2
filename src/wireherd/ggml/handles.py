"""Owners of native objects: device, buffer type, buffer, backend. Each owner that must free has `close()`.

Nothing here checks what a tensor struct says: ggml asserts (and so aborts the process) or reads out of bounds on a
wrong one, so callers prove offsets, sizes and pointers first.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

from wireherd.errors import GgmlFailed
from wireherd.ggml import memory
from wireherd.ggml.enums import BufferUsage, Caps
from wireherd.ggml.functions import address, prototype
from wireherd.ggml.structs import POINTER_T, InitParams

if TYPE_CHECKING:
    from wireherd.ggml.library import Library


class Switch:
    """An abort flag that C polls without entering Python.

    ggml asks an abort callback `bool (*)(void *)` after every node. A Python callback there would take the interpreter
    lock each time; `ggml_get_no_alloc` has the very same shape, so a `ggml_context` serves as the flag and
    `ggml_set_no_alloc` as the switch.
    """

    def __init__(self, lib: Library) -> None:
        self._c = lib.c
        #: what to pass as the abort callback and as its data
        self.callback = address(self._c.ggml_get_no_alloc)
        self.data: int = self._c.ggml_init(InitParams(1024, 0, False))
        if not self.data:
            raise GgmlFailed("ggml could not make a context for an abort flag")
        self._lock = threading.Lock()

    def set(self, value: bool) -> None:
        """Turn the flag on or off; safe from any thread, also after `close`."""
        with self._lock:
            if self.data:
                self._c.ggml_set_no_alloc(self.data, value)

    @property
    def is_set(self) -> bool:
        """Whether the flag is on."""
        with self._lock:
            return bool(self.data) and bool(self._c.ggml_get_no_alloc(self.data))

    def close(self) -> None:
        """Free the flag; whoever polls it must be gone."""
        with self._lock:
            if self.data:
                self._c.ggml_free(self.data)
                self.data = 0


class NativeBuffer:
    """A buffer on a native device."""

    def __init__(self, lib: Library, ptr: int) -> None:
        self._c = lib.c
        #: address of the `ggml_backend_buffer`; 0 once closed
        self.ptr = ptr
        #: where its bytes begin: memory of this process if `is_host`, else whatever the device calls an address
        self.base: int = self._c.ggml_backend_buffer_get_base(ptr)
        self.size: int = self._c.ggml_backend_buffer_get_size(ptr)
        self.is_host: bool = self._c.ggml_backend_buffer_is_host(ptr)

    def clear(self, value: int) -> None:
        """Fill the whole buffer with one byte value."""
        self._c.ggml_backend_buffer_clear(self.ptr, value)

    def set_usage(self, usage: BufferUsage) -> None:
        """Tell ggml what the buffer is for."""
        self._c.ggml_backend_buffer_set_usage(self.ptr, usage)

    def init_tensor(self, tensor: int) -> None:
        """Let the buffer prepare a tensor (address of its struct) that lies in it.

        Raises:
            GgmlFailed: the backend refused the tensor.
        """
        status = self._c.ggml_backend_buffer_init_tensor(self.ptr, tensor)
        if status:
            raise GgmlFailed(f"ggml could not initialise a tensor (status {status})")

    def view(self) -> memoryview:
        """All of the buffer's bytes; only for host memory. It must not be used after `close`."""
        if not self.is_host:
            raise GgmlFailed("this buffer's memory belongs to its device and cannot be looked at")
        return memory.view(self.base, self.size)

    def tensor_set(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Write `size` bytes from `data` into the tensor at `offset` bytes from its start."""
        self._c.ggml_backend_tensor_set(tensor, data, offset, size)

    def tensor_get(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Read `size` bytes of the tensor at `offset` into `data`."""
        self._c.ggml_backend_tensor_get(tensor, data, offset, size)

    def tensor_memset(self, tensor: int, value: int, offset: int, size: int) -> None:
        """Fill `size` bytes of the tensor at `offset` with a byte value."""
        self._c.ggml_backend_tensor_memset(tensor, value, offset, size)

    def tensor_copy(self, source: int, destination: int) -> None:
        """Copy one tensor to another of the same layout, on any two native devices."""
        self._c.ggml_backend_tensor_copy(source, destination)

    def close(self) -> None:
        """Free the buffer."""
        if self.ptr:
            self._c.ggml_backend_buffer_free(self.ptr)
            self.ptr = self.base = self.size = 0


class NativeBufferType:
    """A kind of memory; owned by ggml, never freed."""

    def __init__(self, lib: Library, ptr: int) -> None:
        self._lib = lib
        self._c = lib.c
        #: address of the `ggml_backend_buffer_type`
        self.ptr = ptr
        self.name: str = (self._c.ggml_backend_buft_name(ptr) or b"").decode("utf-8", "replace")
        self.alignment: int = self._c.ggml_backend_buft_get_alignment(ptr)
        #: largest single buffer in bytes; 2**64 - 1 if there is no limit
        self.max_size: int = self._c.ggml_backend_buft_get_max_size(ptr)
        self.is_host: bool = self._c.ggml_backend_buft_is_host(ptr)

    def alloc(self, size: int) -> NativeBuffer:
        """Allocate a buffer of `size` bytes.

        Raises:
            GgmlFailed: there is no room.
        """
        ptr = self._c.ggml_backend_buft_alloc_buffer(self.ptr, size)
        if not ptr:
            raise GgmlFailed(f"{self.name} has no room for {size} bytes")
        return NativeBuffer(self._lib, ptr)

    def alloc_size(self, tensor: int) -> int:
        """Bytes a tensor (address of its struct) needs in such a buffer."""
        size: int = self._c.ggml_backend_buft_get_alloc_size(self.ptr, tensor)
        return size

    @property
    def plain_alloc_size(self) -> bool:
        """Whether every tensor needs just `ggml_nbytes`: the type has no slot that says otherwise."""
        kind = self._lib.abi.BufferTypeInterface
        slots = [name for name in ("get_alloc_size", "get_alloc_size_n") if hasattr(kind, name)]
        return not any(memory.read_u64(self.ptr + getattr(kind, name).offset) for name in slots)


class NativeBackend:
    """A stream of work on a native device."""

    def __init__(self, lib: Library, ptr: int, reg: int) -> None:
        self._c = lib.c
        #: address of the `ggml_backend`; 0 once closed
        self.ptr = ptr
        self._reg = reg
        self._switch: Switch | None = None
        setter = self._procedure(
            "ggml_backend_set_abort_callback", ctypes.CFUNCTYPE(None, POINTER_T, POINTER_T, POINTER_T)
        )
        if setter is not None:
            self._switch = Switch(lib)
            setter(ptr, self._switch.callback, self._switch.data)

    def _procedure(self, name: str, kind: Any) -> Any:
        found = self._c.ggml_backend_reg_get_proc_address(self._reg, name.encode())
        return kind(found) if found else None

    @property
    def can_abort(self) -> bool:
        """Whether `abort` does anything here: devices other than CPU and Metal have no such hook."""
        return self._switch is not None

    def set_threads(self, n: int) -> None:
        """How many threads compute; devices without such a setting ignore it."""
        setter = self._procedure("ggml_backend_set_n_threads", ctypes.CFUNCTYPE(None, POINTER_T, ctypes.c_int))
        if setter is not None:
            setter(self.ptr, n)

    def compute(self, graph: int) -> int:
        """Run a graph (address) to its end; a `Status` as an int, never an exception. Releases the interpreter lock."""
        status: int = self._c.ggml_backend_graph_compute(self.ptr, graph)
        return status

    def synchronize(self) -> None:
        """Wait until all work given to the backend is done."""
        self._c.ggml_backend_synchronize(self.ptr)

    def abort(self) -> None:
        """Stop the running graph at its next node (it returns `Status.ABORTED`) and all later ones; from any thread."""
        if self._switch is not None:
            self._switch.set(True)

    def clear_abort(self) -> None:
        """Let graphs run again."""
        if self._switch is not None:
            self._switch.set(False)

    def close(self) -> None:
        """Free the backend."""
        if self.ptr:
            self._c.ggml_backend_free(self.ptr)
            self.ptr = 0
            if self._switch is not None:
                self._switch.close()


class NativeDevice:
    """A device of the loaded library; owned by ggml, never freed."""

    def __init__(self, lib: Library, ptr: int) -> None:
        self._lib = lib
        self._c = lib.c
        #: address of the `ggml_backend_device`
        self.ptr = ptr
        self.reg: int = self._c.ggml_backend_dev_backend_reg(ptr)
        self.name: str = (self._c.ggml_backend_dev_name(ptr) or b"").decode("utf-8", "replace")
        self.description: str = (self._c.ggml_backend_dev_description(ptr) or b"").decode("utf-8", "replace")
        #: a `DeviceType`, as an int: a newer library may have more
        self.type: int = self._c.ggml_backend_dev_type(ptr)
        self._buffer_type = NativeBufferType(lib, self._c.ggml_backend_dev_buffer_type(ptr))
        self._supports = self._c.ggml_backend_dev_supports_op

    @property
    def caps(self) -> Caps:
        """What the device can do."""
        props = self._lib.abi.DeviceProps()
        self._c.ggml_backend_dev_get_props(self.ptr, ctypes.addressof(props))
        caps = Caps(0)
        if props.caps_async:
            caps |= Caps.ASYNC
        if props.caps_host_buffer:
            caps |= Caps.HOST_BUFFER
        if props.caps_events:
            caps |= Caps.EVENTS
        if self._buffer_type.plain_alloc_size:
            caps |= Caps.PLAIN_ALLOC_SIZE
        return caps

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes, as the device tells them."""
        room = (ctypes.c_size_t * 2)()
        where = ctypes.addressof(room)
        self._c.ggml_backend_dev_memory(self.ptr, where, where + 8)
        return int(room[0]), int(room[1])

    def buffer_type(self) -> NativeBufferType:
        """The device's default memory."""
        return self._buffer_type

    def extra_buffer_types(self) -> list[NativeBufferType]:
        """More kinds of memory with other weight layouts (CPU_REPACK, AMX), best first; often none."""
        getter = self.procedure("ggml_backend_dev_get_extra_bufts", POINTER_T, POINTER_T)
        found: list[NativeBufferType] = []
        pointer = getter(self.ptr) if getter is not None else 0
        while pointer and (entry := memory.read_u64(pointer)):
            found.append(NativeBufferType(self._lib, entry))
            pointer += 8
        return found

    def supports_op(self, tensor: int) -> bool:
        """Whether the device has a kernel for this node (address of a complete struct). It validates nothing."""
        answer: bool = self._supports(self.ptr, tensor)
        return answer

    def procedure(self, name: str, result: Any, *arguments: Any) -> Any:
        """A function that the device's registry offers by name, with a ctypes signature; None if it has none."""
        found = self._c.ggml_backend_reg_get_proc_address(self.reg, name.encode())
        return prototype(found, result, *arguments) if found else None

    def init_backend(self) -> NativeBackend:
        """Start a stream of work.

        Raises:
            GgmlFailed: the device could not be initialised.
        """
        ptr = self._c.ggml_backend_dev_init(self.ptr, None)
        if not ptr:
            raise GgmlFailed(f"the device {self.name} could not be initialised")
        return NativeBackend(self._lib, ptr, self.reg)

    def __repr__(self) -> str:
        return f"<NativeDevice {self.name} ({self.description})>"
