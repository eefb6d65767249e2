"""What can compute, here and on workers, as plain records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wireherd import ggml
from wireherd.client.device import device_name
from wireherd.ggml.enums import DeviceType
from wireherd.llm import here
from wireherd.session.options import ClientOptions

if TYPE_CHECKING:
    from pathlib import Path

    from wireherd.client.device import RemoteDevice


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One device; `endpoint` and `protocol` are empty for this machine's, sizes are bytes."""

    endpoint: str
    protocol: str
    name: str
    description: str
    type: str
    memory_free: int
    memory_total: int

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name."""
        return asdict(self)


def _type_name(number: int | None) -> str:
    try:
        return DeviceType(number).name if number is not None else ""
    except ValueError:
        return str(number)


def _described(device: RemoteDevice) -> str:
    """What the worker says of it; a stock server says nothing."""
    return ": ".join(part for part in (device.facts.name, device.facts.description) if part)


def local(library: Path | str | None = None) -> list[DeviceRecord]:
    """Devices of this machine's native library.

    Raises:
        NativeError: it is missing or unknown.
    """
    return [
        DeviceRecord("", "", device.name, device.description, _type_name(device.type), *device.memory())
        for device in ggml.load(library).devices()
    ]


def remote(
    endpoint: str, library: Path | str | None = None, *, first: int = 0, stock_timeout_s: float = 300.0
) -> list[DeviceRecord]:
    """Devices of one worker.

    Args:
        endpoint: Its address.
        library: Native library; None is the default one.
        first: How many devices the workers named before it have: a session over all of them counts on.
        stock_timeout_s: Seconds to wait for a stock server.

    Raises:
        WorkerError: it cannot be reached, or refuses.
        VersionMismatch: it speaks a protocol this release does not know.
    """
    options = ClientOptions(stock_timeout_s=stock_timeout_s)
    cluster = here.connect(ggml.load(library), [endpoint], options, library=library)
    try:
        protocol = str(cluster.stats()[0]["protocol"])
        found = []
        for number, device in enumerate(cluster.devices, first):
            name, described, kind = device_name(number), _described(device), _type_name(device.type)
            found.append(DeviceRecord(endpoint, protocol, name, described, kind, *device.memory()))
        return found
    finally:
        cluster.close()
