"""The devices that a worker waits at: each brings connections, which enter by the same door as all others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from wireherd.errors import ConnectError
from wireherd.obs.log import get_logger
from wireherd.transport import Address
from wireherd.transport.device import DeviceListener

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from wireherd.worker.settings import WorkerSettings

log = get_logger(__name__)


def open_devices(
    settings: WorkerSettings, loop: asyncio.AbstractEventLoop, admit: Callable[[socket.socket, str], None]
) -> list[DeviceListener]:
    """Wait at every device of the settings; give them back to `close_devices`.

    Args:
        settings: which devices.
        loop: where `admit` is called.
        admit: takes a connection that came over a device, and the device's name.

    Raises:
        ConnectError: there is no such device, it is none, or another process has it.
    """

    def deliver(device: str, sock: socket.socket) -> None:
        try:
            loop.call_soon_threadsafe(admit, sock, device)
        except RuntimeError:  # the worker has ended
            sock.close()

    opened: list[DeviceListener] = []
    try:
        for host in settings.device_hosts:
            opened.append(DeviceListener(Address.parse(host), partial(deliver, host), partial(_told, host)))
    except ConnectError as error:
        close_devices(opened)
        raise ConnectError(f"cannot listen on {host}: {error}") from error
    return opened


def close_devices(devices: list[DeviceListener]) -> None:
    """Say goodbye to whoever is at the other ends, and give the devices back."""
    for device in devices:
        device.close()


def _told(host: str, reason: str) -> None:
    log.warning("nobody can come over %s any more: %s", host, reason)
