"""Commands about devices; most need no session and are answered by probes too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import BadRequest, UnsupportedOp
from wireherd.ggml.enums import Caps
from wireherd.protocol import tensor
from wireherd.protocol.messages_herd import DeviceInfoRequest, DeviceInfoResponse
from wireherd.protocol.messages_stock import (
    DeviceCountRequest,
    DeviceCountResponse,
    GetAlignmentRequest,
    GetAlignmentResponse,
    GetAllocSizeRequest,
    GetAllocSizeResponse,
    GetDeviceMemoryRequest,
    GetDeviceMemoryResponse,
    GetMaxSizeRequest,
    GetMaxSizeResponse,
)
from wireherd.protocol.table import Opcode
from wireherd.worker.facts import SOURCES
from wireherd.worker.records import tensor_span, tensor_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wireherd.protocol.dialect import Dialect
    from wireherd.protocol.tensor import TensorRecord
    from wireherd.worker.devices import Device
    from wireherd.worker.state import State

    Part = tuple[TensorRecord, int, Sequence[int]]

_U64: Final = (1 << 64) - 1


def device_count(state: State, message: DeviceCountRequest) -> DeviceCountResponse:
    """How many devices are served."""
    del message
    return DeviceCountResponse(len(state.devices))


def get_alignment(state: State, message: GetAlignmentRequest) -> GetAlignmentResponse:
    """How tensors are aligned."""
    return GetAlignmentResponse(state.devices.get(message.device).buffer_type.alignment)


def get_max_size(state: State, message: GetMaxSizeRequest) -> GetMaxSizeResponse:
    """The largest single buffer."""
    return GetMaxSizeResponse(min(state.devices.get(message.device).buffer_type.max_size, _U64))


def _memory(state: State, device: Device) -> tuple[int, int]:
    """What the device has and the owner allows, in bytes: free and total."""
    free, total = device.memory()
    limit, left = state.settings.memory_limit, state.account.free()
    if left is not None:
        free = min(free, max(left, 0))
    if limit is not None:
        total = min(total, limit)
    return free, max(total, free)


def get_device_memory(state: State, message: GetDeviceMemoryRequest) -> GetDeviceMemoryResponse:
    """Free and total memory."""
    return GetDeviceMemoryResponse(*_memory(state, state.devices.get(message.device)))


def device_info(state: State, message: DeviceInfoRequest) -> DeviceInfoResponse:
    """What a device is."""
    device = state.devices.get(message.device)
    native = device.native
    free, total = _memory(state, device)
    return DeviceInfoResponse(
        name=native.name,
        description=native.description,
        type=int(native.type),
        caps=int(native.caps),
        memory_free=free,
        memory_total=total,
        alignment=device.buffer_type.alignment,
        max_size=min(device.buffer_type.max_size, _U64),
    )


def get_alloc_size(state: State, message: GetAllocSizeRequest) -> GetAllocSizeResponse:
    """How many bytes a tensor needs; devices other than the CPU may pad, and may look at the sources."""
    device = state.devices.get(message.device)
    dialect = state.dialect
    if dialect is None:
        raise BadRequest("no dialect was agreed on")
    record, number, strides, nbytes = _read(state, dialect, message.tensor)
    if Caps(device.native.caps) & Caps.PLAIN_ALLOC_SIZE:
        return GetAllocSizeResponse(nbytes)
    width = dialect.tensor_dtype.itemsize
    parts: list[Part | None] = [(record, number, strides)]
    for index in range(SOURCES):
        raw = message.srcs[index * width : (index + 1) * width]
        parts.append(_read(state, dialect, raw)[:3] if any(raw) else None)
    address = state.scratch.unplaced(_op(state, record, parts), parts)
    return GetAllocSizeResponse(max(device.buffer_type.alloc_size(address), nbytes))


def _read(state: State, dialect: Dialect, raw: bytes) -> tuple[TensorRecord, int, Sequence[int], int]:
    record = tensor.unpack(raw, dialect)
    number = tensor_type(state.types, state.type_numbers, record)
    nbytes, strides = tensor_span(state.types, number, record, narrow=not dialect.herd)
    return record, number, strides, nbytes


def _op(state: State, record: TensorRecord, parts: Sequence[Part | None]) -> int:
    """The library's number of the tensor's op, if it may be run here with the sources that came along."""
    number = state.op_number(record.op)
    if number == state.table.none:
        return number
    rule = state.table.rules[number] if 0 <= number < len(state.table.rules) else None
    if rule is None:
        raise UnsupportedOp(f"this worker does not take {state.table.name(number)}")
    if any(part is None for part in parts[1 : 1 + rule.required]):
        # a client that sends no sources asks about the tensor alone
        return state.table.none
    return number


HANDLERS: Final[dict[Opcode, Callable[[State, Any], Any]]] = {
    Opcode.DEVICE_COUNT: device_count,
    Opcode.GET_ALIGNMENT: get_alignment,
    Opcode.GET_MAX_SIZE: get_max_size,
    Opcode.GET_DEVICE_MEMORY: get_device_memory,
    Opcode.GET_ALLOC_SIZE: get_alloc_size,
    Opcode.DEVICE_INFO: device_info,
}
