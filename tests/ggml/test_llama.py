from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

from wireherd.errors import GgmlFailed, ModelError, UsageError
from wireherd.ggml import sampler
from wireherd.ggml.llama import Batch, Context, ContextOptions, Model, ModelOptions
from wireherd.testing import tiny

TEXT = "The capital of France is Paris, naïve 東京 🙂\n"


def context(model, **more):
    return Context(model, ContextOptions(**{"n_ctx": 256, "n_threads": 1, **more}))


def generate(model, tokens, n=12, *, chain=None, **more):
    ctx = context(model, **more)
    batch = Batch(256)
    batch.fill(tokens, 0)
    assert ctx.decode(batch) == 0
    own = chain or sampler.greedy(model.lib)
    found = []
    for position in range(len(tokens), len(tokens) + n):
        found.append(own.sample(ctx))
        batch.one(found[-1], position)
        assert ctx.decode(batch) == 0
    own.close()
    ctx.close()
    return found


def test_what_a_model_tells(model, tiny_path):
    assert (model.n_layer, model.n_embd, model.n_head, model.n_head_kv, model.n_ctx_train) == (2, 64, 4, 2, 2048)
    assert model.n_params == 112_448
    assert model.size == 4 * model.n_params
    assert model.desc.startswith("llama")
    assert model.meta("general.architecture") == "llama"
    assert model.meta("no.such.key") is None
    assert model.metadata()["llama.block_count"] == "2"
    assert model.chat_template() == tiny.CHATML
    assert model.meta("tokenizer.chat_template") == tiny.CHATML, "longer than the first room for it"
    assert model.chat_template("tool_use") is None
    assert model.n_swa == 0
    assert not model.is_recurrent
    assert not model.has_encoder


def test_text_survives_the_vocabulary(model):
    vocab = model.vocab
    tokens = vocab.tokenize(TEXT)
    assert b"".join(vocab.piece(token) for token in tokens) == TEXT.encode()
    assert vocab.tokenize(TEXT.encode()) == tokens
    assert vocab.tokenize("") == []
    assert len(vocab.tokenize("x" * 5000)) == 5000


def test_control_tokens(model):
    vocab = model.vocab
    tokens = vocab.tokenize("a<|im_end|>", parse_special=True)
    assert tokens[-1] == vocab.eot
    assert len(vocab.tokenize("a<|im_end|>")) > 2
    assert vocab.piece(vocab.eot) == b""
    assert vocab.piece(vocab.eot, special=True) == b"<|im_end|>"
    assert vocab.is_control(vocab.eot)
    assert vocab.is_eog(vocab.eot)
    assert vocab.is_eog(vocab.eos)
    assert not vocab.is_eog(tokens[0])
    assert (vocab.n_tokens, vocab.add_bos, vocab.add_eos) == (300, False, False)
    for wrong in (-1, 300):
        with pytest.raises(ValueError, match="not in a vocabulary of 300"):
            vocab.piece(wrong)


def test_greedy_is_the_largest_logit_and_repeatable(model):
    tokens = model.vocab.tokenize(TEXT)
    ctx = context(model)
    batch = Batch(256)
    batch.fill(tokens, 0)
    assert ctx.decode(batch) == 0
    logits = ctx.logits()
    assert logits.shape == (300,)
    assert logits.dtype == np.float32
    assert sampler.greedy(model.lib).sample(ctx) == int(logits.argmax())
    ctx.close()
    assert generate(model, tokens) == generate(model, tokens)
    assert len(set(generate(model, tokens))) > 4, "noise, but not one token for ever"


def test_outputs_where_they_are_asked_for(model):
    tokens = model.vocab.tokenize(TEXT)
    ctx = context(model)
    batch = Batch(64)
    batch.fill(tokens, 0, outputs="all")
    assert ctx.decode(batch) == 0
    everywhere = [ctx.logits(i).copy() for i in range(len(tokens))]
    ctx.clear()
    batch.fill(tokens, 0, outputs=[i == 3 for i in range(len(tokens))])
    assert ctx.decode(batch) == 0
    assert np.abs(ctx.logits(3) - everywhere[3]).max() < 1e-4, "equal but for the rounding of other shapes"
    for nowhere in (2, 99):
        with pytest.raises(GgmlFailed, match=f"no logits at position {nowhere}"):
            ctx.logits(nowhere)
        with pytest.raises(GgmlFailed, match=f"no logits at position {nowhere}"):
            sampler.greedy(model.lib).sample(ctx, nowhere)
    ctx.clear()
    batch.fill(tokens, 0, outputs="none")
    assert ctx.decode(batch) == 0
    ctx.close()


def test_a_batch_is_checked_and_reused(model):
    batch = Batch(4)
    with pytest.raises(ValueError, match="5 tokens do not fit a batch of 4"):
        batch.fill([1, 2, 3, 4, 5], 0)
    batch.fill(np.array([5, 6]), 7, sequence=1)
    assert (batch.count, batch.tokens[:2].tolist(), batch.positions[:2].tolist()) == (2, [5, 6], [7, 8])
    assert (batch.outputs[:2].tolist(), batch.sequences[:2].tolist()) == ([0, 1], [1, 1])
    batch.one(9, 3)
    assert (batch.count, batch.tokens[0], batch.positions[0], batch.sequences[0], batch.outputs[0]) == (1, 9, 3, 0, 1)


def test_the_cache_can_be_cut_back(model):
    tokens = model.vocab.tokenize(TEXT)
    ctx = context(model, n_seq_max=2)
    batch = Batch(64)
    batch.fill(tokens, 0)
    ctx.decode(batch)
    assert ctx.last_position() == len(tokens) - 1
    wanted = ctx.logits().copy()
    assert ctx.remove(0, len(tokens) - 3, -1)
    assert ctx.last_position() == len(tokens) - 4
    batch.fill(tokens[-3:], len(tokens) - 3)
    ctx.decode(batch)
    assert np.abs(ctx.logits() - wanted).max() < 0.05
    ctx.copy(0, 1)
    assert ctx.last_position(1) == len(tokens) - 1
    ctx.clear()
    assert ctx.last_position() == -1
    ctx.close()


def test_a_full_cache_is_a_status(model):
    ctx = context(model)
    batch = Batch(256)
    batch.fill([5] * 200, 0)
    assert ctx.decode(batch) == 0
    batch.fill([5] * 100, 200)
    assert ctx.decode(batch) == 1
    ctx.close()


def test_a_batch_too_large_for_the_context_never_reaches_it(model):
    ctx = context(model, n_batch=32)
    batch = Batch(64)
    batch.fill([5] * 33, 0)
    with pytest.raises(ValueError, match="33 tokens in a batch, and the context takes 32"):
        ctx.decode(batch)
    ctx.close()


def test_a_senseless_batch_is_a_status(model):
    ctx = context(model)
    batch = Batch(4)
    batch.one(5000, 0)
    assert ctx.decode(batch) == -1
    ctx.close()


@pytest.mark.parametrize(
    "more", [{"flash_attn": 0}, {"flash_attn": 1}, {"flash_attn": 1, "type_k": "q8_0", "type_v": "q8_0"}]
)
def test_context_options(installed, tmp_path, more):
    path = tiny.write(tmp_path / "wide.gguf", tiny.Shape(n_embd=128, n_head=4, n_head_kv=2))
    model = Model(installed, path, ModelOptions(devices=[]))
    tokens = model.vocab.tokenize(TEXT)
    assert len(generate(model, tokens, 4, **more)) == 4
    ctx = context(model, n_batch=64, n_ubatch=32)
    assert (ctx.n_ctx, ctx.n_batch, ctx.n_ubatch) == (256, 64, 32)
    ctx.set_threads(1, 2)
    ctx.close()
    with pytest.raises(UsageError, match="q3 is no type for a KV cache: choose from f32"):
        context(model, type_k="q3")
    model.close()


def test_a_context_that_cannot_be_made(model):
    with pytest.raises(GgmlFailed, match="could not make a context"):
        context(model, flash_attn=0, type_v="q8_0")


def test_samplers(model):
    lib = model.lib
    tokens = model.vocab.tokenize(TEXT)

    def chain(seed):
        return sampler.chain(
            lib,
            [
                sampler.penalties(lib, 300, 64, 1.3),
                sampler.top_k(lib, 40),
                sampler.top_p(lib, 0.95),
                sampler.min_p(lib, 0.01),
                sampler.temp(lib, 1.5),
                sampler.dist(lib, seed),
            ],
        )

    first = generate(model, tokens, 24, chain=chain(1))
    assert first == generate(model, tokens, 24, chain=chain(1))
    assert first != generate(model, tokens, 24, chain=chain(2))
    assert generate(model, tokens, chain=sampler.chain(lib, [sampler.top_k(lib, 1), sampler.dist(lib, 5)])) == generate(
        model, tokens
    )


def test_penalties_push_down_what_was_accepted(model):
    lib = model.lib
    tokens = model.vocab.tokenize(TEXT)
    plain = generate(model, tokens, 1)[0]
    chain = sampler.chain(lib, [sampler.penalties(lib, 300, 8, 1.0, 0.0, 1000.0), sampler.greedy(lib)])
    chain.accept(plain)
    ctx = context(model)
    batch = Batch(64)
    batch.fill(tokens, 0)
    ctx.decode(batch)
    assert chain.sample(ctx) != plain
    chain.reset()
    assert chain.sample(ctx) == plain
    chain.close()
    chain.close()
    ctx.close()


def test_sampling_in_the_context(model):
    """Samplers given to the context run in its graph; the token is the same."""
    lib = model.lib
    tokens = model.vocab.tokenize(TEXT)
    chain = sampler.chain(lib, [sampler.top_k(lib, 1), sampler.greedy(lib)])
    ctx = context(model, samplers=[(0, chain)])
    batch = Batch(64)
    batch.fill(tokens, 0)
    assert ctx.decode(batch) == 0
    assert chain.sample(ctx) == generate(model, tokens, 1)[0]
    ctx.close()
    chain.close()


def test_a_decode_is_aborted(installed, tmp_path):
    path = tiny.write(
        tmp_path / "long.gguf", tiny.Shape(n_embd=512, n_layer=8, n_head=8, n_head_kv=8, n_ff=2048), weights="F16"
    )
    model = Model(installed, path, ModelOptions(devices=[]))
    ctx = context(model, n_ctx=2048, n_batch=2048)
    batch = Batch(2048)
    batch.fill([7] * 2000, 0)
    stopped = []

    def stop():
        time.sleep(0.1)
        stopped.append(time.monotonic())
        ctx.abort()

    thread = threading.Thread(target=stop)
    thread.start()
    status = ctx.decode(batch)
    ended = time.monotonic()
    thread.join()
    assert status == 2
    assert ended - stopped[0] < 0.25
    ctx.clear_abort()
    ctx.clear()
    batch.fill([7] * 8, 0)
    assert ctx.decode(batch) == 0
    ctx.close()
    model.close()


def test_progress_is_told_and_can_stop_the_loading(installed, tiny_path):
    seen = []
    model = Model(installed, tiny_path, ModelOptions(devices=[], progress=lambda share: seen.append(share) or True))
    model.close()
    model.close()
    assert seen[-1] == 1.0
    assert seen == sorted(seen)
    with pytest.raises(ModelError, match="could not load"):
        Model(installed, tiny_path, ModelOptions(devices=[], progress=lambda _share: False))


@pytest.mark.parametrize("error", [ValueError("from progress"), KeyboardInterrupt()])
def test_an_exception_in_progress_comes_out(installed, tiny_path, error):
    def progress(_share):
        raise error

    with pytest.raises(type(error)):
        Model(installed, tiny_path, ModelOptions(devices=[], progress=progress))


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"not a model at all" * 100])
def test_a_file_that_is_no_model(installed, tmp_path, content):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"llama\.cpp could not load .*model\.gguf: .*") as caught:
        Model(installed, path)
    assert "\n" not in str(caught.value)
    assert "gave no reason" not in str(caught.value)


def test_model_options(installed, tiny_path):
    buft = installed.cpu_device().buffer_type().ptr
    tokens = None
    for more in (
        {"use_mmap": False},
        {"use_mmap": True, "use_extra_bufts": False, "check_tensors": True},
        {"overrides": [(r"token_embd\.weight", buft), ("blk.0.*", buft)]},
        {"n_gpu_layers": 1, "no_host": True},
    ):
        model = Model(installed, tiny_path, ModelOptions(devices=[], **more))
        found = generate(model, model.vocab.tokenize(TEXT), 4)
        assert found == (tokens or found)
        tokens = found
        model.close()


def test_what_the_parameters_point_at_lives_as_long_as_the_model(installed, tiny_path, monkeypatch):
    """libllama keeps a copy of the struct (`llama_model::params`), and with it the pointers."""
    seen = []
    load = installed.c.llama_model_load_from_file
    monkeypatch.setattr(
        installed.c, "llama_model_load_from_file", lambda *given: (seen.append(given[1]), load(*given))[1]
    )
    model = Model(installed, tiny_path, ModelOptions(devices=[], tensor_split=[1.0, 3.0]))
    kind = ctypes.c_float * installed.c.llama_max_devices()
    others = [kind(*[9.0] * len(kind())) for _ in range(64)]  # would take the place of what was let go
    assert list(kind.from_address(seen[0].tensor_split))[:3] == [1.0, 3.0, 0.0]
    del others
    model.close()


def test_a_tensor_split_with_too_many_parts(installed, tiny_path):
    with pytest.raises(UsageError, match="a tensor split has at most"):
        Model(installed, tiny_path, ModelOptions(tensor_split=[1.0] * 1000))


def test_the_vocabulary_alone(installed, tiny_path):
    model = Model(installed, tiny_path, ModelOptions(devices=[], vocab_only=True))
    assert model.vocab.n_tokens == 300
    model.close()


def test_counts(model):
    ctx = context(model, no_perf=False)
    batch = Batch(64)
    batch.fill(model.vocab.tokenize(TEXT), 0)
    ctx.decode(batch)
    ctx.synchronize()
    assert ctx.perf().n_prompt == batch.count
    assert ctx.perf().prompt_ms > 0
    ctx.reset_perf()
    assert ctx.perf().prompt_ms == 0
    ctx.close()


def test_one_token_costs_little_python(model):
    """Filling, decoding and fetching logits of a model this small is mostly ours: it must stay well below 1 ms."""
    ctx = context(model)
    batch = Batch(1)
    took = []
    for position in range(100):
        start = time.perf_counter()
        batch.one(5, position)
        assert ctx.decode(batch) == 0
        ctx.logits()
        took.append(time.perf_counter() - start)
    assert sorted(took)[50] < 0.001
    ctx.close()
