"""Which layer lies where: llama.cpp's rule, in numbers worked out by hand."""

import numpy as np
import pytest

from wireherd.errors import UsageError
from wireherd.llm import gguf, placement
from wireherd.llm.placement import DeviceRoom, assign, parse_tensor_split, shares, too_small

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3,1", (3, 1)), ("3/1", (3, 1)), ("1", (1,)), (" 0.5 / 2,0 ", (0.5, 2, 0))],
)
def test_shares_take_comma_and_slash(text, expected):
    assert parse_tensor_split(text) == expected


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1,2", "0/0", "nan", "inf,1"])
def test_senseless_shares(text):
    with pytest.raises(UsageError, match="-ts"):
        parse_tensor_split(text)


@pytest.mark.parametrize(
    ("n_layer", "ngl", "weights", "expected"),
    [
        (4, 99, (1,), [0, 0, 0, 0, 0]),
        (4, -1, (1,), [0, 0, 0, 0, 0]),
        (4, 0, (1,), [None] * 5),
        (4, 2, (1,), [None, None, None, 0, 0]),
        (3, 99, (1, 1), [0, 0, 1, 1]),
        (4, 99, (1, 1), [0, 0, 0, 1, 1]),
        (30, 99, (3, 1), [0] * 24 + [1] * 7),
        (4, 99, (0, 1), [1] * 5),
        (4, 99, (1, 0), [0] * 5),
        (4, 99, (), [None] * 5),
        (4, 99, (0, 0), [None] * 5),
    ],
)
def test_assignment(n_layer, ngl, weights, expected):
    assert assign(n_layer, ngl, weights) == expected


def header(n_layer, *, tied):
    def tensor(name):
        return gguf.GgufTensor(name, (MIB,), 0, 0)

    tensors = [tensor("token_embd.weight"), tensor("output_norm.weight")]
    tensors += [tensor(f"blk.{layer}.{name}.weight") for layer in range(n_layer) for name in ("attn_q", "ffn_up")]
    if not tied:
        tensors.append(tensor("output.weight"))
    return gguf.GgufHeader(None, 3, {"general.architecture": "x", "x.block_count": n_layer}, tuple(tensors), 0)


SIZES = (np.ones(1, np.int64), np.full(1, 4, np.int64))
FAST = DeviceRoom("fast", 100 * MIB, 200 * MIB)
SLOW = DeviceRoom("slow", 10 * MIB, 20 * MIB)


@pytest.mark.parametrize("tied", [True, False])
def test_what_each_device_holds(tied):
    fast, slow = shares([header(3, tied=tied)], SIZES, [FAST, SLOW], n_gpu_layers=-1, tensor_split=(1, 1))
    assert (fast.layers, fast.has_output, fast.weight_bytes) == ((0, 1), False, 16 * MIB)
    # one layer, the output's norm, and the output matrix: its own or a copy of the embedding
    assert (slow.layers, slow.has_output, slow.weight_bytes) == ((2,), True, 16 * MIB)
    assert too_small([fast, slow]) == "slow would need 16 MiB for weights and has 10 MiB free"
    assert str(slow) == "slow: layer 2 and the output, 16 MiB of weights, 10 MiB free"


def test_free_memory_decides_without_shares():
    fast, slow = shares([header(10, tied=False)], SIZES, [FAST, SLOW], n_gpu_layers=99)
    assert (len(fast.layers), slow.layers, slow.has_output) == (10, (), True)


def test_a_model_in_two_files_counts_once():
    whole = header(3, tied=False)
    first = gguf.GgufHeader(None, 3, whole.meta, whole.tensors[:4], 0)
    second = gguf.GgufHeader(None, 3, {}, whole.tensors[4:], 0)
    (one,) = shares([whole], SIZES, [FAST], n_gpu_layers=-1)
    (two,) = shares([first, second], SIZES, [FAST], n_gpu_layers=-1)
    assert one == two


def test_sizes_round_up():
    assert [placement.mib(size) for size in (0, 1, MIB, MIB + 1)] == [0, 1, 1, 2]
