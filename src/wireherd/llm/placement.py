"""Which layer lies on which device: llama.cpp's own rule, computed beforehand so that it can be shown and checked.

libllama places layers itself when it loads a model; what is computed here is the same assignment (`load_tensors` in
llama.cpp's `llama-model.cpp`): shares by `-ts`, or else by free memory, summed up and normalised; the last `-ngl`
layers, the output counted as one, are dealt out by them; everything before stays on the CPU.
"""

from __future__ import annotations

import bisect
import math
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wireherd.errors import UsageError
from wireherd.llm.gguf import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.llm.gguf import GgufHeader, TypeSizes

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """A device as placement sees it; sizes in bytes."""

    name: str
    memory_free: int
    memory_total: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one device holds: `layers` counts from 0, the output is not among them."""

    device: DeviceRoom
    layers: tuple[int, ...]
    has_output: bool
    weight_bytes: int

    def __str__(self) -> str:
        held = _ranges(self.layers) + (" and the output" if self.has_output else "")
        return (
            f"{self.device.name}: {held}, {mib(self.weight_bytes)} MiB of weights, "
            f"{mib(self.device.memory_free)} MiB free"
        )


def mib(size_bytes: int) -> int:
    """Whole mebibytes, rounded up."""
    return -(-size_bytes // _MIB)


def _ranges(layers: tuple[int, ...]) -> str:
    if not layers:
        return "no layers"
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {layers[0]} to {layers[-1]}"


def parse_tensor_split(text: str) -> tuple[float, ...]:
    """Read `-ts`: shares parted by `,` or `/`.

    Raises:
        UsageError: a share is no number or negative, or all are zero.
    """
    shares = []
    for word in text.replace("/", ",").split(","):
        try:
            share = float(word)
        except ValueError:
            raise UsageError(f"-ts takes numbers parted by , or / and {word.strip()!r} is none") from None
        if share < 0 or not math.isfinite(share):
            raise UsageError(f"-ts takes shares of zero and more, not {word.strip()}")
        shares.append(share)
    if not any(shares):
        raise UsageError("-ts needs at least one share above zero")
    return tuple(shares)


def _f32(value: float) -> float:
    """Round as C's float does: a border between two devices may hang on it."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def assign(n_layer: int, n_gpu_layers: int, shares: Sequence[float]) -> list[int | None]:
    """Device index of every layer and, at the end, of the output; None is the CPU.

    Args:
        n_layer: Number of layers of the model.
        n_gpu_layers: `-ngl`: how many of them, from the end and with the output as one more, leave the CPU.
        shares: One a device.
    """
    placed: list[int | None] = [None] * (n_layer + 1)
    total = 0.0
    sums = []
    for share in shares:
        total = _f32(total + share)
        sums.append(total)
    if not sums or total <= 0:
        return placed
    borders = [_f32(value / total) for value in sums]
    active = min(n_gpu_layers, n_layer + 1) if n_gpu_layers >= 0 else n_layer + 1
    start = n_layer + 1 - active
    for number in range(start, n_layer + 1):
        placed[number] = min(bisect.bisect_right(borders, _f32((number - start) / active)), len(borders) - 1)
    return placed


def shares(
    headers: Sequence[GgufHeader],
    sizes: TypeSizes,
    devices: Sequence[DeviceRoom],
    *,
    n_gpu_layers: int,
    tensor_split: Sequence[float] | None = None,
) -> list[Share]:
    """What each device will hold.

    Args:
        headers: Of all files of the model.
        sizes: Block length and block size in bytes of each ggml type.
        devices: In the order in which libllama gets them.
        n_gpu_layers: `-ngl`; below zero all.
        tensor_split: `-ts`; None is by free memory.
    """
    n_layer = headers[0].n_layer
    weights = list(tensor_split) if tensor_split else [float(device.memory_free) for device in devices]
    weights += [0.0] * (len(devices) - len(weights))
    placed = assign(n_layer, n_gpu_layers, weights[: len(devices)])
    held = [0] * len(devices)
    tied = True
    embedding = 0
    for header in headers:
        for tensor in header.tensors:
            size = tensor_bytes(tensor, sizes)
            layer = tensor.layer
            if layer is None and tensor.name.startswith("output"):
                tied = tied and tensor.name != "output.weight"
                layer = n_layer
            if tensor.name == "token_embd.weight":
                embedding = size
            home = placed[layer] if layer is not None and layer <= n_layer else None
            if home is not None:
                held[home] += size
    if tied and placed[n_layer] is not None:
        held[placed[n_layer] or 0] += embedding  # the output uses the input's embedding: it gets a copy of its own
    return [
        Share(
            device,
            tuple(layer for layer in range(n_layer) if placed[layer] == index),
            placed[n_layer] == index,
            held[index],
        )
        for index, device in enumerate(devices)
    ]


def tensor_shares(
    headers: Sequence[GgufHeader],
    sizes: TypeSizes,
    devices: Sequence[DeviceRoom],
    *,
    n_gpu_layers: int,
    tensor_split: Sequence[float] | None = None,
) -> list[Share]:
    """What each device will hold with `-sm tensor`: its part of every layer that leaves the CPU.

    libllama cuts by whole heads and blocks of rows, and norms are on every device: the bytes are a close guess.
    """
    if not devices:
        return []
    weights = list(tensor_split) if tensor_split else [float(device.memory_free) for device in devices]
    weights += [0.0] * (len(devices) - len(weights))
    total = sum(weights)
    (whole,) = shares(headers, sizes, [devices[0]], n_gpu_layers=n_gpu_layers, tensor_split=(1.0,))
    return [
        replace(whole, device=device, weight_bytes=math.ceil(whole.weight_bytes * weight / total) if total else 0)
        for device, weight in zip(devices, weights, strict=False)
    ]


def too_small(plan: Sequence[Share]) -> str | None:
    """One clause that names every device whose share of the weights does not fit, or None."""
    short = [share for share in plan if share.weight_bytes > share.device.memory_free]
    if not short:
        return None
    return " and ".join(
        f"{share.device.name} would need {mib(share.weight_bytes)} MiB for weights and has "
        f"{mib(share.device.memory_free)} MiB free"
        for share in short
    )
