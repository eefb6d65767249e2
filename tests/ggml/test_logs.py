from __future__ import annotations

import logging
import subprocess
import sys

from wireherd.ggml.enums import LogLevel


def test_lines_are_put_together_and_errors_kept(installed, caplog):
    log = installed.log
    log.errors()
    with caplog.at_level(logging.DEBUG, "wireherd.ggml.native"):
        log._line(LogLevel.INFO, b"half a ", 0)
        log._line(LogLevel.CONT, b"line\n", 0)
        log._line(LogLevel.INFO, b"....\n", 0)
        log._line(LogLevel.ERROR, b"broken: \xff\n", 0)
        log._line(LogLevel.WARN, None, 0)
        log._line(LogLevel.CONT, b"careful\n", 0)
        log._line(99, b"from the future\n", 0)
    native = [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "wireherd.ggml.native"]
    assert native[:3] == [
        (logging.DEBUG, "half a line"),
        (logging.INFO, "broken: \N{REPLACEMENT CHARACTER}"),
        (logging.INFO, "careful"),
    ]
    assert log.errors() == ["broken: \N{REPLACEMENT CHARACTER}"]
    assert log.errors() == []


def test_ggml_speaks_through_it(installed, tiny_path, caplog):
    from wireherd.ggml.llama import Model, ModelOptions

    with caplog.at_level(logging.DEBUG, "wireherd.ggml.native"):
        Model(installed, tiny_path, ModelOptions(devices=[])).close()
    assert any("llama_model_loader" in record.getMessage() for record in caplog.records)


def test_a_process_ends_quietly(tiny_path):
    """Also without any close: C may log after the interpreter and its callbacks are gone."""
    script = (
        "import sys; from wireherd import ggml; from wireherd.ggml.llama import *;"
        "m = Model(ggml.load(), sys.argv[1], ModelOptions(devices=[])); c = Context(m, ContextOptions(n_ctx=64)); print('done')"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(tiny_path)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
