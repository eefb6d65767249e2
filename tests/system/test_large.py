"""A tensor of more than 4 GiB: strides and offsets beyond 32 bits, from a file that is mostly holes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from support.cli import GREEDY, wireherd

WIDTH = 4096
#: 2^32 bytes are 262,144 rows of 4,096 floats; the last row begins beyond that
TOKENS = 262_144 + 256
BOS, LAST = 1, TOKENS - 1
NEED_BYTES = 11 << 30


def _free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _tokenizer(writer: gguf.GGUFWriter) -> None:
    kinds = gguf.TokenType
    pieces = [b"<unk>", b"<s>", b"</s>", *(f"<0x{i:02X}>".encode() for i in range(256))]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256]
    fill = TOKENS - len(pieces)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*pieces, *(f"w{i}".encode() for i in range(fill))])
    writer.add_token_scores([0.0] * TOKENS)
    writer.add_token_types([*types, *[kinds.NORMAL] * fill])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def write_giant(path: Path) -> Path:
    """A model of one layer that adds nothing, whose tied embedding takes 4.3 GB, nearly all of it a hole.

    Rows of the byte tokens and of BOS are ones, the last row is twos, so every step's largest logit is the last
    token's, if and only if the rows beyond 4 GiB are read where they belong.
    """
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(32)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 32)
    writer.add_vocab_size(TOKENS)
    _tokenizer(writer)
    head = WIDTH // 32
    shapes = {
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (head, WIDTH),
        "blk.0.attn_v.weight": (head, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_gate.weight": (32, WIDTH),
        "blk.0.ffn_up.weight": (32, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, 32),
        "output_norm.weight": (WIDTH,),
        "token_embd.weight": (TOKENS, WIDTH),
    }
    for name, shape in shapes.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    alignment = 32
    offset = (path.stat().st_size + alignment - 1) // alignment * alignment
    with path.open("r+b") as file:
        for name, shape in shapes.items():
            if name == "output_norm.weight":
                file.seek(offset)
                file.write(np.ones(WIDTH, np.float32).tobytes())
            if name == "token_embd.weight":
                ones = np.ones(WIDTH, np.float32)
                for token in (BOS, *range(3, 259)):
                    file.seek(offset + token * WIDTH * 4)
                    file.write(ones.tobytes())
                file.seek(offset + LAST * WIDTH * 4)
                file.write((2 * ones).tobytes())
            offset += (4 * int(np.prod(shape)) + alignment - 1) // alignment * alignment
        file.truncate(offset)
    return path


@pytest.mark.skipif(
    not Path("/proc/meminfo").exists() or _free_bytes() < NEED_BYTES, reason="needs 11 GiB of free memory"
)
def test_a_tensor_over_4_gib(tmp_path: Path, workers: Any) -> None:
    model = write_giant(tmp_path / "giant.gguf")
    try:
        assert model.stat().st_size > 1 << 32
        assert model.stat().st_blocks * 512 < 100 << 20, "the file system keeps no holes"
        (worker,) = workers(1)
        outcome = wireherd(
            *("run", "--json", "-m", str(model), "--rpc", worker.endpoint, "-p", "ab", "-n", "3", "-c", "64"),
            *(*GREEDY, "-t", "1"),
            timeout_s=280,
        )
        assert outcome.code == 0, outcome.err
        answer = json.loads(outcome.out)
        assert answer["tokens"] == [LAST] * 3
        assert answer["workers"][0]["bytes_sent"] > 1 << 32
    finally:
        model.unlink()
