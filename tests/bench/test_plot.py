from __future__ import annotations

import importlib.util

import pytest

from wireherd.bench import plot
from wireherd.cli.main import main
from wireherd.errors import UsageError

_PNG = b"\x89PNG\r\n\x1a\n"


def size(path):
    """Width and height of a PNG file."""
    data = path.read_bytes()
    assert data.startswith(_PNG)
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_results_are_drawn(capsys, tmp_path, tiny_model):
    path = tmp_path / "rows.png"
    code = main(["bench", "-m", tiny_model, "-t", "1", "-p", "4,8", "-n", "0", "-r", "2", "--plot", str(path)])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "pp8" in out
    width, height = size(path)
    assert width > height > 100


def test_comparisons_are_drawn(capsys, tmp_path, tiny_model):
    path = tmp_path / "ratios.svg"
    flags = ("-t", "1", "-p", "4", "-n", "2", "-r", "2", "--compare", "workers=1,2", "--plot", str(path))
    code = main(["bench", "-m", tiny_model, *flags])
    assert code == 0, capsys.readouterr().err
    assert "<svg" in path.read_text(encoding="utf-8")


def test_without_matplotlib_a_sentence_tells_how_to_get_it(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    with pytest.raises(UsageError, match=r"pip install 'wireherd\[plot\]'"):
        plot.check(tmp_path / "a.png")
