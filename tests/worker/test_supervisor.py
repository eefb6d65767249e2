"""A real worker, from the outside: how it starts, answers, keeps clients apart, and ends."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from inspecting import cpu_s, probes, session_of, sessions
from raw_client import (
    ALLOC_BUFFER,
    CAPS,
    DEVICE_COUNT,
    GET_ALIGNMENT,
    GET_DEVICE_MEMORY,
    GET_MAX_SIZE,
    Raw,
    tensor,
)

from support import processes
from wireherd.worker import WorkerSettings, WorkerStartError, spawn

MIB = 1 << 20


class TestStart:
    def test_it_says_where_it_listens_and_what_it_serves(self, worker):
        assert worker.endpoint == f"127.0.0.1:{worker.port}"
        assert worker.port > 0
        assert "CPU" in worker.devices

    def test_the_supervisor_does_not_load_ggml_and_keeps_one_of_each_process(self, worker):
        maps = Path(f"/proc/{worker.pid}/maps").read_text()
        assert "ggml" not in maps
        assert "xllamacpp" not in maps
        processes.wait_until(lambda: len(sessions(worker)) == 1, 10, "one warm session")
        assert len(probes(worker)) == 1

    @pytest.mark.parametrize("host", ["localhost", "::1"])
    def test_names_and_ipv6(self, start, host):
        try:
            worker = start("--host", host)
        except WorkerStartError:
            if host == "::1":
                pytest.skip("no IPv6 here")
            raise
        with Raw(worker.port, host=host) as client:
            assert client.number(DEVICE_COUNT) >= 1

    @pytest.mark.parametrize(
        ("arguments", "word", "code"),
        [
            (["--ggml", "/no/such/library.so"], "/no/such/library.so", {1, 2}),
            (["--ggml", "/etc/hostname"], "hostname", {1, 2}),
            (["--device", "TPU7"], "TPU7", {1, 2}),
            (["--host", "0.0.0.0"], "--insecure", {2}),
            (["--host", "no-such-name.invalid", "--insecure"], "no-such-name", {1}),
            (["--protocol", "9.0"], "9.0", {2}),
            (["--threads", "0"], "threads", {2}),
            (["--mem", "0"], "--mem", {2}),
        ],
    )
    def test_what_cannot_start_says_why_in_one_sentence(self, arguments, word, code):
        done = subprocess.run(
            [sys.executable, "-m", "wireherd", "worker", "-p", "0", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode in code
        assert not done.stdout
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert word in done.stderr
        with pytest.raises(WorkerStartError, match=re.escape(word)):
            spawn(arguments)

    def test_a_taken_port(self, worker):
        with pytest.raises(WorkerStartError, match=f"127.0.0.1:{worker.port}"):
            spawn(["--port", str(worker.port)])

    def test_spawn_takes_settings(self, start):
        with spawn(WorkerSettings(port=0, threads=1, plain=True)) as running, Raw(running.port) as client:
            assert client.version[3] == 0


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_signal_ends_everything_within_a_second(self, start, number):
        worker = start()
        with Raw(worker.port) as client, Raw(worker.port) as idle, Raw(worker.port, hello=False) as silent:
            assert client.alloc(MIB)
            children = processes.descendants(worker.pid)
            assert len(children) >= 2
            begun = time.monotonic()
            os.kill(worker.pid, number)
            assert client.closed()
            assert idle.closed()
            assert silent.closed()
            processes.wait_until(lambda: worker.returncode is not None, 2, "the worker ends")
            assert time.monotonic() - begun < 1
            assert worker.returncode == 0
            assert not [pid for pid in children if Path(f"/proc/{pid}").exists()], "zombies or leftovers"

    def test_a_stopped_session_does_not_hold_up_the_end(self, start):
        worker = start()
        with Raw(worker.port) as client:
            assert client.alloc(MIB)
            os.kill(session_of(worker, client), signal.SIGSTOP)
            begun = time.monotonic()
            assert worker.stop() == 0
            assert time.monotonic() - begun < 1.5

    def test_sessions_die_with_a_killed_supervisor(self, start):
        worker = start()
        with Raw(worker.port) as client:
            assert client.alloc(MIB)
            children = processes.descendants(worker.pid)
            worker.kill()
            begun = time.monotonic()
            assert client.closed()
            processes.wait_until(lambda: not any(map(processes.alive, children)), 1, "children follow")
            assert time.monotonic() - begun < 1

    def test_it_ends_with_the_program_that_started_it(self):
        code = (
            "import os, sys\n"
            "from wireherd.worker import spawn\n"
            "print(spawn(['-t', '1']).pid, flush=True)\n"
            "sys.stdin.read()\n"
            "os.kill(os.getpid(), 9)\n"
        )
        program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pid = int(program.stdout.readline())
        children = processes.descendants(pid)
        assert processes.alive(pid)
        program.communicate()
        processes.wait_until(lambda: not any(map(processes.alive, [pid, *children])), 2, "the worker follows")


class TestStateless:
    @pytest.mark.parametrize(("arguments", "answer"), [((), (8, 0)), (("--protocol", "5.0"), (5, 0))])
    def test_hello(self, start, arguments, answer):
        with Raw(start(*arguments).port) as client:
            assert len(client.version) == 28
            assert tuple(client.version[:2]) == answer
            assert client.version[3] == 1
            assert client.version[4:] == CAPS

    def test_questions_are_answered_in_order_and_a_connection_may_go_on_to_allocate(self, worker5):
        with Raw(worker5.port) as client:
            device = struct.pack("<I", 0)
            assert client.number(DEVICE_COUNT) >= 1
            client.send(GET_ALIGNMENT, device)
            client.send(GET_MAX_SIZE, device)
            client.send(DEVICE_COUNT)
            client.send(GET_DEVICE_MEMORY, device)
            client.send(ALLOC_BUFFER, struct.pack("<IQ", 0, MIB))
            client.send(DEVICE_COUNT)
            sizes = [len(client.reply()) for _ in range(6)]
            assert sizes == [8, 8, 4, 16, 16, 4]
            assert client.alloc_size(tensor(64)) == 256

    def test_a_device_that_is_not_there_closes_only_that_connection(self, worker):
        with Raw(worker.port) as wrong, Raw(worker.port) as right:
            wrong.send(GET_ALIGNMENT, struct.pack("<I", 1000))
            assert wrong.closed()
            assert right.number(DEVICE_COUNT) >= 1

    def test_hundreds_of_connections_cost_well_under_a_millisecond_each(self, worker5):
        count = 400
        processes.wait_until(lambda: sessions(worker5), 10, "a warm session")
        pids = [worker5.pid, *probes(worker5)]
        record = tensor(4096)
        with Raw(worker5.port) as client:
            client.alloc_size(record)
        before = sum(map(cpu_s, pids))
        open_clients = []
        for number in range(count):
            client = Raw(worker5.port)
            assert client.alloc_size(record) == 4096 * 4
            if number % 4:
                client.close()
            else:
                open_clients.append(client)
        spent = sum(map(cpu_s, pids)) - before
        for client in open_clients:
            assert client.number(DEVICE_COUNT) >= 1
            client.close()
        assert spent / count < 0.001
        assert [*probes(worker5)] == pids[1:]

    def test_many_at_once(self, worker5):
        def ask(_):
            with Raw(worker5.port) as client:
                return [client.alloc_size(tensor(size)) for size in (32, 64, 128)]

        with ThreadPoolExecutor(16) as pool:
            assert set(map(tuple, pool.map(ask, range(64)))) == {(128, 256, 512)}

    def test_a_dead_probe_is_replaced_and_nobody_notices(self, start):
        worker = start()
        with Raw(worker.port) as client:
            for pid in probes(worker):
                os.kill(pid, signal.SIGKILL)
            assert client.number(DEVICE_COUNT) >= 1
        assert "SIGKILL" in worker.log()

    def test_a_hung_probe_is_noticed(self, start):
        worker = start()
        os.kill(probes(worker)[0], signal.SIGSTOP)
        with Raw(worker.port) as client:
            assert client.number(DEVICE_COUNT) >= 1
            assert "does not answer" in worker.log()
