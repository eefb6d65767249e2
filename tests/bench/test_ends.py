"""What a bench starts beside itself, when that ends before its time: one sentence, and nothing that hides it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from wireherd.bench.cases import BenchSettings, Case
from wireherd.bench.driver import Driver, DriverError
from wireherd.bench.link import Link, LinkError, LinkShape
from wireherd.cli.main import main
from wireherd.llm.options import LlamaOptions

SETTINGS = BenchSettings(llama=LlamaOptions(model=Path("smol.gguf"), rpc=("a:1",)), generated=(8,), repetitions=1)


def drive(command: str) -> None:
    with Driver(command, SETTINGS) as driver:
        driver._process.wait(20)
        driver.run(Case(n_gen=8))


def aim() -> None:
    with Link(LinkShape.parse("1"), 1) as link:
        link._process.kill()
        link._process.wait(20)
        link.aim(0, "127.0.0.1:1")


def test_a_driver_that_is_gone_is_named(tmp_path):
    script = tmp_path / "driver.py"
    script.write_text("print('{}', flush=True)")
    with pytest.raises(DriverError, match="ended with exit code 0"):
        drive(shlex.join([sys.executable, str(script)]))


def test_a_relay_that_is_gone_is_named():
    with pytest.raises(LinkError):
        aim()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rpc", "local", "--link", "5"), "local"),
        (("--rpc", "local,127.0.0.1:9", "--link", "5"), "local"),
        (("--compare", "workers=0,1", "--worker-protocol", "2.0"), "--worker-protocol 2.0"),
        (("--compare", "workers=0,1", "--worker-protocol", "nonsense"), "nonsense"),
    ],
)
def test_what_would_not_be_measured_is_refused(capsys, tiny_model, words, said):
    code = main(["bench", "-m", tiny_model, "-p", "0", "-n", "2", "-r", "2", *words])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
