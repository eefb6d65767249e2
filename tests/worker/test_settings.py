"""Settings of a worker and the bookkeeping of its memory limit."""

from __future__ import annotations

import argparse
import dataclasses
import socket

import pytest

from wireherd.cli import worker as verb
from wireherd.errors import ConnectError, UsageError
from wireherd.protocol.version import NEWEST, Version
from wireherd.worker import WorkerSettings
from wireherd.worker.budget import Budget
from wireherd.worker.listen import open_listener, spell, spell_address
from wireherd.worker.settings import is_loopback

FULL = WorkerSettings(
    host="::1",
    port=0,
    devices=("CPU", "CUDA0"),
    threads=3,
    memory_limit=512 << 20,
    protocol=Version(5, 0),
    ggml="/lib/ggml.so",
    insecure=True,
    verbose=True,
    plain=True,
    graph_cache_limit=7,
)


def parse(arguments):
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    return verb.settings(parser.parse_args(["worker", *arguments]))


def test_json_keeps_everything():
    assert WorkerSettings.from_json(FULL.to_json()) == FULL
    assert WorkerSettings.from_json(WorkerSettings().to_json()) == WorkerSettings()


def test_arguments_keep_everything():
    assert parse(FULL.to_arguments()) == FULL
    assert parse([]) == WorkerSettings()


def test_short_flags():
    got = parse(["-H", "localhost", "-p", "0", "-d", "CPU", "-t", "2", "-m", "64", "--protocol", "5.0"])
    assert got == WorkerSettings(
        host="localhost", port=0, devices=("CPU",), threads=2, memory_limit=64 << 20, protocol=Version(5, 0)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"port": 70000},
        {"port": -1},
        {"graph_cache_limit": -1},
        {"graph_cache_limit": 1 << 30},
        {"threads": 0},
        {"threads": 5000},
        {"memory_limit": 0},
        {"devices": ()},
        {"protocol": Version(9, 0)},
        {"prewarmed": 0},
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "192.168.1.5"},
        {"host": "example.org"},
    ],
)
def test_senseless_settings_are_refused_in_one_sentence(change):
    with pytest.raises(UsageError) as caught:
        dataclasses.replace(WorkerSettings(), **change).check()
    assert "\n" not in str(caught.value)


def test_an_open_address_needs_the_word_and_the_refusal_says_which():
    with pytest.raises(UsageError, match="--insecure"):
        WorkerSettings(host="0.0.0.0").check()
    WorkerSettings(host="0.0.0.0", insecure=True).check()


@pytest.mark.parametrize("mem", ["0", "-5"])
def test_a_limit_of_nothing_is_refused(mem):
    with pytest.raises(UsageError):
        parse(["-m", mem])


def test_loopback():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "LocalHost."))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "somewhere", ""))


def test_spelling():
    assert spell("127.0.0.1", 5) == "127.0.0.1:5"
    assert spell("::1", 5) == spell("[::1]", 5) == "[::1]:5"
    assert spell_address(("::ffff:10.0.0.1", 7, 0, 0)) == "10.0.0.1:7"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_listening(host):
    try:
        listener = open_listener(WorkerSettings(host=host, port=0))
    except ConnectError:
        if ":" in host:
            pytest.skip("no IPv6 here")
        raise
    with listener:
        family = listener.family
        with socket.socket(family) as client:
            client.settimeout(2)
            client.connect(listener.getsockname()[:2])


def test_a_taken_port_is_one_sentence():
    with open_listener(WorkerSettings(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConnectError, match=f"127.0.0.1:{port}"):
            open_listener(WorkerSettings(port=port))


def test_a_name_without_address_is_one_sentence():
    with pytest.raises(ConnectError, match="no-such-name"):
        open_listener(WorkerSettings(host="no-such-name.invalid", port=0, insecure=True))


def test_a_budget_is_shared_and_comes_back():
    budget = Budget(100)
    assert budget.reserve("a", 60)
    assert not budget.reserve("b", 41)
    assert budget.reserve("b", 40)
    assert budget.free == 0
    budget.release("a", 10)
    assert budget.free == 10
    budget.release("a", 1000)
    assert budget.used == 40
    assert budget.drop("b") == 40
    assert budget.used == 0
    assert not budget.reserve("a", -1)
    assert budget.drop("nobody") == 0


def test_without_a_limit_everything_is_granted_and_counted():
    budget = Budget(None)
    assert budget.reserve("a", 1 << 60)
    assert budget.free is None
    assert budget.used == 1 << 60


def test_the_newest_protocol_is_the_default():
    assert WorkerSettings().protocol == NEWEST
