"""The registry of a cluster: the list of its devices, as `ggml_backend_reg` (ggml-backend-impl.h).

It is never registered with ggml: libllama gets the devices themselves, so two clusters can live in one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireherd.ggml import memory, vtable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.client.device import RemoteDevice
    from wireherd.ggml.library import Library

_NAME = b"RPC\0"


class Registry:
    """Owner of the `ggml_backend_reg` struct; its methods are the slots."""

    def __init__(self, lib: Library, on_error: vtable.OnError) -> None:
        self.devices: Sequence[RemoteDevice] = ()
        self._struct = lib.abi.Reg()
        self._struct.api_version = lib.api
        self._struct.iface = vtable.bind(lib.abi.RegInterface, self, on_error=on_error)
        #: address of the struct
        self.pointer = memory.address_of(self._struct)

    def get_name(self, _reg: int) -> int:
        """`RPC`, as the stock backend is called."""
        return memory.address_of(_NAME)

    def get_device_count(self, _reg: int) -> int:
        """How many devices the cluster has."""
        return len(self.devices)

    def get_device(self, _reg: int, index: int) -> int:
        """Address of a device's struct."""
        return self.devices[index].pointer

    def get_proc_address(self, _reg: int, _name: int) -> int:
        """Nothing is offered by name: no split buffers, no threads to set, no collectives."""
        return 0
