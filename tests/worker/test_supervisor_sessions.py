"""Sessions of a real worker: one process a client, memory, crashes, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from inspecting import descriptors, session_of, sessions, settled
from raw_client import (
    ALLOC_BUFFER,
    DEVICE_COUNT,
    FREE_BUFFER,
    GET_DEVICE_MEMORY,
    HELLO,
    SET_TENSOR,
    Gone,
    Raw,
)

from support import processes
from wireherd import ggml

MIB = 1 << 20


class TestSessions:
    def test_every_client_has_a_process_of_its_own_which_ends_with_it(self, start):
        worker = start()
        first, second = Raw(worker.port), Raw(worker.port)
        assert first.alloc(64 * MIB)
        assert second.alloc(64 * MIB)
        pids = [session_of(worker, client) for client in (first, second)]
        assert len(set(pids)) == 2
        first.close()
        processes.wait_until(lambda: not Path(f"/proc/{pids[0]}").exists(), 2, "the session ends")
        assert second.number(DEVICE_COUNT) >= 1
        second.close()
        processes.wait_until(lambda: worker.log().count("disconnected") == 2, 2, "two lines")
        processes.wait_until(lambda: len(sessions(worker)) == 1, 10, "one warm session")

    def test_a_burst_of_clients_is_served_as_processes_become_ready(self, start):
        worker = start()
        clients = [Raw(worker.port) for _ in range(6)]
        for client in clients:
            client.send(ALLOC_BUFFER, struct.pack("<IQ", 0, MIB))
        assert all(struct.unpack("<QQ", client.reply())[0] for client in clients)
        for client in clients:
            client.close()

    def test_a_crash_takes_one_client_along_and_is_named_in_the_log(self, start):
        worker = start()
        with Raw(worker.port) as victim, Raw(worker.port) as other:
            assert victim.alloc(MIB)
            assert other.alloc(MIB)
            os.kill(session_of(worker, victim), signal.SIGSEGV)
            assert victim.closed()
            assert other.alloc(MIB)
            with Raw(worker.port) as fresh:
                assert fresh.alloc(MIB)
            processes.wait_until(lambda: "killed by SIGSEGV" in worker.log(), 2, "the log names the signal")

    def test_the_memory_limit_is_for_all_clients_together(self, start):
        worker = start("--mem", "96")
        with Raw(worker.port) as second:
            with Raw(worker.port) as first:
                assert first.alloc(64 * MIB)
                assert not _alloc(second, 64 * MIB)
            with Raw(worker.port) as third:
                assert third.alloc(64 * MIB)
                assert not _alloc(third, 64 * MIB)

    def test_reported_memory_follows_the_limit(self, start):
        worker = start("--mem", "96")
        device = struct.pack("<I", 0)
        with Raw(worker.port) as client, Raw(worker.port) as asking:
            assert struct.unpack("<QQ", asking.call(GET_DEVICE_MEMORY, device)) == (96 * MIB, 96 * MIB)
            assert client.alloc(32 * MIB)
            assert struct.unpack("<QQ", asking.call(GET_DEVICE_MEMORY, device)) == (64 * MIB, 96 * MIB)

    def test_memory_comes_back(self, start):
        worker = start()
        before = processes.resident_bytes(worker.pid)
        with Raw(worker.port) as client:
            handle = client.alloc(128 * MIB)
            client.send(5, struct.pack("<QB", handle, 7))
            assert client.number(DEVICE_COUNT) >= 1
            assert processes.resident_bytes(worker.pid) > before + 100 * MIB
        processes.wait_until(lambda: len(sessions(worker)) == 1, 5, "the session ends")
        assert processes.resident_bytes(worker.pid) < before + 30 * MIB

    def test_a_session_that_cannot_start_is_tried_again_without_haste(self, start, tmp_path):
        library = tmp_path / ggml.load().path.name
        shutil.copy(ggml.load().path, library)
        worker = start("--ggml", str(library))
        library.rename(tmp_path / "away.so")
        first, second = Raw(worker.port), Raw(worker.port)
        assert first.alloc(MIB), "the warm session had it loaded"
        second.send(ALLOC_BUFFER, struct.pack("<IQ", 0, MIB))
        processes.wait_until(lambda: worker.log().count("could not start") >= 2, 20, "it tries")
        assert str(library) in worker.log()
        assert first.number(DEVICE_COUNT) == 1
        (tmp_path / "away.so").rename(library)
        assert struct.unpack("<QQ", second.reply())[0]
        assert worker.log().count("could not start") < 12
        first.close()
        second.close()

    def test_a_worker_short_of_descriptors_drops_the_idle_and_goes_on(self):
        command = f"ulimit -n 48; exec {sys.executable} -m wireherd worker -p 0 -t 1"
        with subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            port = int(process.stdout.readline().split(b" (")[0].rpartition(b":")[2])
            try:
                with contextlib.ExitStack() as stack:
                    for _ in range(80):
                        client = stack.enter_context(Raw(port))
                        assert client.number(DEVICE_COUNT) == 1
                    assert client.alloc(MIB)
            finally:
                process.terminate()
                errors = process.stderr.read()
            assert process.wait() == 0
        assert b"Traceback" not in errors

    def test_nothing_leaks_in_the_supervisor(self, start):
        worker = start()
        for _ in range(3):
            with Raw(worker.port) as client:
                assert client.alloc(MIB)
        processes.wait_until(lambda: len(sessions(worker)) == 1, 5, "sessions end")
        before = settled(worker.pid)
        for number in range(60):
            client = Raw(worker.port, hello=bool(number % 3))
            if number % 3 == 2:
                client.send(SET_TENSOR, b"", 1 << 40)
                assert client.closed()
            client.close()
        for _ in range(3):
            with Raw(worker.port) as client:
                assert client.alloc(MIB)
        processes.wait_until(lambda: len(sessions(worker)) == 1, 5, "sessions end")
        processes.wait_until(lambda: descriptors(worker.pid) <= before, 10, "descriptors are back")

    @pytest.mark.parametrize(
        ("opcode", "size"), [(SET_TENSOR, 12 << 30), (ALLOC_BUFFER, 1 << 62), (FREE_BUFFER, 8), (HELLO, 24), (99, 0)]
    )
    def test_nonsense_costs_no_session(self, worker, opcode, size):
        processes.wait_until(lambda: len(sessions(worker)) == 1, 10, "one warm session")
        warm = sessions(worker)
        with Raw(worker.port) as client:
            client.send(opcode, b"", size)
            assert client.closed()
        assert sessions(worker) == warm


def _alloc(client, size):
    """Handle of a new buffer; 0 if there was no room, however the worker says so."""
    try:
        return client.alloc(size)
    except Gone:
        return 0
