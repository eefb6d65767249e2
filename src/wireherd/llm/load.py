"""What loading a model needs before and after libllama: checks, options for it, and words for what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireherd.errors import ModelError, UsageError
from wireherd.ggml.enums import FlashAttention, SplitMode
from wireherd.ggml.llama import ContextOptions, ModelOptions
from wireherd.llm import gguf, placement
from wireherd.llm.options import FLASH_ATTENTION, default_threads
from wireherd.obs.log import get_logger
from wireherd.session.options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wireherd.errors import WireherdError
    from wireherd.ggml.library import Library
    from wireherd.llm.device import OffloadDevice
    from wireherd.llm.gguf import GgufHeader
    from wireherd.llm.options import LlamaOptions
    from wireherd.llm.placement import Share

_log = get_logger(__name__)

#: llama.cpp's words when there was no room
_NO_ROOM = ("alloc", "memory", "buffer")


def read_headers(lib: Library, paths: Sequence[Path]) -> list[GgufHeader]:
    """Read and check the headers of all files of a model.

    Raises:
        ModelError: one is damaged or cut short.
    """
    headers = [gguf.read_header(path) for path in paths]
    for header in headers:
        gguf.check_whole(header, lib.type_sizes())
    return headers


def plan(
    lib: Library, options: LlamaOptions, headers: Sequence[GgufHeader], devices: Sequence[OffloadDevice]
) -> list[Share]:
    """Say what each device will hold, and refuse what cannot fit.

    Raises:
        UsageError: more shares than devices.
        ModelError: the weights do not fit the workers; each is named with what it needs and has.
    """
    if options.tensor_split and len(options.tensor_split) > len(devices):
        raise UsageError(f"-ts has {len(options.tensor_split)} shares for {len(devices)} devices")
    divide = placement.tensor_shares if options.split_mode == "tensor" else placement.shares
    shares = divide(
        headers,
        lib.type_sizes(),
        [device.room for device in devices],
        n_gpu_layers=options.n_gpu_layers,
        tensor_split=options.tensor_split,
    )
    for share in shares:
        _log.info("%s", share)
    remote = [share for share, device in zip(shares, devices, strict=True) if device.remote]
    reason = placement.too_small(remote)
    moved = options.override_rules or options.n_cpu_moe  # weights lie elsewhere: then libllama shall find out
    if reason and not moved:
        raise ModelError(f"{options.path.name} does not fit: {reason}")
    return shares


def client_options(options: LlamaOptions) -> ClientOptions:
    """How the workers of a model are treated."""
    return ClientOptions(
        stock_timeout_s=options.stock_timeout_s,
        set_tensor=options.set_tensor,
        graph_cache=options.graph_cache,
        graph_cache_policy=options.graph_cache_policy,
    )


def model_options(
    options: LlamaOptions,
    devices: Sequence[OffloadDevice],
    overrides: Sequence[tuple[str, int]],
    on_progress: Callable[[float], bool],
) -> ModelOptions:
    """Options for libllama's loader."""
    return ModelOptions(
        n_gpu_layers=options.n_gpu_layers if devices else 0,
        devices=[device.pointer for device in devices],
        split_mode=SplitMode.TENSOR if options.split_mode == "tensor" else SplitMode.LAYER,
        tensor_split=options.tensor_split,
        use_mmap=options.mmap,
        use_extra_bufts=options.repack,
        overrides=overrides,
        progress=on_progress,
    )


def context_options(options: LlamaOptions) -> ContextOptions:
    """Options for libllama's context."""
    threads = options.threads or default_threads()
    return ContextOptions(
        n_ctx=options.n_ctx,
        n_batch=options.n_batch,
        n_ubatch=options.n_ubatch,
        n_threads=threads,
        n_threads_batch=options.threads_batch or threads,
        flash_attn=_flash_attention(options),
        type_k=options.type_k,
        type_v=options.type_v,
        swa_full=options.swa_full,
    )


def _flash_attention(options: LlamaOptions) -> FlashAttention:
    """What libllama is told; it splits tensors with flash attention only, and does not turn it on by itself."""
    return FlashAttention.ENABLED if options.split_mode == "tensor" else FLASH_ATTENTION[options.flash_attn]


def explained(options: LlamaOptions, shares: Sequence[Share], error: WireherdError) -> ModelError:
    """Turn a failure of libllama into one that says how much room there was, if that may be the reason."""
    text = str(error)
    if not shares or not any(word in text.lower() for word in _NO_ROOM):
        return ModelError(text)
    rooms = ", ".join(
        f"{share.device.name}: {placement.mib(share.weight_bytes)} MiB of weights, "
        f"{placement.mib(share.device.memory_free)} MiB free"
        for share in shares
    )
    return ModelError(f"{options.path.name} with a context of {options.n_ctx} tokens does not fit ({rooms})")
