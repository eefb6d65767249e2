#!/usr/bin/env python3
"""Refuse source files that nobody reads in one sitting: `check_sizes.py [FILE...]`, by default all of src.

Tables that only list what another project declares are exempt, each by name and with its reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 400

#: path below src/wireherd → why its length is no burden
EXEMPT = {
    "ggml/functions.py": "one row per C function",
}


def too_long(files: list[Path]) -> list[tuple[int, Path]]:
    """Files over the limit with their line counts, longest first."""
    counted = [(path.read_text(encoding="utf-8").count("\n"), path) for path in files]
    return sorted((row for row in counted if row[0] > LIMIT), reverse=True)


def main(arguments: list[str]) -> int:
    """Print every file over the limit; the exit code is 1 if there is one."""
    root = Path(__file__).resolve().parent.parent / "src" / "wireherd"
    files = [Path(name) for name in arguments] or sorted(root.rglob("*.py"))
    exempt = {root / name for name in EXEMPT}
    found = too_long([path for path in files if path.resolve() not in exempt])
    for lines, path in found:
        print(f"{path}: {lines} lines, {LIMIT} are allowed: move a wall")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
