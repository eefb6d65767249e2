"""Tiny random models of several families and types as GGUF files, quantised by the native library itself.

Each has what its family's graphs differ in: biases (qwen2), norms of queries and keys (qwen3), a sliding window, norms
behind the blocks and GELU (gemma3), experts (qwen3moe), attention sinks and biased experts (gpt-oss). Rows of 512 where
`-sm tensor` splits them leave whole blocks for two devices, also of the K-quants with their blocks of 256.
Needs the `gguf` package, which is part of the `dev` extra.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gguf
import numpy as np

from wireherd.ggml.quantise import quantise
from wireherd.testing.tiny import add_tokenizer

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

    from wireherd.ggml.library import Library


@dataclass(frozen=True, slots=True)
class Family:
    """What tells one architecture from another, and the size of its tiny model.

    Attributes:
        arch: name in the file.
        bias: queries, keys and values have one (qwen2), or everything has (gpt-oss: "all").
        head_norm: norms of each query and key (qwen3, gemma3).
        post_norm: norms behind attention and feed-forward (gemma3).
        experts: number of experts; two are used for each token. 0 is a dense model.
        sinks: attention sinks.
        window: sliding window of every other layer; 0 is none.
        tied: the output shares the token embedding.
    """

    arch: str
    bias: str = ""
    head_norm: bool = False
    post_norm: bool = False
    experts: int = 0
    sinks: bool = False
    window: int = 0
    tied: bool = False
    n_layer: int = 2
    n_embd: int = 256
    n_head: int = 8
    n_head_kv: int = 4
    n_head_dim: int = 64
    n_ff: int = 512
    n_vocab: int = 320
    n_ctx: int = 2048


FAMILIES: Final[dict[str, Family]] = {
    "llama": Family("llama"),
    "llama-tied": Family("llama", tied=True),
    "llama-moe": Family("llama", experts=4),
    "qwen2": Family("qwen2", bias="qkv", tied=True, n_embd=512),
    "qwen3": Family("qwen3", head_norm=True),
    "gemma3": Family("gemma3", head_norm=True, post_norm=True, window=32, tied=True),
    "qwen3moe": Family("qwen3moe", head_norm=True, experts=4),
    "gpt-oss": Family("gpt-oss", bias="all", experts=4, sinks=True, window=32),
}

#: name of a file type, as llama.cpp has them → (type of most matrices, of those that it keeps finer)
TYPES: Final[dict[str, tuple[str, str]]] = {
    "F32": ("f32", "f32"),
    "F16": ("f16", "f16"),
    "BF16": ("bf16", "bf16"),
    "Q8_0": ("q8_0", "q8_0"),
    "Q4_0": ("q4_0", "q6_K"),
    "Q4_1": ("q4_1", "q6_K"),
    "Q5_0": ("q5_0", "q6_K"),
    "Q5_1": ("q5_1", "q6_K"),
    "Q2_K": ("q2_K", "q4_K"),
    "Q3_K_S": ("q3_K", "q3_K"),
    "Q3_K_M": ("q3_K", "q5_K"),
    "Q4_K_S": ("q4_K", "q5_K"),
    "Q4_K_M": ("q4_K", "q6_K"),
    "Q5_K_M": ("q5_K", "q6_K"),
    "Q6_K": ("q6_K", "q6_K"),
    "IQ4_NL": ("iq4_nl", "q5_K"),
    "IQ4_XS": ("iq4_xs", "q5_K"),
    "MXFP4_MOE": ("q8_0", "q8_0"),
    "TQ1_0": ("tq1_0", "q8_0"),
}
#: matrices of the finer type: values and down projections of the first layer, and the output
_FINER: Final = ("blk.0.attn_v.weight", "blk.0.ffn_down", "output.weight")
#: the few that llama.cpp never quantises
_EXACT: Final = "ffn_gate_inp"
_WINDOWED_EVERY: Final = 2
#: gain of what a layer adds: with quiet layers a tied output mostly repeats its input token
_LOUD: Final = 4.0


def write(
    path: str | PathLike[str], lib: Library, family: Family | str, weights: str = "Q4_K_M", *, seed: int = 0
) -> Path:
    """Write a random model to `path` and return it; 1 to 8 MB.

    Args:
        path: where to; an existing file is replaced.
        lib: the library that quantises.
        family: what kind of model, or its name in `FAMILIES`.
        weights: its file type, one of `TYPES`. As in llama.cpp some matrices are of a finer type, with MXFP4_MOE the
            experts are MXFP4 and all else Q8_0.
        seed: of the noise, which is the same for all types.
    """
    kind = FAMILIES[family] if isinstance(family, str) else family
    target = Path(path)
    writer = gguf.GGUFWriter(target, kind.arch)
    _add_metadata(writer, kind, weights)
    for name, values in _tensors(kind, seed):
        if values.ndim == 1 or _EXACT in name or name.endswith(".bias"):
            writer.add_tensor(name, values)
            continue
        chosen = _type_of(name, weights)
        number = gguf.GGMLQuantizationType[chosen.upper()]
        writer.add_tensor(name, quantise(lib, chosen, values), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _type_of(name: str, weights: str) -> str:
    plain, finer = TYPES[weights]
    if weights == "MXFP4_MOE" and "_exps" in name:
        return "mxfp4"
    return finer if name.startswith(_FINER) else plain


def _add_metadata(writer: Any, kind: Family, weights: str) -> None:
    writer.add_name("tiny")
    writer.add_context_length(kind.n_ctx)
    writer.add_embedding_length(kind.n_embd)
    writer.add_block_count(kind.n_layer)
    writer.add_feed_forward_length(kind.n_ff)
    writer.add_head_count(kind.n_head)
    writer.add_head_count_kv(kind.n_head_kv)
    writer.add_key_length(kind.n_head_dim)
    writer.add_value_length(kind.n_head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(kind.n_head_dim)
    writer.add_vocab_size(kind.n_vocab)
    writer.add_file_type(getattr(gguf.LlamaFileType, "ALL_F32" if weights == "F32" else f"MOSTLY_{weights}"))
    if kind.window:
        writer.add_sliding_window(kind.window)
        writer.add_sliding_window_pattern(_WINDOWED_EVERY)
    if kind.experts:
        writer.add_expert_count(kind.experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(kind.n_ff)
    add_tokenizer(writer, kind.n_vocab)


def _tensors(kind: Family, seed: int) -> list[tuple[str, NDArray[np.float32]]]:
    """All tensors by name; the noise of each hangs on the seed and its name alone."""

    def noise(name: str, *shape: int) -> NDArray[np.float32]:
        source = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return source.standard_normal(shape, np.float32)

    width, heads, kv = kind.n_embd, kind.n_head * kind.n_head_dim, kind.n_head_kv * kind.n_head_dim
    made: list[tuple[str, NDArray[np.float32]]] = []

    def matrix(name: str, *shape: int, gain: float = 1.0) -> None:
        made.append((name + ".weight", noise(name, *shape) * np.float32(gain * shape[-1] ** -0.5)))

    def vector(name: str, *shape: int, around: float = 0.0) -> None:
        made.append((name, np.float32(around) + np.float32(0.1) * noise(name, *shape)))

    def norm(name: str, length: int, around: float = 1.0) -> None:
        vector(name + ".weight", length, around=around)

    matrix("token_embd", kind.n_vocab, width)
    norm("output_norm", width)
    if not kind.tied:
        matrix("output", kind.n_vocab, width)
    for layer in range(kind.n_layer):
        at = f"blk.{layer}."
        norm(at + "attn_norm", width)
        matrix(at + "attn_q", heads, width)
        matrix(at + "attn_k", kv, width)
        matrix(at + "attn_v", kv, width)
        matrix(at + "attn_output", width, heads, gain=_LOUD)
        if kind.bias:
            for name, length in (("attn_q", heads), ("attn_k", kv), ("attn_v", kv)):
                vector(f"{at}{name}.bias", length)
        if kind.bias == "all":
            vector(at + "attn_output.bias", width)
        if kind.head_norm:
            norm(at + "attn_q_norm", kind.n_head_dim)
            norm(at + "attn_k_norm", kind.n_head_dim)
        if kind.sinks:
            vector(at + "attn_sinks.weight", kind.n_head)
        # gpt-oss calls the norm before its experts so
        norm(at + ("post_attention_norm" if kind.sinks else "ffn_norm"), width)
        if kind.post_norm:
            norm(at + "post_attention_norm", width, around=_LOUD)
            norm(at + "post_ffw_norm", width, around=_LOUD)
        experts = (kind.experts,) if kind.experts else ()
        tail = "_exps" if experts else ""
        for name, rows, columns, gain in (
            ("ffn_gate", kind.n_ff, width, 1.0),
            ("ffn_up", kind.n_ff, width, 1.0),
            ("ffn_down", width, kind.n_ff, _LOUD),
        ):
            matrix(at + name + tail, *experts, rows, columns, gain=gain)
            if experts and kind.bias == "all":
                vector(f"{at}{name}{tail}.bias", *experts, rows)
        if experts:
            matrix(at + "ffn_gate_inp", *experts, width)
            if kind.bias == "all":
                vector(at + "ffn_gate_inp.bias", *experts)
    return made
