"""Tiny random llama models as GGUF files: real files for tests, in milliseconds and without a network.

The weights are noise from a fixed seed, so the text is noise too, but the same noise everywhere: good for comparing
tokens and logits. The tokeniser is a byte-level BPE (gpt2) that can spell any text.
Needs the `gguf` package, which is part of the `dev` extra.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gguf
import numpy as np

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

BOS: Final = "<|endoftext|>"
TURN: Final = "<|im_start|>"
END_OF_TURN: Final = "<|im_end|>"

#: a chat template of the ChatML family, for models that should have one
CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# pairs that English text has many of, in the order they are merged; "Ġ" is a space in gpt2's alphabet
_MERGES: Final = [
    "Ġ t",
    "h e",
    "Ġ a",
    "i n",
    "r e",
    "o n",
    "Ġt he",
    "e r",
    "Ġ s",
    "a t",
    "Ġ w",
    "Ġ o",
    "e n",
    "Ġ c",
    "i t",
    "i s",
    "a n",
    "o r",
    "e s",
    "Ġ b",
    "e d",
    "Ġ f",
    "in g",
    "Ġ p",
    "o u",
    "Ġa n",
    "a l",
    "a r",
    "Ġt o",
    "Ġ m",
    "Ġo f",
    "Ġ in",
    "Ġ d",
    "Ġ h",
    "Ġan d",
    "i c",
    "a s",
    "l e",
    "Ġt h",
    "i on",
    "o m",
]


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a tiny llama. `n_embd / n_head` must be even; quantised types need rows in multiples of 32."""

    n_embd: int = 64
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 128
    n_vocab: int = 300
    n_ctx: int = 2048


def write(
    path: str | PathLike[str],
    shape: Shape | None = None,
    *,
    weights: str = "F32",
    tied: bool = True,
    seed: int = 0,
    chat_template: str | None = None,
) -> Path:
    """Write a random llama to `path` and return it.

    Args:
        path: where to; an existing file is replaced.
        shape: its size, the smallest by default (about 0.5 MB as F32).
        weights: type of all matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1.
        tied: the output shares the token embedding; otherwise it has a matrix of its own.
        seed: of the noise.
        chat_template: jinja2 text for the file's metadata, for instance `CHATML`.
    """
    size = shape or Shape()
    noise = np.random.default_rng(seed)
    kind = gguf.GGMLQuantizationType[weights]
    target = Path(path)
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_name("tiny")
    writer.add_context_length(size.n_ctx)
    writer.add_embedding_length(size.n_embd)
    writer.add_block_count(size.n_layer)
    writer.add_feed_forward_length(size.n_ff)
    writer.add_head_count(size.n_head)
    writer.add_head_count_kv(size.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(size.n_embd // size.n_head)
    writer.add_vocab_size(size.n_vocab)
    writer.add_file_type(getattr(gguf.LlamaFileType, "ALL_F32" if weights == "F32" else f"MOSTLY_{weights}"))
    add_tokenizer(writer, size.n_vocab)
    if chat_template is not None:
        writer.add_chat_template(chat_template)

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        values = noise.standard_normal((rows, columns)) * (gain * columns**-0.5)
        _add_matrix(writer, name, values.astype(np.float32), kind)

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(size.n_embd, np.float32))

    kv = size.n_embd // size.n_head * size.n_head_kv
    matrix("token_embd.weight", size.n_vocab, size.n_embd)
    ones("output_norm.weight")
    if not tied:
        matrix("output.weight", size.n_vocab, size.n_embd)
    for layer in range(size.n_layer):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight")
        ones(block + "ffn_norm.weight")
        matrix(block + "attn_q.weight", size.n_embd, size.n_embd)
        matrix(block + "attn_k.weight", kv, size.n_embd)
        matrix(block + "attn_v.weight", kv, size.n_embd)
        # loud layers, or a tied output mostly repeats its input token
        matrix(block + "attn_output.weight", size.n_embd, size.n_embd, 4.0)
        matrix(block + "ffn_gate.weight", size.n_ff, size.n_embd)
        matrix(block + "ffn_up.weight", size.n_ff, size.n_embd)
        matrix(block + "ffn_down.weight", size.n_embd, size.n_ff, 4.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_matrix(writer: Any, name: str, values: NDArray[np.float32], kind: Any) -> None:
    if kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def _alphabet() -> list[str]:
    """Gpt2's spelling of the 256 bytes: printable ones stand for themselves, the others are moved above U+0100."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(moved)) for byte in range(256)]


def add_tokenizer(writer: Any, n_vocab: int) -> None:
    """Add a byte-level BPE of `n_vocab` tokens, those without a text unused, to a GGUF writer."""
    tokens = _alphabet() + [merge.replace(" ", "") for merge in _MERGES]
    kinds = [int(gguf.TokenType.NORMAL)] * len(tokens)
    bos = len(tokens)
    tokens += [BOS, TURN, END_OF_TURN]
    kinds += [int(gguf.TokenType.CONTROL)] * 3
    if n_vocab < len(tokens):
        raise ValueError(f"a vocabulary of {n_vocab} is too small: the tokeniser alone has {len(tokens)} tokens")
    kinds += [int(gguf.TokenType.UNUSED)] * (n_vocab - len(tokens))
    tokens += [f"<|unused {number}|>" for number in range(len(tokens), n_vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(list(_MERGES))
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(bos)
    writer.add_eot_token_id(bos + 2)
    writer.add_add_bos_token(False)
