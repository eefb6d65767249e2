"""What the README says to type exists."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from wireherd.cli import main as cli

README = Path(__file__).parent.parent / "README.md"


def commands() -> list[str]:
    """Every line of the README's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_two_commands_come_first():
    first, second = commands()[:2]
    assert first.startswith("python3 -m venv")
    assert first.endswith("wireherd demo")
    assert second.startswith("python3 -m venv")
    assert "'.[dev]'" in second
    assert second.endswith("pytest")
    assert all(line.startswith("wireherd ") for line in commands()[2:])


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("wireherd ")])
def test_commands_parse(line):
    words = shlex.split(line)[1:]
    parser, _ = cli._build([words[0]])
    assert parser.parse_args(words).verb == words[0]


def test_flags_of_the_table_exist(capsys):
    text = README.read_text(encoding="utf-8")
    table = text[text.index("| flag |") : text.index("`wireherd VERB --help`")]
    helps = {}
    for verb in ("run", "worker"):
        with pytest.raises(SystemExit):
            cli._build([verb])[0].parse_args([verb, "--help"])
        helps[verb] = capsys.readouterr().out
    for row in table.splitlines()[2:]:
        if not row.strip():
            continue
        cell = row.replace(r"\|", "/").split("|")[1]
        verb = "worker" if "worker" in cell else "run"
        for flag in re.findall(r"(?<![\w-])--?[a-z][\w-]*", cell):
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", helps[verb]), f"{verb} has no {flag}"


def test_this_python_is_supported():
    assert sys.version_info >= (3, 10)
