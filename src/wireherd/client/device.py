"""The device vtable: one device of one worker, as libllama sees it (`ggml_backend_device_i`).

The caps say neither async nor events, although the async slots are filled: libllama would otherwise keep four copies
of every input to overlap what our ordered stream overlaps anyway. `mmap_support` is true because a tensor's bytes may
come straight out of the mapped file: they are copied or sent before the slot returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireherd.client.backend import RemoteBackends
from wireherd.client.buffer_type import buffer_type_for
from wireherd.client.support import OpSupport
from wireherd.ggml import memory, vtable
from wireherd.ggml.enums import DeviceType

if TYPE_CHECKING:
    from wireherd.client.endpoint import DeviceFacts, Endpoint
    from wireherd.ggml.library import Library


def device_name(number: int) -> str:
    """Name of device `number` of a cluster: `RPC0`, `RPC1`, ... over all workers, as llama.cpp numbers them."""
    return f"RPC{number}"


class RemoteDevice:
    """Owner of the `ggml_backend_device` struct; methods named `get_...`, `supports_...`, `init_...` are the slots."""

    def __init__(self, lib: Library, endpoint: Endpoint, facts: DeviceFacts, number: int, registry: int) -> None:
        """Make device `number` of the cluster, for the registry struct at that address."""
        self._lib = lib
        self.endpoint = endpoint
        self.facts = facts
        self.name = device_name(number)
        told = ", ".join(part for part in (facts.name, facts.description) if part)
        #: the endpoint, and what its worker says of the device
        self.description = f"{endpoint.name}: {told}" if told else endpoint.name
        self._c_name = self.name.encode() + b"\0"
        self._c_description = self.description.encode("utf-8", "replace").replace(b"\0", b" ") + b"\0"
        self._supports = OpSupport(lib, endpoint, facts)
        self.buffer_type = buffer_type_for(lib, endpoint, facts)
        self.backends = RemoteBackends(lib, endpoint, facts.index, self._c_name)
        self._struct = lib.abi.Device()
        self._struct.iface = vtable.bind(
            lib.abi.DeviceInterface, self, on_error=endpoint.on_error, failures={"supports_op": True}
        )
        self._struct.reg = registry
        #: address of the struct: what `llama_model_params.devices` takes
        self.pointer = memory.address_of(self._struct)
        self.buffer_type.belongs_to(self.pointer)

    @property
    def type(self) -> int | None:
        """The `DeviceType` on its worker; None if the worker does not tell."""
        return self.facts.type

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes, asked now; zeros after a failure.

        Raises:
            WorkerError: the worker failed just now.
        """
        return self.endpoint.memory_of(self.facts.index)

    def __repr__(self) -> str:
        return f"<RemoteDevice {self.name} ({self.description})>"

    # slots

    def get_name(self, _device: int) -> int:
        """Address of the name."""
        return memory.address_of(self._c_name)

    def get_description(self, _device: int) -> int:
        """Address of the description."""
        return memory.address_of(self._c_description)

    def get_memory(self, _device: int, free: int, total: int) -> None:
        """Store free and total bytes at two addresses."""
        memory.write_u64(free, 0)
        memory.write_u64(total, 0)
        now = self.memory()
        memory.write_u64(free, now[0])
        memory.write_u64(total, now[1])

    def get_type(self, _device: int) -> int:
        """GPU, as the stock client says: that is what libllama offloads to."""
        return DeviceType.GPU

    def get_props(self, _device: int, props: int) -> None:
        """Fill a `ggml_backend_dev_props`."""
        told = self._lib.abi.DeviceProps.from_address(props)
        told.name = memory.address_of(self._c_name)
        told.description = memory.address_of(self._c_description)
        told.memory_free = told.memory_total = 0
        told.type = DeviceType.GPU
        told.device_id = 0
        told.caps_async = False
        told.caps_host_buffer = False
        told.caps_buffer_from_host_ptr = False
        told.caps_events = False
        told.caps_mmap_support = True
        told.memory_free, told.memory_total = self.memory()

    def init_backend(self, _device: int, _params: int) -> int:
        """Address of a new backend; NULL once the worker has failed."""
        return self.backends.make(self.pointer) if self.endpoint.alive else 0

    def get_buffer_type(self, _device: int) -> int:
        """Address of the buffer type."""
        return self.buffer_type.pointer

    def supports_op(self, _device: int, node: int) -> bool:
        """Whether the worker's device can run a node."""
        return self._supports(node)

    def supports_buft(self, _device: int, buffer_type: int) -> bool:
        """Only memory of this very device."""
        return buffer_type == self.buffer_type.pointer
