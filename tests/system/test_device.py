"""A worker at the end of a cable that is no network: two pseudo-terminals stand in for a byte-stream device."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from support import processes
from support.cli import EQUAL_KERNELS, GREEDY, command, generate, wireherd
from support.workers import Worker

if sys.platform == "win32":
    pytest.skip("POSIX only", allow_module_level=True)

from support.cable import Cable

PROMPT = "The old lighthouse keeper"


def sessions_begun(worker: Worker) -> int:
    return worker.errors().count(" connected: session")


def test_clients_one_after_the_other_get_the_local_tokens_also_after_one_was_killed(tiny_model: str) -> None:
    alone = generate(tiny_model, PROMPT, n=16, extra=GREEDY)["tokens"]
    with Cable() as cable:
        worker = Worker("-H", f"device:{cable.far}")
        try:
            assert worker.endpoint == f"device:{cable.far}"
            rpc = [f"device:{cable.near}"]
            cable.inject(os.urandom(3000))
            for _ in range(2):
                answer = generate(tiny_model, PROMPT, rpc=rpc, n=16, extra=GREEDY)
                assert answer["tokens"] == alone
                assert answer["workers"][0]["endpoint"] == rpc[0]
                assert answer["workers"][0]["protocol"].endswith("+herd")
            arguments = ("run", "-m", tiny_model, "-p", PROMPT, "-n", "3000", "--rpc", rpc[0], *EQUAL_KERNELS, *GREEDY)
            victim = subprocess.Popen(
                command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert victim.stdout is not None
            assert victim.stdout.read(10)
            victim.kill()
            victim.wait(10)
            victim.stdout.close()
            answer = generate(tiny_model, PROMPT, rpc=rpc, n=16, extra=GREEDY)
            assert answer["tokens"] == alone
            assert sessions_begun(worker) == 4
            processes.wait_until(lambda: worker.errors().count("disconnected: session") == 4, 10, "four sessions over")
        finally:
            worker.stop()


@pytest.mark.slow
def test_a_real_model_over_a_device_and_tcp_at_once(smollm: str) -> None:
    alone = generate(smollm, PROMPT, n=8, extra=GREEDY)["tokens"]
    with Cable() as cable:
        worker = Worker("-H", f"127.0.0.1,device:{cable.far}")
        try:
            rpc = [f"device:{cable.near}", worker.endpoint]
            answer = generate(smollm, PROMPT, rpc=rpc, n=8, extra=GREEDY)
            assert answer["tokens"] == alone
            assert cable.carried > 20_000_000, "half of the weights went another way"
        finally:
            worker.stop()


def test_a_worker_that_dies_is_noticed_within_a_second_over_a_device(tiny_model: str) -> None:
    with Cable() as cable:
        worker = Worker("-H", f"device:{cable.far}")
        try:
            arguments = ("run", "-m", tiny_model, "-p", PROMPT, "-n", "100000", "-c", "2048")
            client = subprocess.Popen(
                command(*arguments, "--rpc", f"device:{cable.near}", *EQUAL_KERNELS, *GREEDY),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert client.stdout is not None
            assert client.stdout.read(10)
            worker.kill()
            begun = time.monotonic()
            _, errors = client.communicate(timeout=20)
            assert time.monotonic() - begun < 5  # a second to notice, the rest to end
            assert client.returncode == 1
            assert f"worker device:{cable.near}" in errors
            assert "Traceback" not in errors
        finally:
            worker.stop()


def test_a_device_with_nobody_or_none_at_all_is_one_sentence(tiny_model: str) -> None:
    with Cable() as cable:
        outcome = wireherd("run", "-m", tiny_model, "-p", "x", "--rpc", f"device:{cable.near}")
        assert outcome.code == 1
        assert "no worker answered at the other end" in outcome.sentence()
    outcome = wireherd("worker", "-H", "device:/dev/no-such-device")
    assert outcome.code == 1
    assert "device:/dev/no-such-device: there is no such device" in outcome.sentence()
