"""The generated page is fresh."""

from __future__ import annotations

import pathlib

from wireherd.protocol.document import document
from wireherd.protocol.table import COMMANDS

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "protocol.md"


def test_the_page_is_fresh():
    expected = "".join(f"{line}\n" for line in document())
    assert PAGE.read_text() == expected, "run: python -m wireherd.protocol.document > docs/protocol.md"


def test_the_page_names_every_command_and_message():
    text = PAGE.read_text()
    for row in COMMANDS.values():
        assert f"| {row.name} |" in text
        for cls in (row.request, row.response):
            assert cls is None or cls.__name__ == "EmptyResponse" or f"### {cls.__name__}" in text
