"""The shipped numbering of each version against the library of a real peer of that version."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stock import library_numbers
from stock.get_stock import stock
from wireherd.protocol.numbering import STOCK_NUMBERING, Numbering
from wireherd.protocol.version import Version

LIBRARIES = {
    "4.0.3": "bin/libggml-base.so*",
    "5.0": "bin/libggml-base.so*",
    "7.0": "bin/libggml-base.so*",
    "8.0": "llama_cpp_py_sync/libggml-base.so*",
}


@pytest.mark.stock
@pytest.mark.parametrize("version", LIBRARIES)
def test_a_peers_own_names(version: str) -> None:
    table = STOCK_NUMBERING[Version.parse(version)]
    library = max(stock(version[0]).glob(LIBRARIES[version]))
    command = [sys.executable, library_numbers.__file__, str(library), *(str(len(row)) for row in table)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert Numbering.of(*json.loads(done.stdout)) == table
