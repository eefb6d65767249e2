"""The devices a worker serves: which ones, their memory, and the stream of work each session has on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd.errors import GgmlFailed, InternalError, NoSuchDevice, UsageError
from wireherd.ggml.enums import DeviceType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.ggml import Library, NativeBackend, NativeDevice

_MEMINFO: Final = Path("/proc/meminfo")
#: kinds that run whole graphs of a model; accelerators such as BLAS know single operations only
_MAIN_KINDS: Final = (DeviceType.GPU, DeviceType.IGPU)


class Device:
    """One served device. Its backend, the stream of work, is made when the first graph comes.

    Attributes:
        index: number on the wire.
        native: ggml's device.
        buffer_type: its default memory.
        host: whether that memory is this process's own.
    """

    def __init__(self, index: int, native: NativeDevice, threads: int) -> None:
        self.index = index
        self.native = native
        self.buffer_type = native.buffer_type()
        self.host = self.buffer_type.is_host
        self._threads = threads
        self._backend: NativeBackend | None = None
        self._stopped = False

    @property
    def backend(self) -> NativeBackend:
        """The stream of work on this device.

        Raises:
            InternalError: the device could not be initialised.
        """
        if self._backend is None:
            try:
                self._backend = self.native.init_backend()
            except GgmlFailed as error:
                raise InternalError(str(error)) from error
            self._backend.set_threads(self._threads)
            if self._stopped:
                self._backend.abort()
        return self._backend

    def memory(self) -> tuple[int, int]:
        """Free and total bytes. For the CPU, what the system can still give; ggml calls all of it free."""
        free, total = self.native.memory()
        if self.host:
            available = available_memory()
            if available is not None:
                free = min(free, available) if free else available
        return free, total

    def stop(self) -> None:
        """Abort the running graph and all later ones; from any thread."""
        self._stopped = True
        if self._backend is not None:
            self._backend.abort()

    def close(self) -> None:
        """Free the backend."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None


class Devices:
    """All served devices, by their number on the wire.

    Args:
        lib: the library.
        names: which devices, in which order; None serves the GPUs, or the CPU where there is none.
        threads: CPU threads a session computes with; None uses all cores.

    Raises:
        UsageError: there is no device of that name.
    """

    def __init__(self, lib: Library, names: Sequence[str] | None, threads: int | None) -> None:
        count = threads or os.cpu_count() or 1
        self._devices = [Device(index, native, count) for index, native in enumerate(choose(lib, names))]

    def __len__(self) -> int:
        return len(self._devices)

    def get(self, index: int) -> Device:
        """The device of that number.

        Raises:
            NoSuchDevice: there is none.
        """
        if not 0 <= index < len(self._devices):
            raise NoSuchDevice(f"there is no device {index}: this worker has {len(self._devices)}")
        return self._devices[index]

    def stop(self) -> None:
        """Abort whatever runs, on every device; from any thread."""
        for device in self._devices:
            device.stop()

    def close(self) -> None:
        """Free the backends."""
        for device in self._devices:
            device.close()


def choose(lib: Library, names: Sequence[str] | None) -> list[NativeDevice]:
    """The native devices to serve; see `Devices`."""
    offered = lib.devices()
    if names is None:
        return [device for device in offered if device.type in _MAIN_KINDS] or [lib.cpu_device()]
    by_name = {device.name: device for device in offered}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise UsageError(f"there is no device {missing[0]}: this library offers {', '.join(by_name)}")
    return [by_name[name] for name in names]


def available_memory() -> int | None:
    """Bytes the system can hand out without swapping; None where it does not say (only Linux does)."""
    try:
        text = _MEMINFO.read_text("ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None
