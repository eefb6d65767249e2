"""Stock peers beside ours in one bench: every program that measures says what it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stock, pytest.mark.model]

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("sides", "split", "protocol"),
    [
        (("8", "both", "2"), "tensor", "8.0+herd"),
        (("5", "client", "1"), "layer", "5.0"),
        (("7", "worker", "1"), "layer", None),
    ],
    ids=["8", "5", "7"],
)
def test_pairs_with_stock_peers(smollm, sides, split, protocol):
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    cases = ("-m", smollm, "-sm", split, "-p", "16", "-n", "4", "-r", "1", "--link", "0.5", "-o", "json")
    done = subprocess.run(
        [sys.executable, "-m", "stock.compare", *sides, *cases],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    prompt, generated = json.loads(done.stdout)
    for row in (prompt, generated):
        assert row["a"]["build_commit"] != row["b"]["build_commit"] or protocol is None
        assert row["a"]["round_trips_per_token"] is None, "nobody counts in another program"
        assert row["b"]["protocol"] == protocol
    floor_ns = 4 * 1_000_000  # each token goes there and back
    assert min(*generated["a"]["samples_ns"], *generated["b"]["samples_ns"]) >= floor_ns
