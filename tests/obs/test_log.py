from __future__ import annotations

import logging

import pytest

from wireherd.obs import log


@pytest.fixture(autouse=True)
def restored():
    root = logging.getLogger(log.ROOT)
    kept, level, propagate = list(root.handlers), root.level, root.propagate
    yield
    root.handlers[:], root.propagate = kept, propagate
    root.setLevel(level)


def test_names_stand_under_ours():
    assert log.get_logger("wireherd.worker").name == "wireherd.worker"
    assert log.get_logger("wireherd").name == "wireherd"
    assert log.get_logger("wireherders").name == "wireherd.wireherders"
    assert log.get_logger("__main__").name == "wireherd.__main__"


def test_quiet_unless_asked(capfd):
    log.setup()
    log.get_logger("x").info("not told")
    log.get_logger("x").warning("told")
    err = capfd.readouterr().err
    assert "not told" not in err
    assert "told" in err
    assert err.count("\n") == 1


def test_setup_twice_says_it_once(capfd):
    log.setup(verbose=True)
    log.setup(verbose=True)
    log.get_logger("x").debug("once")
    assert capfd.readouterr().err.count("once") == 1


@pytest.mark.parametrize(
    ("named", "level"), [("debug", logging.DEBUG), ("ERROR", logging.ERROR), ("odd", logging.WARNING)]
)
def test_level_of_the_environment(monkeypatch, named, level):
    monkeypatch.setenv("WIREHERD_LOG", named)
    log.setup()
    assert logging.getLogger(log.ROOT).level == level
