from __future__ import annotations

import pytest

from wireherd.ggml.llama import Model, ModelOptions
from wireherd.testing import tiny


@pytest.mark.parametrize("weights", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("tied", [True, False])
def test_llama_loads_what_is_written(installed, tmp_path, weights, tied):
    path = tiny.write(tmp_path / "a.gguf", weights=weights, tied=tied, seed=3)
    again = tiny.write(tmp_path / "b.gguf", weights=weights, tied=tied, seed=3)
    assert path.read_bytes() == again.read_bytes()
    model = Model(installed, path, ModelOptions(devices=[]))
    assert model.n_params == (93_248 if tied else 112_448)
    assert model.chat_template() is None
    model.close()


def test_shapes(installed, tmp_path):
    shape = tiny.Shape(n_embd=256, n_layer=5, n_head=8, n_head_kv=4, n_ff=512, n_vocab=1000, n_ctx=128)
    model = Model(installed, tiny.write(tmp_path / "a.gguf", shape, weights="Q8_0"), ModelOptions(devices=[]))
    assert (model.n_layer, model.n_embd, model.n_head, model.n_head_kv) == (5, 256, 8, 4)
    assert (model.vocab.n_tokens, model.n_ctx_train) == (1000, 128)
    model.close()


def test_a_vocabulary_too_small_for_the_tokeniser(tmp_path):
    with pytest.raises(ValueError, match="too small"):
        tiny.write(tmp_path / "a.gguf", tiny.Shape(n_vocab=100))
