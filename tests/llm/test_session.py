"""A session on this machine's CPU alone."""

import threading
import time

import gguf as reference
import pytest
from quick import options

from wireherd.errors import Cancelled, GgmlFailed, ModelError, UsageError
from wireherd.llm.chat import Conversation, prompt_tokens
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.session import LlmSession
from wireherd.testing import tiny

GREEDY = GenerateOptions(n_predict=16, temperature=0.0, ignore_eos=True)
PROMPT = "the man and the woman went to the sea and"


def test_pieces_add_up(session):
    heard = []
    generation = session.generate(PROMPT, GREEDY, on_token=heard.append)
    text = "".join(generation)
    result = generation.result
    assert text == result.text
    assert result.tokens == heard
    assert len(heard) == 16
    assert result.stop == "length"
    timings = result.timings.to_dict()
    assert (timings["prompt_n"], timings["predicted_n"]) == (len(session.tokenize(PROMPT)), 16)
    assert timings["prompt_per_second"] == pytest.approx(1000 * timings["prompt_n"] / timings["prompt_ms"])
    assert timings["predicted_per_second"] == pytest.approx(1000 * 16 / timings["predicted_ms"])


def test_nothing_wanted_nothing_generated(session):
    result = session.generate(PROMPT, GenerateOptions(n_predict=0)).run()
    assert (result.tokens, result.text, result.stop) == ([], "", "length")
    assert result.timings.prompt_n > 0


def test_batches_do_not_change_greedy_tokens(tiny_path):
    found = []
    for shape in ({}, {"n_batch": 5, "n_ubatch": 5}, {"n_batch": 64, "n_ubatch": 3}):
        with LlmSession.open(options(tiny_path, **shape)) as opened:
            found.append(opened.generate(PROMPT * 3, GREEDY).run().tokens)
    assert found[0] == found[1] == found[2]


def test_the_context_ends(session):
    result = session.generate(PROMPT, GenerateOptions(temperature=0.0, ignore_eos=True)).run()
    assert result.stop == "context"
    # the last token is sampled from a full context and not decoded any more
    assert len(session.tokenize(PROMPT)) + len(result.tokens) == session.n_ctx + 1
    with pytest.raises(UsageError, match="raise -c"):
        session.decode([1])
    with pytest.raises(UsageError, match=r"prompt has \d+ tokens and the context holds 256"):
        session.generate([1] * 256, GREEDY).run()
    with pytest.raises(UsageError, match="empty"):
        session.generate([], GREEDY).run()


def test_stop_string_and_early_end(session):
    whole = session.generate(PROMPT, GREEDY).run().text
    stop = whole[5:8]
    result = session.generate(PROMPT, GenerateOptions(temperature=0.0, ignore_eos=True, stop=(stop,))).run()
    assert result.stop == "stop"
    assert result.text == whole[: whole.index(stop)]
    for _ in session.generate(PROMPT, GREEDY):
        break
    assert session.generate(PROMPT, GREEDY).run().text == whole


def test_each_iteration_is_an_answer_of_its_own(session):
    whole = session.generate(PROMPT, GREEDY).run()
    generation = session.generate(PROMPT, GREEDY)
    for _ in generation:
        if len(generation.result.tokens) == 5:
            break
    assert generation.run().tokens == whole.tokens
    assert generation.result.text == whole.text
    assert generation.run().timings.predicted_n == len(whole.tokens)


def test_a_conversation_reuses_what_it_shares(session):
    conversation = Conversation(session, GREEDY, "be brief")
    list(conversation.ask("hello"))
    first = conversation.last.result
    list(conversation.ask("and now"))
    second = conversation.last.result
    assert first.timings.cache_n == 0
    assert second.timings.cache_n > 0
    assert [message["role"] for message in conversation.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    prompt = prompt_tokens(session, conversation.messages[:-1])
    assert second.timings.cache_n + second.timings.prompt_n == len(prompt)
    # what was reused must be what a fresh start would have computed
    fresh = session.generate(prompt, GREEDY).run()
    assert fresh.timings.cache_n == 0
    assert fresh.tokens[:4] == second.tokens[:4]


def test_a_window_forgets_what_lies_before_it(session, monkeypatch):
    """Whether there is one is libllama's to say: some architectures have a window that the file does not mention."""
    prompt = session.tokenize("the sea and the ship")
    list(session.generate(prompt, GREEDY))
    monkeypatch.setattr(type(session.model), "n_swa", 16)
    assert session.rewind(prompt) == 0
    assert session.n_past == 0


@pytest.mark.model
def test_a_real_window(gemma):
    with LlmSession.open(options(gemma, n_ctx=64)) as opened:
        assert opened.model.n_swa == 512


def test_an_unanswered_question_is_taken_back(session):
    conversation = Conversation(session, GREEDY)
    with pytest.raises(UsageError, match="context"):
        list(conversation.ask("word " * 400))
    assert conversation.messages == []
    assert "".join(conversation.ask("hello"))


def test_a_base_model_has_no_template(base_path):
    with LlmSession.open(options(base_path)) as opened:
        assert opened.template is None
        with pytest.raises(UsageError, match="base model"):
            prompt_tokens(opened, [{"role": "user", "content": "hi"}])


def test_a_split_model(tiny_path, tmp_path):
    """libllama finds the other parts; a missing one is one sentence."""
    reader = reference.GGUFReader(tiny_path)
    writer = reference.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=8)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        sub = field.types[-1] if field.types[0] == reference.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("m-*.gguf"))
    assert len(paths) == 3
    with LlmSession.open(options(tiny_path)) as whole, LlmSession.open(options(paths[0])) as split:
        assert whole.generate(PROMPT, GREEDY).run().tokens == split.generate(PROMPT, GREEDY).run().tokens
    paths[2].unlink()
    with pytest.raises(ModelError, match="is missing"):
        LlmSession.open(options(paths[0]))


def test_abort_from_another_thread(tmp_path):
    """Local work stops at its next operation, and the session goes on afterwards."""
    path = tiny.write(tmp_path / "slow.gguf", tiny.Shape(n_embd=512, n_layer=8, n_head=8, n_head_kv=8, n_ff=2048))
    with LlmSession.open(options(path, n_ctx=2048)) as opened:
        began = time.monotonic()
        opened.generate(list(range(60, 160)), GenerateOptions(n_predict=2, temperature=0.0)).run()
        assert time.monotonic() - began < 20
        expected = opened.generate("hello", GREEDY).run().tokens
        opened.reset()
        timer = threading.Timer(0.3, opened.abort)
        timer.start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            opened.decode([60 + number % 100 for number in range(2000)])
        assert time.monotonic() - began < 1.5
        timer.join()
        assert not opened.failed
        assert opened.generate("hello", GREEDY).run().tokens == expected


def test_stopped_loading(tiny_path):
    """An exception in the progress callback, Ctrl-C above all, ends the loading and is raised."""

    def progress(_what, _done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LlmSession.open(options(tiny_path), progress)


def test_close_is_final_and_may_be_repeated(tiny_path):
    opened = LlmSession.open(options(tiny_path))
    opened.close()
    opened.close()
    assert opened.failed
    with pytest.raises(GgmlFailed, match="closed"):
        opened.decode([1])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"split_mode": "row"}, "split mode"),
        ({"flash_attn": "maybe"}, "flash attention"),
        ({"type_k": "q3_k"}, "KV cache"),
        ({"n_batch": 0}, "-b must be between 1 and"),
        ({"main_gpu": 1}, "-sm none"),
        ({"devices": ("GPU7",)}, "no device GPU7"),
        ({"tensor_overrides": ("x",)}, "REGEX=BUFTYPE"),
        ({"tensor_overrides": ("x=GPU7",)}, "no device in use"),
        ({"tensor_overrides": ("x(=CPU",)}, "no regular expression"),
        ({"n_cpu_moe": -1}, "-ncmoe must be between 0 and 512"),
        ({"tensor_split": (1.0, 1.0)}, "2 shares for 0 devices"),
    ],
)
def test_senseless_options(tiny_path, values, words):
    with pytest.raises(UsageError, match=words):
        LlmSession.open(options(tiny_path, **values))


def test_a_model_of_an_unknown_kind(tmp_path):
    path = tmp_path / "odd.gguf"
    writer = reference.GGUFWriter(path, "no-such-architecture")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="no-such-architecture"):
        LlmSession.open(options(path))


def test_quantised_cache(tmp_path):
    path = tiny.write(tmp_path / "wide.gguf", tiny.Shape(n_embd=128))
    with LlmSession.open(options(path, type_k="q8_0", type_v="q8_0", flash_attn="on")) as opened:
        assert len(opened.generate(PROMPT, GREEDY).run().tokens) == 16
