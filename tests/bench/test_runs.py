from __future__ import annotations

import json

import pytest

from wireherd.cli.main import main


def run(capsys, *words):
    code = main(["bench", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_pairs_at_depths_in_two_formats(capsys, tiny_model):
    flags = ("-p", "4-8*2", "-n", "0", "-pg", "4,2", "-d", "0,8", "-r", "2", "-t", "1", "--delay", "0.01")
    code, out, err = run(capsys, "-m", tiny_model, *flags, "-o", "jsonl", "-oe", "csv")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    cases = [(row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows]
    assert cases == [(4, 0, 0), (8, 0, 0), (4, 2, 0), (4, 0, 8), (8, 0, 8), (4, 2, 8)]
    assert all(len(row["samples_ns"]) == 2 for row in rows)
    assert len(err.splitlines()) == 1 + len(rows)


def test_progress(capsys, tiny_model):
    code, out, err = run(capsys, "-m", tiny_model, "-p", "4", "-n", "0", "-d", "4", "-r", "1", "-t", "1", "--progress")
    assert (code, err) == (
        0,
        "wireherd: test 1/1, pp4 @ d4: warm-up\nwireherd: test 1/1, pp4 @ d4: run 1/1\n",
    )
    assert "| pp4 @ d4 |" in " ".join(out.split())


@pytest.mark.parametrize("flags", [("-pg", "4,2"), ("-d", "8"), ("-oe", "csv")])
def test_a_profile_has_no_such_cases(capsys, tiny_model, flags):
    code, out, err = run(capsys, "-m", tiny_model, "--profile", *flags)
    assert (code, out) == (2, "")
    assert "leave out" in err
