"""Ctrl-C while a native call runs; each case in a process of its own, since it is about signals."""

import signal
import subprocess
import sys
import threading
import time

from wireherd.llm.interrupt import native

HEAD = """
import ctypes, signal, sys, threading, time
from wireherd.llm.interrupt import CtrlC, native
stop = threading.Event()
told = []
def abort(): told.append("abort"); {abort}
def cancel(): told.append("cancel"); stop.set()
def call():
    # stands for C code that looks at no signal: the main thread runs no Python while it waits here
    while not stop.is_set():
        ctypes.CDLL(None).usleep(20_000)
def say(*words): print(*words, flush=True)
"""


def start(body, abort="stop.set()"):
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD.format(abort=abort) + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    return process


def interrupt(process, times=1):
    began = time.monotonic()
    for number in range(times):
        process.send_signal(signal.SIGINT)
        if number + 1 < times:
            time.sleep(0.3)
    out, err = process.communicate(timeout=20)
    return out.decode(), err.decode(), process.returncode, time.monotonic() - began


STOPPED = """
with CtrlC():
    try:
        with native(abort, cancel):
            say("ready")
            call()
    except KeyboardInterrupt:
        say("interrupted", *told)
    say("on")
"""


def test_the_gentle_way():
    out, err, code, seconds = interrupt(start(STOPPED))
    assert (out, err, code) == ("interrupted abort\non\n", "", 0)
    assert seconds < 1


def test_workers_are_told_when_the_gentle_way_does_nothing():
    out, err, code, seconds = interrupt(start(STOPPED, abort="pass"))
    assert (out, err, code) == ("interrupted abort cancel\non\n", "", 0)
    assert seconds < 1.5


def test_a_call_that_runs_no_python_at_all_is_stopped_in_time():
    """The abort must come from the watching thread: the main one is in C until it has come."""
    body = """
flag = (ctypes.c_int * 1)()
libc = ctypes.CDLL(None)
with CtrlC():
    try:
        with native(abort, cancel):
            say("ready")
            began = time.monotonic()
            libc.sleep(2)  # a signal ends this sleep early, on the main thread: then go on as a long call would
            while time.monotonic() - began < 2:
                libc.usleep(100_000)
    except KeyboardInterrupt:
        say("interrupted", told[0])
"""
    out, _, code, _ = interrupt(start(body, abort="pass"))
    assert (out, code) == ("interrupted abort\n", 0)


def test_the_second_one_ends_the_process():
    body = """
libc = ctypes.CDLL(None)
with CtrlC(on_exit=lambda: say("bye")), native(abort, cancel):
    say("ready")
    for _ in range(400):
        libc.usleep(50_000)
"""
    out, _, code, seconds = interrupt(start(body, abort="pass"), times=2)
    assert out == "bye\n"
    assert code == 128 + signal.SIGINT
    assert seconds < 3


def test_outside_of_native_calls_it_is_pythons_own():
    body = """
with CtrlC():
    try:
        say("ready")
        time.sleep(20)
    except KeyboardInterrupt:
        say("interrupted", *told)
before = signal.getsignal(signal.SIGINT)
say(before is signal.default_int_handler)
"""
    out, _, code, _ = interrupt(start(body))
    assert (out, code) == ("interrupted\nTrue\n", 0)


def test_without_ctrl_c_a_library_user_is_safe_too():
    body = """
try:
    with native(abort, cancel):
        say("ready")
        call()
except KeyboardInterrupt:
    say("interrupted", *told)
"""
    out, _, code, _ = interrupt(start(body, abort="pass"))
    assert (out, code) == ("interrupted abort cancel\n", 0)


def test_another_thread_is_left_alone():
    done = []

    def work():
        with native(lambda: None, lambda: None):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
