"""`wireherd run`, `pull` and `devices` on this machine alone, as a script sees them."""

import argparse
import io
import json
import os
import subprocess
import sys

import pytest

from wireherd.cli import options
from wireherd.cli.main import main
from wireherd.llm import models
from wireherd.testing import tiny

QUICK = ("-t", "1", "-c", "256", "-fa", "on", "--no-repack", "--ignore-eos")
GREEDY = ("--temp", "0", "-n", "8")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", chat_template=tiny.CHATML))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(tiny.write(tmp_path_factory.mktemp("tiny") / "base.gguf"))


def run(capsys, *words, code=0):
    assert main(words) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def answer(capsys, *words):
    out, err = run(capsys, "run", "--json", *words, *QUICK)
    assert err == ""
    assert out.count("\n") == 1
    return json.loads(out)


def test_json_is_one_object(capsys, model):
    found = answer(capsys, "-m", model, "-p", "the sea", *GREEDY)
    assert list(found)[:2] == ["text", "tokens"]
    assert found["workers"] == []
    assert found["stop"] == "length"
    assert len(found["tokens"]) == found["timings"]["predicted_n"] == 8
    assert set(found["timings"]) >= {"prompt_n", "prompt_per_second", "predicted_n", "predicted_per_second"}


def test_json_needs_no_unicode_of_the_terminal(model):
    """What stdout cannot encode would come out as a question mark, and a script would never know."""
    words = ("run", "--json", "-m", model, "-p", "the sea", *GREEDY, *QUICK)
    found = []
    for encoding in ("utf-8", "ascii"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(
            [sys.executable, "-m", "wireherd", *words], capture_output=True, check=True, env=environment
        )
        found.append(json.loads(done.stdout)["text"])
    assert not found[0].isascii()
    assert found[0] == found[1]


def test_text_streams_to_stdout(capsys, model):
    out, err = run(capsys, "run", "-m", model, "-p", "the sea", *GREEDY, *QUICK)
    assert err == ""
    assert out == answer(capsys, "-m", model, "-p", "the sea", *GREEDY)["text"] + "\n"


def test_a_prompt_is_raw_unless_a_conversation_is_asked_for(capsys, model):
    raw = answer(capsys, "-m", model, "-p", "hi", *GREEDY)["timings"]["prompt_n"]
    chat = answer(capsys, "-m", model, "-cnv", "-p", "hi", *GREEDY)["timings"]["prompt_n"]
    system = answer(capsys, "-m", model, "-sys", "be kind", "-p", "hi", *GREEDY)["timings"]["prompt_n"]
    assert raw < chat < system
    assert answer(capsys, "-m", model, "-no-cnv", "-p", "hi", *GREEDY)["timings"]["prompt_n"] == raw


def test_prompt_from_file_and_escapes(capsys, model, tmp_path, monkeypatch):
    path = tmp_path / "prompt.txt"
    path.write_text("one\ntwo")
    expected = answer(capsys, "-m", model, "-f", str(path), *GREEDY)["tokens"]
    assert answer(capsys, "-m", model, "-p", r"one\ntwo", *GREEDY)["tokens"] == expected
    literal = answer(capsys, "-m", model, "-p", r"one\ntwo", "--no-escape", *GREEDY)
    assert (
        literal["timings"]["prompt_n"]
        == answer(capsys, "-m", model, "-f", str(path), *GREEDY)["timings"]["prompt_n"] + 1
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo"))
    assert answer(capsys, "-m", model, "-f", "-", *GREEDY)["tokens"] == expected


def test_stop(capsys, model):
    whole = answer(capsys, "-m", model, "-p", "the sea", "--temp", "0", "-n", "20")["text"]
    cut = answer(capsys, "-m", model, "-p", "the sea", "--temp", "0", "-n", "20", "--stop", whole[4:7])
    assert cut["stop"] == "stop"
    assert cut["text"] == whole[: whole.index(whole[4:7])]


def test_chat_reads_lines(capsys, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\nand now\n/exit\nnever\n"))
    out, err = run(capsys, "run", "-m", model, *GREEDY, *QUICK)
    assert err == ""
    assert out.endswith("\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(capsys, "run", "-m", model, *QUICK) == ("", "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("-p", "x", "-f", "y"), 2, "not both"),
        (("-f", "/no/such/file"), 2, "cannot read the prompt file"),
        (("--json",), 2, "needs a prompt"),
        (("-no-cnv",), 2, "-no-cnv needs a prompt"),
        (("-p", "x", "-sys", "be kind", "-no-cnv"), 2, "-no-cnv forbids"),
        (("-p", "x", "--stop", ""), 2, "--stop needs a text"),
        (("-p", "x", "-c", "-5"), 2, "-c must be between"),
        (("-p", "x", "-c", "99999999999"), 2, "-c must be between"),
        (("-p", "x", "-b", "99999999999"), 2, "-b must be between"),
        (("-p", "x", "-ngl", "99999999999"), 2, "-ngl must be between"),
        (("-p", "x", "-t", "100000"), 2, "-t must be between 1 and 1024"),
        (("-p", "x", "--graph-cache", "-1"), 2, "--graph-cache must be between 0 and 1048576"),
        (("-p", "x", "--graph-cache", "9999999"), 2, "--graph-cache must be between"),
        (("-p", "x", "-mg", "1"), 2, "-sm none"),
        (("-p", "x", "-sm", "none", "-mg", "3"), 2, "names no device"),
        (("-p", "x", "-dev", ""), 2, "empty name"),
        (("-p", "x", "-ts", "a"), 2, "-ts takes numbers"),
        (("-p", "x", "-dev", "GPU7"), 2, "no device GPU7"),
        (("-p", "x", "-ot", "nonsense"), 2, "REGEX=BUFTYPE"),
        (("-p", "word " * 300), 2, "raise -c"),
        (("-p", ""), 2, "empty"),
        (("-p", "x", "--min-p", "3"), 2, "min-p"),
        (("-p", "x", "--ggml", "/no/such/lib"), 1, "no library at /no/such/lib"),
        (("-p", "x", "--rpc", "127.0.0.1:9"), 1, "127.0.0.1:9"),
    ],
)
def test_one_sentence(capsys, model, words, code, said):
    out, err = run(capsys, "run", "-m", model, *QUICK, *words, code=code)
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_base_model_does_not_chat(capsys, base):
    _, err = run(capsys, "run", "-m", base, *QUICK, code=2)
    assert "base model without a chat template" in err
    _, err = run(capsys, "run", "-m", base, "-cnv", "-p", "hi", *QUICK, code=2)
    assert "base model without a chat template" in err


def test_no_such_model(capsys):
    _, err = run(capsys, "run", "-m", "/no/such/model.gguf", "-p", "x", code=2)
    assert err == "wireherd: there is no model file /no/such/model.gguf\n"
    _, err = run(capsys, "run", "-m", "smollm", "-p", "x", code=2)
    assert err == f"wireherd: there is no model file smollm, nor a known model of that name: {models.names()}\n"


def test_a_file_that_is_no_capture(capsys, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("# not a capture\n" * 9)
    out, err = run(capsys, "explain", "--c2s", str(path), "--s2c", str(path), code=1)
    assert out.count("0 frames") == 2
    assert err == "wireherd: there is not one whole frame in these files: they are no captured connection\n"


def test_a_profile_is_no_json(capsys, model):
    _, err = run(capsys, "bench", "-m", model, "--profile", "-o", "json", code=2)
    assert err == "wireherd: --profile prints text only: leave out -o\n"


def test_devices(capsys):
    out, err = run(capsys, "devices")
    assert err == ""
    assert out.splitlines()[0].split()[:3] == ["WHERE", "PROTOCOL", "NAME"]
    found = json.loads(run(capsys, "devices", "--json")[0])
    assert found[0]["type"] == "CPU"
    assert found[0]["memory_total"] > 0
    assert run(capsys, "devices", "--rpc", "127.0.0.1:9", code=1)[1].count("\n") == 1
    assert run(capsys, "devices", "--rpc", "host:port", code=2)[1].count("\n") == 1


def test_pull(capsys, monkeypatch, tmp_path):
    out, _ = run(capsys, "pull", "--list")
    assert len(out.splitlines()) == len(models.KNOWN)
    monkeypatch.setenv("WIREHERD_CACHE", str(tmp_path))
    out, err = run(capsys, "pull", "smollm2", "--offline", code=1)
    assert out == ""
    assert "Apache-2.0" in err
    assert "--offline" in err
    assert "there are smollm2" in run(capsys, "pull", "x", code=2)[1]


@pytest.mark.parametrize("rpc", ["", ",", "127.0.0.1:1,", ",127.0.0.1:1", " "])
@pytest.mark.parametrize("verb", ["run", "devices"])
def test_an_empty_address_is_no_local_run(capsys, base, verb, rpc):
    words = ("-m", base, "-p", "hi") if verb == "run" else ()
    out, err = run(capsys, verb, *words, "--rpc", rpc, code=2)
    assert out == ""
    assert "empty address" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("word", "means"), [("1", "on"), ("0", "off"), ("-1", "auto"), ("on", "on"), ("auto", "auto")])
def test_flash_attention_as_llama_bench_spells_it(word, means):
    parser = argparse.ArgumentParser()
    options.add_compute(parser)
    assert parser.parse_args(["-fa", word]).flash_attn == means
