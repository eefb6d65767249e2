"""Models for tests: a tiny random one, a sparse giant, and text of a wanted length."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WIDTH, FEED, LAYERS, HEADS, KV_HEADS = 64, 128, 2, 4, 2
#: <unk>, <s>, </s>, the 256 bytes, a blank and the small letters
_PIECES = [" ", *"abcdefghijklmnopqrstuvwxyz"]


def _metadata(writer: gguf.GGUFWriter) -> int:
    """Architecture and a byte-level tokenizer; returns the number of tokens."""
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    kinds = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{i:02X}>".encode() for i in range(256))]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256]
    tokens += [piece.replace(" ", "\u2581").encode() for piece in _PIECES]
    types += [kinds.NORMAL] * len(_PIECES)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-1.0 - i for i in range(len(_PIECES))])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    return len(tokens)


def write_tiny(path: Path, *, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0, seed: int = 1) -> Path:
    """A random llama of two layers (64 wide, 4 heads, 2 KV heads) that loads, tokenises and answers nonsense."""
    writer = gguf.GGUFWriter(str(path), "llama")
    rng = np.random.default_rng(seed)
    vocabulary = _metadata(writer)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
        if kind is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    matrix("token_embd.weight", vocabulary, WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    matrix("output.weight", vocabulary, WIDTH)
    keys = WIDTH // HEADS * KV_HEADS
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        writer.add_tensor(prefix + "attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(prefix + "ffn_norm.weight", np.ones(WIDTH, np.float32))
        matrix(prefix + "attn_q.weight", WIDTH, WIDTH)
        matrix(prefix + "attn_k.weight", keys, WIDTH)
        matrix(prefix + "attn_v.weight", keys, WIDTH)
        matrix(prefix + "attn_output.weight", WIDTH, WIDTH)
        matrix(prefix + "ffn_gate.weight", FEED, WIDTH)
        matrix(prefix + "ffn_up.weight", FEED, WIDTH)
        matrix(prefix + "ffn_down.weight", WIDTH, FEED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


#: plain English without near ties at every step; repeated it gives a prompt of any length
PROSE = (
    "The old lighthouse keeper climbed the stairs every evening to light the lamp. Ships far out at sea saw it turn "
    "and knew where the rocks were. One night a storm came up from the west, and the wind broke two of the panes. "
    "He put his coat over the gap and stood there until morning, and not one ship was lost. "
)


def long_prompt(words: int) -> str:
    """Prose of about `words` words; a word is about 1.2 tokens for the models used here."""
    text = PROSE.split()
    return " ".join(text[i % len(text)] for i in range(words))
