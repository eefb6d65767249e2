#!/usr/bin/env python3
"""Write a random llama of SmolLM2's size whose heads split evenly: `make_even.py OUT.gguf [--heads 8] [--kv-heads 4]`.

SmolLM2 has three KV heads, so that one of two ranks of a tensor split has nothing to add in every second layer; here
every sum has a part from every rank. The tokenizer is SmolLM2's, the weights are noise in Q8_0. Needs gguf.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import gguf
import numpy as np

from wireherd.llm import models

WIDTH, INNER, LAYERS, WORDS = 512, 1536, 30, 49152
KNOWN = "smollm2-135m"


def write(out: Path, heads: int, kv_heads: int) -> None:
    """Write the model; the same bytes for the same heads."""
    reader = gguf.GGUFReader(models.pull(KNOWN))
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(f"even {heads}/{kv_heads}")
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // heads)
    writer.add_vocab_size(WORDS)
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer.") or "chat_template" in name:
            continue
        value = field.contents()
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])
    noise = np.random.default_rng(1)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = (noise.standard_normal((rows, columns)) / math.sqrt(columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    matrix("token_embd.weight", WORDS, WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    shared = WIDTH // heads * kv_heads
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{name}.weight", np.ones(WIDTH, np.float32))
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", shared, WIDTH),
            ("attn_v", shared, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", INNER, WIDTH),
            ("ffn_up", INNER, WIDTH),
            ("ffn_down", WIDTH, INNER),
        ):
            matrix(f"{block}{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Take the flags and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    given = parser.parse_args()
    if given.heads < 1 or WIDTH % given.heads or given.kv_heads < 1 or given.heads % given.kv_heads:
        parser.error(f"the heads must divide {WIDTH}, and the KV heads the heads")
    write(given.out, given.heads, given.kv_heads)
    print(given.out)


if __name__ == "__main__":
    main()
