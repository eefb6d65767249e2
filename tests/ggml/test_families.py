"""Tiny models of every family and type load, and what the library quantises reads back as what it was."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from wireherd.errors import GgmlFailed
from wireherd.ggml.llama import Model, ModelOptions
from wireherd.ggml.quantise import quantise
from wireherd.testing import families


@pytest.mark.parametrize("family", families.FAMILIES)
def test_llama_loads_what_is_written(installed, tmp_path, family):
    path = families.write(tmp_path / "a.gguf", installed, family, "F16", seed=3)
    if family == "llama":
        assert path.read_bytes() == families.write(tmp_path / "b.gguf", installed, family, "F16", seed=3).read_bytes()
    model = Model(installed, path, ModelOptions(devices=[]))
    wanted = families.FAMILIES[family]
    assert model.meta("general.architecture") == wanted.arch
    assert (model.n_layer, model.n_head, model.n_head_kv, model.n_swa) == (2, 8, 4, wanted.window)
    assert b"".join(map(model.vocab.piece, model.vocab.tokenize("the sea"))) == b"the sea"
    model.close()


@pytest.mark.parametrize("weights", families.TYPES)
def test_every_file_type(installed, tmp_path, weights):
    path = families.write(tmp_path / "a.gguf", installed, "llama", weights)
    found = {tensor.tensor_type.name.lower() for tensor in gguf.GGUFReader(path).tensors}
    assert found == {"f32", *(name.lower() for name in families.TYPES[weights])}
    model = Model(installed, path, ModelOptions(devices=[], check_tensors=True))
    model.close()


@pytest.mark.parametrize(
    ("kind", "worst"),
    [
        *(("q2_K", 0.5), ("q3_K", 0.25), ("q4_0", 0.16), ("q4_K", 0.15), ("q6_K", 0.05), ("q8_0", 0.01)),
        *(("iq4_xs", 0.2), ("f16", 1e-3), ("bf16", 5e-3), ("f32", 0.0)),
    ],
)
def test_what_is_quantised_reads_back(installed, kind, worst):
    values = np.random.default_rng(5).standard_normal((3, 2, 512), np.float32)
    packed = quantise(installed, kind, values)
    back = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind.upper()]).reshape(values.shape)
    error = np.sqrt(np.mean((back - values) ** 2))
    assert error <= worst
    assert error or kind == "f32"


@pytest.mark.parametrize(
    ("kind", "length", "words"),
    [("q4_K", 255, "fill blocks of 256"), ("q9", 256, "no type q9"), ("iq2_xxs", 256, "importance matrix")],
)
def test_what_cannot_be_quantised(installed, kind, length, words):
    with pytest.raises(GgmlFailed, match=words):
        quantise(installed, kind, np.zeros((1, length), np.float32))
