"""The registry of a cluster: the list of its devices, as `ggml_backend_reg` (ggml-backend-impl.h).

It is never registered with ggml: libllama gets the devices themselves, so two clusters can live in one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireherd.client.comm import Collectives
from wireherd.ggml import memory, vtable
from wireherd.ggml.collectives import CollectiveFunctions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.client.device import RemoteDevice
    from wireherd.ggml.library import Library

_NAME = b"RPC\0"


class Registry:
    """Owner of the `ggml_backend_reg` struct; its methods are the slots."""

    def __init__(self, lib: Library, on_error: vtable.OnError) -> None:
        self.devices: Sequence[RemoteDevice] = ()
        #: the groups in which the devices add up tensors
        self.collectives = Collectives(lambda: self.devices)
        self._functions = CollectiveFunctions(self.collectives, on_error)
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

    def get_proc_address(self, _reg: int, name: int) -> int:
        """The three functions of collectives; nothing else is offered by name."""
        return self._functions.find(name)
