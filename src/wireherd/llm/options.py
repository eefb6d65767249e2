"""What a session can be told: one frozen record under llama.cpp's names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd.errors import UsageError
from wireherd.ggml.enums import KV_TYPES, FlashAttention
from wireherd.protocol.kept import MAX_GRAPHS
from wireherd.session.options import GRAPH_CACHE_POLICIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.llm.draft_options import DraftOptions

#: names of the types that a KV cache may have
CACHE_TYPES: Final = tuple(KV_TYPES)
#: values of -fa
FLASH_ATTENTION: Final = {"on": FlashAttention.ENABLED, "off": FlashAttention.DISABLED, "auto": FlashAttention.AUTO}
#: values of --set-tensor
SET_TENSOR: Final = ("async", "sync")
#: values of -sm
SPLIT_MODES: Final = ("none", "layer", "tensor")
_FEW_THREADS: Final = 4
#: what llama.cpp's own numbers hold; a larger one would be cut off without a word
_I32: Final = (1 << 31) - 1
#: more threads than this end the process inside ggml instead of running slowly
_MAX_THREADS: Final = 1024
#: weights of experts, shared ones not among them (`LLM_FFN_EXPS_REGEX` in llama.cpp's common.h)
EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
#: layers that libllama has room for (`LLAMA_MAX_LAYERS`); more rules than layers are of no use
_MAX_LAYERS: Final = 512
#: flag, least and most value of each number
_RANGES: Final = {
    "n_ctx": ("-c", 0, _I32),
    "n_batch": ("-b", 1, _I32),
    "n_ubatch": ("-ub", 1, _I32),
    "n_gpu_layers": ("-ngl", -_I32, _I32),
    "n_cpu_moe": ("-ncmoe", 0, _MAX_LAYERS),
    "graph_cache": ("--graph-cache", 0, MAX_GRAPHS),
    "threads": ("-t", 1, _MAX_THREADS),
    "threads_batch": ("-tb", 1, _MAX_THREADS),
}


def default_threads() -> int:
    """Number of threads that llama.cpp would choose: all of up to four cores, half of more."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or _FEW_THREADS
    return count if count <= _FEW_THREADS else count // 2


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """What to load, where, and how to run it; defaults are llama.cpp's unless noted.

    Attributes:
        model: GGUF file, or the first of a split model.
        rpc: addresses of workers, ours or stock.
        devices: names of devices to use, in this order; None: those of the workers, then local GPUs; empty: CPU only.
        n_gpu_layers: layers that leave the CPU, from the last one on, the output counted as one; below zero all.
        split_mode: "layer" over all devices, "tensor" every layer over all of them, "none" for `main_gpu` alone.
        tensor_split: share of each device; None is by free memory.
        tensor_overrides: rules `regex=device` on tensor names, a device's buffer type being understood too.
        cpu_moe: leave the experts of all layers on the CPU; `n_cpu_moe`: those of the first layers.
        n_ctx: tokens of context, 0 is what the model was trained with (llama.cpp's default; 4096 is ours).
        threads: CPU threads here; None by the machine. `threads_batch`: for prompts; None is `threads`.
        flash_attn: "on", "off" or "auto".
        type_k: type of cached keys; `type_v` of cached values.
        repack: let the local CPU keep weights in faster layouts, which round differently from a worker's.
        mmap: map the file instead of reading it.
        swa_full: keep all of the cache of sliding-window layers, so that a conversation can go on without
            decoding all of it again.
        ggml: native library; None is the default one.
        stock_timeout_s: seconds to wait for a stock server.
        set_tensor: "sync" waits for an answer to each write to a worker, as before protocol 2.0; only to measure it.
        graph_cache: graphs that each device of one of our workers is asked to keep, 0 is none.
        graph_cache_policy: what a full cache does: "lru" forgets the graph used longest ago, "reset" all.
        draft: how tokens are drafted for speculative decoding; None: not at all.
    """

    model: Path | str
    rpc: Sequence[str] = ()
    devices: Sequence[str] | None = None
    n_gpu_layers: int = -1
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: Sequence[float] | None = None
    tensor_overrides: Sequence[str] = ()
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    n_ctx: int = 4096
    n_batch: int = 2048
    n_ubatch: int = 512
    threads: int | None = None
    threads_batch: int | None = None
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    repack: bool = True
    mmap: bool = True
    swa_full: bool = False
    ggml: Path | str | None = None
    stock_timeout_s: float = 300.0
    set_tensor: str = "async"
    graph_cache: int = 1024
    graph_cache_policy: str = "lru"
    draft: DraftOptions | None = None

    @property
    def path(self) -> Path:
        """The model file."""
        return Path(self.model).expanduser()

    @property
    def override_rules(self) -> tuple[str, ...]:
        """Rules `regex=device` on tensor names, those of `cpu_moe` behind those of `tensor_overrides`."""
        return (*self.tensor_overrides, *([f"{EXPERTS}=CPU"] if self.cpu_moe else ()))

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            UsageError: a value out of range or unknown.
        """
        if self.split_mode not in SPLIT_MODES:
            raise UsageError(f"the split mode must be one of {', '.join(SPLIT_MODES)}, not {self.split_mode}")
        if self.set_tensor not in SET_TENSOR:
            raise UsageError(f"--set-tensor must be one of {', '.join(SET_TENSOR)}, not {self.set_tensor}")
        if self.graph_cache_policy not in GRAPH_CACHE_POLICIES:
            raise UsageError(
                f"--graph-cache-policy must be one of {', '.join(GRAPH_CACHE_POLICIES)}, not {self.graph_cache_policy}"
            )
        if self.flash_attn not in FLASH_ATTENTION:
            raise UsageError(f"flash attention must be one of {', '.join(FLASH_ATTENTION)}, not {self.flash_attn}")
        if self.split_mode == "tensor" and self.flash_attn == "off":
            raise UsageError("-sm tensor needs flash attention: leave out -fa off")
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in CACHE_TYPES:
                raise UsageError(f"{getattr(self, name)} is no type for a KV cache: choose {', '.join(CACHE_TYPES)}")
        for name, (flag, least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UsageError(f"{flag} must be between {least} and {most}, not {value}")
        if self.draft is not None:
            self.draft.check()
        if self.main_gpu and self.split_mode != "none":
            raise UsageError("-mg names the one device of -sm none")
