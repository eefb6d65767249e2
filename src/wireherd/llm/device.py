"""Which devices a model may lie on: those of the workers first, then this machine's GPUs, as llama.cpp orders them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wireherd.errors import UsageError
from wireherd.ggml.enums import DeviceType
from wireherd.llm.placement import DeviceRoom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.client.device import RemoteDevice
    from wireherd.ggml.handles import NativeDevice
    from wireherd.ggml.library import Library


@dataclass(frozen=True, slots=True)
class OffloadDevice:
    """A device as libllama gets it.

    Attributes:
        name: how the user names it.
        pointer: address of its `ggml_backend_device`.
        buffer_type: address of its `ggml_backend_buffer_type`; `buffer_name` is its name.
        remote: whether it is a worker's.
        room: its memory when it was looked at.
    """

    name: str
    pointer: int
    buffer_type: int
    remote: bool
    room: DeviceRoom
    buffer_name: str


def _of_worker(device: RemoteDevice) -> OffloadDevice:
    title = f"worker {device.endpoint.name} ({device.name})"
    kind, room = device.buffer_type, DeviceRoom(title, *device.memory())
    return OffloadDevice(device.name, device.pointer, kind.pointer, True, room, kind.name)


def _of_library(device: NativeDevice) -> OffloadDevice:
    room = DeviceRoom(device.name, *device.memory())
    kind = device.buffer_type()
    return OffloadDevice(device.name, device.ptr, kind.ptr, False, room, kind.name)


def local_gpus(lib: Library) -> list[NativeDevice]:
    """Devices of this machine that llama.cpp would offload to: GPUs, or else integrated ones."""
    devices = lib.devices()
    return [device for device in devices if device.type == DeviceType.GPU] or [
        device for device in devices if device.type == DeviceType.IGPU
    ]


def choose_devices(
    lib: Library, remote: Sequence[RemoteDevice], *, names: Sequence[str] | None, only: int | None
) -> list[OffloadDevice]:
    """Pick the devices to offload to, in order.

    Args:
        lib: The loaded library.
        remote: Devices of the workers.
        names: What the user asked for; None takes all, `("none",)` and an empty list no device at all.
        only: Number of the one device to use of these; None is all.

    Raises:
        UsageError: there is no such device.
    """
    found = [_of_worker(device) for device in remote] + [_of_library(device) for device in local_gpus(lib)]
    if names is not None:
        wanted = [name for name in names if name.lower() != "none"]
        by_name = {device.name.lower(): device for device in found}
        unknown = next((name for name in wanted if name.lower() not in by_name), None)
        if unknown is not None:
            known = ", ".join(device.name for device in found) or "none but the CPU"
            raise UsageError(f"there is no device {unknown}: there are {known}")
        found = [by_name[name.lower()] for name in wanted]
    if only is not None and (found or only):
        if not 0 <= only < len(found):
            raise UsageError(f"-mg {only} names no device: there are {len(found)}, counted from 0")
        found = [found[only]]
    return found
