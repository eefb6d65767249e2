"""Which build a library is, and which builds are known.

ggml says its own version (`ggml_version`), and that decides nothing here: the backend API number and the checks of
`check.py` do. llama.h has no version of its structs, and `llama_version()` stays the same over hundreds of builds, so
the layout of llama.h goes by the build number, which only the package around the library (or, for some, its commit)
tells. A llama.cpp library without such a label still serves a worker, which needs ggml alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: builds whose llama.h this release knows: label → the layout's name in `llama_structs.py`
KNOWN_LLAMA: Final[dict[str, str]] = {"b11548": "b11548", "b11549": "b11548"}

#: full commit → label; `ggml_commit()` tells an abbreviation of it, or "unknown"
KNOWN_COMMITS: Final[dict[str, str]] = {"781dbc5ac98921dbdb5e5b2ec5b7a50960e937d4": "b11548"}

#: what to install, in words, for messages
SUPPORTED: Final = (
    "xllamacpp 2026.10.11549 or llama-cpp-py-sync 0.11548 (llama.cpp b11549 and b11548), "
    "or for a worker any library with ggml backend API 2 or 3 (libggml-python 0.20.2)"
)

_METADATA: Final = (
    (re.compile(r"xllamacpp-\d+\.\d+\.(\d+)(?:[.+].*)?\.dist-info$", re.IGNORECASE), "xllamacpp"),
    (re.compile(r"llama_cpp_py_sync-\d+\.(\d+)(?:[.+].*)?\.dist-info$", re.IGNORECASE), "llama_cpp_py_sync"),
)
_TAG: Final = re.compile(r"""^__llama_cpp_tag__\s*=\s*["'](b\d+)["']""", re.MULTILINE)


def llama_label(folders: Iterable[Path], commit: str) -> str | None:
    """Build label ("b11549") of a llama.cpp library, or None if nothing tells it.

    Looked at, in this order: the version file of llama-cpp-py-sync beside the library, the metadata of the
    installed package around it, the commit the library was built from.

    Args:
        folders: where the library lies: as it was named, and with symbolic links resolved (installers that link
            packages into place out of a cache leave the metadata only beside the link).
        commit: what `ggml_commit()` says.
    """
    for folder in folders:
        version_file = folder / "_version.py"
        if version_file.is_file():
            tag = _TAG.search(version_file.read_text(encoding="utf-8", errors="replace"))
            if tag:
                return tag.group(1)
        for pattern, package in _METADATA:
            if folder.name != package:
                continue
            for entry in sorted(folder.parent.glob(f"{package}-*.dist-info")):
                match = pattern.match(entry.name)
                if match:
                    return f"b{match.group(1)}"
    short = commit.removesuffix("-dirty")
    if len(short) < 7:
        return None
    return next((label for full, label in KNOWN_COMMITS.items() if full.startswith(short)), None)


def refusal(path: str, label: str | None) -> str:
    """Why the llama.h of a library cannot be used, in one sentence."""
    build = f"llama.cpp {label}" if label else "a llama.cpp of a build that nothing names"
    known = " and ".join(KNOWN_LLAMA)
    return f"{path} is {build}, and this release knows the llama.h of {known} only: install {SUPPORTED}"
