"""The frame of the command line: verbs, exit codes, one sentence for everything that goes wrong."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from wireherd.cli import main as entry
from wireherd.cli.main import VERBS, main
from wireherd.errors import ModelError, UsageError, WorkerLost

#: a device on which every write finds the disk full (Linux)
FULL = Path("/dev/full")


def ended(capsys, *words):
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "VERB"),
        (("fly",), "invalid choice: 'fly'"),
        (("run",), "-m/--model -hf/--hf-repo"),
        (("run", "-m", "x", "-hf", "a/b"), "not allowed with"),
        (("run", "-m", "x", "-foo"), "unrecognized arguments: -foo"),
        (("run", "-m", "x", "-ng", "3"), "unrecognized arguments: -ng"),
        (("run", "-m", "x", "--tem", "3"), "unrecognized arguments: --tem"),
        (("run", "-m", "x", "-n", "many"), "invalid int value"),
        (("run", "-m", "x", "-t", "0"), "invalid"),
        (("run", "-m", "x", "-sm", "row"), "invalid choice: 'row'"),
        (("devices", "--stock-timeout", "-1"), "invalid"),
        (("run", "-m", "x", "-t", "0"), "whole and above zero"),
        (("devices", "--stock-timeout", "soon"), "seconds above zero"),
        (("pull",), "required"),
        (("pull", "-hf", ""), "must not be empty"),
        (("pull", ""), "must not be empty"),
        (("run", "-m", ""), "must not be empty"),
        (("run", "-hf", ""), "must not be empty"),
        (("run", "-m", "x", "-ts", ""), "must not be empty"),
        (("run", "-m", "x", "-ot", ""), "must not be empty"),
        (("bench", "-m", "x", "-c", "512"), "unrecognized arguments: -c 512 (see wireherd bench --help)"),
        (("demo", "-n", "0"), "whole and above zero"),
    ],
)
def test_usage_errors_are_one_line_and_code_2(capsys, words, said):
    code, out, err = ended(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert "--help" in err


@pytest.mark.parametrize("verb", VERBS)
def test_help(capsys, verb):
    code, out, err = ended(capsys, verb, "--help")
    assert (code, err) == (0, "")
    assert f"usage: wireherd {verb}" in out


def test_help_lists_all_verbs(capsys):
    _, out, _ = ended(capsys, "--help")
    assert all(f"\n    {verb} " in out for verb in VERBS)


def fake(monkeypatch, outcome):
    """A verb that ends in a given way."""
    module = types.ModuleType("fake_verb")

    def add_parser(subparsers):
        subparsers.add_parser("fake").add_argument("--verbose", action="store_true")

    def run(_args):
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    module.add_parser, module.main = add_parser, run
    monkeypatch.setitem(sys.modules, "fake_verb", module)
    monkeypatch.setattr(entry, "VERBS", {"fake": "fake_verb"})


@pytest.mark.parametrize(
    ("outcome", "code", "err"),
    [
        (0, 0, ""),
        (3, 3, ""),
        (UsageError("no"), 2, "wireherd: no\n"),
        (ModelError("a\nb"), 1, "wireherd: a b\n"),
        (WorkerLost("h:1", "it died"), 1, "wireherd: worker h:1: it died\n"),
        (ValueError("x"), 1, "wireherd: internal fault: ValueError: x (--verbose shows the trace)\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_a_verb_may_end(capsys, monkeypatch, outcome, code, err):
    fake(monkeypatch, outcome)
    assert ended(capsys, "fake") == (code, "", err)


def test_verbose_shows_the_trace(capsys, monkeypatch):
    fake(monkeypatch, UsageError("no"))
    _, _, err = ended(capsys, "fake", "--verbose")
    assert err.startswith("Traceback")
    assert err.endswith("wireherd: no\n")


def test_only_the_wanted_verb_is_imported():
    """`wireherd worker` must not pay for the client, nor load a native library."""
    code = (
        "import sys; from wireherd.cli.main import main; main(['worker', '--help']); "
        "bad = {'wireherd.client.plugin', 'wireherd.llm.session', 'rich', 'jinja2', 'wireherd.cli.run'} & set(sys.modules); "
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_quiet():
    with subprocess.Popen(
        [sys.executable, "-m", "wireherd", "run", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("--help",), ("pull", "--list"), ("devices",)])
def test_a_full_disk_is_one_sentence(words, unbuffered):
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "wireherd", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    if words == ("--help",) and unbuffered:
        return  # argparse itself ignores it
    assert (done.returncode, done.stderr) == (1, "wireherd: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(closed):
    words = [sys.executable, "-m", "wireherd", "pull", "--list"]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
