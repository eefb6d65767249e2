"""Structs of llama.h by build, and the proof that a library has them.

Source: llama.h of b11548, as the C declarations in llama-cpp-py-sync 0.11548 give it (the Windows wheel's are equal).
llama.h changes its parameter structs every few weeks without a mark, so a layout belongs to named builds only, and
each library must read back the defaults that its build is known to have, field by field.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import UnknownBuild
from wireherd.ggml.builds import KNOWN_LLAMA, SUPPORTED
from wireherd.ggml.structs import POINTER_T as P
from wireherd.ggml.structs import SIZE_T

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wireherd.ggml.functions import Functions

_BOOL = ctypes.c_bool
_I32 = ctypes.c_int32
_U32 = ctypes.c_uint32
_F32 = ctypes.c_float


class ModelParams(ctypes.Structure):
    """`struct llama_model_params`."""

    _fields_ = (
        ("devices", P),
        ("tensor_buft_overrides", P),
        ("n_gpu_layers", _I32),
        ("split_mode", _I32),
        ("load_mode", _I32),
        ("lazy_mode", _I32),
        ("main_gpu", _I32),
        ("tensor_split", P),
        ("progress_callback", P),
        ("progress_callback_user_data", P),
        ("kv_overrides", P),
        ("vocab_only", _BOOL),
        ("check_tensors", _BOOL),
        ("use_extra_bufts", _BOOL),
        ("no_host", _BOOL),
        ("no_alloc", _BOOL),
        ("load_mtp", _BOOL),
    )


class ContextParams(ctypes.Structure):
    """`struct llama_context_params`."""

    _fields_ = (
        ("n_ctx", _U32),
        ("n_batch", _U32),
        ("n_ubatch", _U32),
        ("n_seq_max", _U32),
        ("n_rs_seq", _U32),
        ("n_outputs_max", _U32),
        ("n_outputs_max_per_seq", _U32),
        ("n_threads", _I32),
        ("n_threads_batch", _I32),
        ("ctx_type", _I32),
        ("rope_scaling_type", _I32),
        ("pooling_type", _I32),
        ("attention_type", _I32),
        ("flash_attn_type", _I32),
        ("rope_freq_base", _F32),
        ("rope_freq_scale", _F32),
        ("yarn_ext_factor", _F32),
        ("yarn_attn_factor", _F32),
        ("yarn_beta_fast", _F32),
        ("yarn_beta_slow", _F32),
        ("yarn_orig_ctx", _U32),
        ("defrag_thold", _F32),
        ("cb_eval", P),
        ("cb_eval_user_data", P),
        ("type_k", _I32),
        ("type_v", _I32),
        ("moe_cache_size", SIZE_T),
        ("abort_callback", P),
        ("abort_callback_data", P),
        ("embeddings", _BOOL),
        ("offload_kqv", _BOOL),
        ("no_perf", _BOOL),
        ("op_offload", _BOOL),
        ("swa_full", _BOOL),
        ("kv_unified", _BOOL),
        ("samplers", P),
        ("n_samplers", SIZE_T),
        ("ctx_other", P),
    )


class ChainParams(ctypes.Structure):
    """`struct llama_sampler_chain_params`."""

    _fields_ = (("no_perf", _BOOL),)


class Batch(ctypes.Structure):
    """`struct llama_batch`."""

    _fields_ = (
        ("n_tokens", _I32),
        ("token", P),
        ("embd", P),
        ("pos", P),
        ("n_seq_id", P),
        ("seq_id", P),
        ("logits", P),
    )


class BufferOverride(ctypes.Structure):
    """`struct llama_model_tensor_buft_override`."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", P))


class SamplerSequence(ctypes.Structure):
    """`struct llama_sampler_seq_config`."""

    _fields_ = (("seq_id", _I32), ("sampler", P))


class PerfContext(ctypes.Structure):
    """`struct llama_perf_context_data`."""

    _fields_ = (
        ("t_start_ms", ctypes.c_double),
        ("t_load_ms", ctypes.c_double),
        ("t_p_eval_ms", ctypes.c_double),
        ("t_eval_ms", ctypes.c_double),
        ("n_p_eval", _I32),
        ("n_eval", _I32),
        ("n_reused", _I32),
    )


@dataclass(frozen=True, slots=True)
class LlamaDefaults:
    """What the `*_default_params()` of a build return, where that is not zero."""

    model: Mapping[str, float]
    context: Mapping[str, float]
    chain: Mapping[str, float]


DEFAULTS: Final[dict[str, LlamaDefaults]] = {
    "b11548": LlamaDefaults(
        model={"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "lazy_mode": 1, "use_extra_bufts": True},
        context={
            "n_ctx": 512,
            "n_batch": 2048,
            "n_ubatch": 512,
            "n_seq_max": 1,
            "n_outputs_max_per_seq": 1,
            "n_threads": 4,
            "n_threads_batch": 4,
            "rope_scaling_type": -1,
            "pooling_type": -1,
            "attention_type": -1,
            "flash_attn_type": -1,
            "yarn_ext_factor": -1.0,
            "yarn_attn_factor": -1.0,
            "yarn_beta_fast": -1.0,
            "yarn_beta_slow": -1.0,
            "defrag_thold": -1.0,
            "type_k": 1,
            "type_v": 1,
            "offload_kqv": True,
            "no_perf": True,
            "op_offload": True,
            "swa_full": True,
        },
        chain={"no_perf": True},
    ),
}


def check_llama(path: str, c: Functions, label: str) -> None:
    """Raise `UnknownBuild` unless the library returns the default parameters that build `label` is known to have."""
    known = DEFAULTS[KNOWN_LLAMA[label]]
    for name, kind, values in (
        ("llama_model_default_params", ModelParams, known.model),
        ("llama_context_default_params", ContextParams, known.context),
        ("llama_sampler_chain_default_params", ChainParams, known.chain),
    ):
        found = getattr(c, name)()
        wrong = [field[0] for field in kind._fields_ if getattr(found, field[0]) != values.get(field[0], 0)]
        if not wrong and not _ends_right(getattr(c, name), kind):
            wrong = ["its size"]
        if wrong:
            raise UnknownBuild(
                f"{path} calls itself llama.cpp {label}, but {name}() differs from that build's in {wrong[0]}: "
                f"install {SUPPORTED}",
            )


def _ends_right(function: Any, kind: type[ctypes.Structure]) -> bool:
    """Whether C writes exactly as many bytes as the struct has.

    A struct too large for registers comes back through a hidden pointer. On x86-64 that is the first argument, so it
    can point at a larger, patterned room, which shows how far C wrote. Elsewhere it is a register of its own that
    ctypes does not let us set: there the values alone must do.
    """
    size = ctypes.sizeof(kind)
    if platform.machine().lower() not in {"x86_64", "amd64"} or size <= 16:
        return True
    if sys.platform not in {"linux", "darwin", "win32"}:
        return True
    room = (ctypes.c_uint8 * (size + 256))()
    ctypes.memset(room, 0xA5, len(room))
    pointer = ctypes.cast(function, ctypes.c_void_p).value or 0
    ctypes.CFUNCTYPE(P, P)(pointer)(ctypes.addressof(room))
    written = max((place + 1 for place, byte in enumerate(room) if byte != 0xA5), default=0)
    last = getattr(kind, kind._fields_[-1][0])
    return bool(last.offset + last.size <= written <= size)
