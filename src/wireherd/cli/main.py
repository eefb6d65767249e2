"""Entry point of `wireherd`: finds the verb, runs it, and turns what it raises into a sentence and an exit code."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from wireherd import __version__
from wireherd.errors import WireherdError
from wireherd.obs import log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

#: verb → its module; only the module of the verb that was asked for is imported
VERBS: Final = {
    "demo": "wireherd.cli.demo",
    "run": "wireherd.cli.run",
    "worker": "wireherd.cli.worker",
    "devices": "wireherd.cli.devices",
    "pull": "wireherd.cli.pull",
    "bench": "wireherd.cli.bench",
    "explain": "wireherd.cli.explain",
}
_FAILURE: Final = 1
_USAGE: Final = 2
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, whose complaints are one sentence."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs["allow_abbrev"] = False
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # passed through as they came

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, in one line, and exit with 2."""
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        raise SystemExit(_USAGE)

    def _get_option_tuples(self, _option_string: str) -> list[object]:  # type: ignore[override]
        # argparse reads -foo as "-f oo" and -ng as -ngl; with llama.cpp's single-dash long flags both are traps
        return []


def _build(verbs: Sequence[str]) -> tuple[Parser, dict[str, ModuleType]]:
    parser = Parser(prog="wireherd", description="Run one GGUF model over several machines.")
    parser.add_argument("--version", action="version", version=f"wireherd {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    modules = {}
    for verb in verbs:
        modules[verb] = importlib.import_module(VERBS[verb])
        modules[verb].add_parser(subparsers)
    return parser, modules


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Args:
        argv: Arguments after the program's name; None takes them from the process.
    """
    _open_closed_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    parser, modules = _build(words[:1] if words and words[0] in VERBS else list(VERBS))
    try:
        args, unknown = parser.parse_known_args(words)
        if unknown:
            parser.prog += f" {args.verb}"
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as leaving:  # --help, --version and usage errors
        code = leaving.code if isinstance(leaving.code, int) else _USAGE
        return _leave(code)
    except BrokenPipeError:
        _flush()
        return _FAILURE
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 must not end an answer
    verbose = bool(getattr(args, "verbose", False))
    log.setup(verbose)
    try:
        code = int(modules[args.verb].main(args))
    except WireherdError as error:
        return _complain(str(error), error.exit_code, verbose)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has seen enough
        _flush()
        return _FAILURE
    except Exception as error:  # noqa: BLE001 - the last wall: a fault of ours must not look like the user's
        _flush()
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            return _complain(_unwritten(error), _FAILURE, verbose)
        return _complain(
            f"internal fault: {type(error).__name__}: {error} (--verbose shows the trace)", _FAILURE, verbose
        )
    return _leave(code)


def _open_closed_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr an empty one, as if it were /dev/null."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for the whole process


def _flush() -> OSError | None:
    """Bring out what was printed; drop what cannot be written, or Python would complain of it at its end."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _leave(code: int) -> int:
    error = _flush()
    if error is None:
        return code
    if not isinstance(error, BrokenPipeError):
        _complain(_unwritten(error), _FAILURE, verbose=False)
    return _FAILURE


def _unwritten(error: OSError) -> str:
    return f"cannot write the output: {error.strerror or error}"


def _complain(sentence: str, code: int, verbose: bool) -> int:
    if verbose:
        traceback.print_exc()
    sys.stderr.write(f"wireherd: {' '.join(sentence.split())}\n")
    return code
