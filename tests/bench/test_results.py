"""tools/results.py: what it runs, what it keeps, and what the page says of it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "results.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("results", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["results"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["results"]


def results(folder, page, *words):
    return subprocess.run(
        [sys.executable, TOOL, folder, *words, "--page", page], capture_output=True, text=True, check=False
    )


def test_a_line_is_run_kept_and_written(tmp_path, smollm):
    folder, page = tmp_path / "kept", tmp_path / "results.md"
    done = results(folder, page, "set-tensor-3ms", "-r", "1", "-n", "2", "-p", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads((folder / "set-tensor-3ms.json").read_text())
    (row,) = kept["rows"]
    assert kept["command"].startswith("wireherd bench -t 1 -m smollm2-135m -p 0 -n 2 -r 1")
    text = page.read_text()
    assert kept["command"] in text
    assert f"tg2: {row['ratio']:.2f}" in text
    assert "| async" in text
    assert text.count("Not run.") == len(text.split("\n## ")) - 2, "every other line says that it was not run"
    # another run of the page alone changes nothing
    assert results(folder, tmp_path / "again.md", "--no-run").returncode == 0
    assert (tmp_path / "again.md").read_text() == text


def test_a_failure_is_told(tmp_path):
    done = results(tmp_path, tmp_path / "page.md", "draft-local", "--timeout", "0.2")
    assert done.returncode == 1
    assert "not done within 0.2 s" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    ("ratio", "low", "high", "word"),
    [(1.3, 1.1, 1.4, ": reached"), (1.1, 1.0, 1.25, "the interval holds it"), (1.1, 1.0, 1.15, "**missed**")],
)
def test_verdicts(tool, ratio, low, high, word):
    line = tool.Line("a", "b", "", bars={"tg": 1.2})
    row = {"test": "tg32", "ratio": ratio, "ratio_min": low, "ratio_max": high, "pairs": 9}
    assert word in tool.verdict(line, row)
    assert "wanted" not in tool.verdict(line, row | {"test": "pp32"})


def test_names_are_unique(tool):
    names = [line.name for line in tool._lines()]
    assert len(names) == len(set(names))
