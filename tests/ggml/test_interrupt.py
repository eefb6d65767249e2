from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

import pytest

from wireherd.ggml.interrupt import Interrupts

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be raised for one process there")


def test_a_signal_asks_and_is_raised_at_the_end():
    before = signal.getsignal(signal.SIGINT)
    asked = []
    steps = []

    def work():
        with Interrupts(lambda: asked.append(1)) as guard:
            signal.raise_signal(signal.SIGINT)
            steps.append(guard.interrupted)
            signal.raise_signal(signal.SIGINT)
            steps.append(len(asked))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [True, 1]
    assert signal.getsignal(signal.SIGINT) is before


def test_no_signal_no_exception():
    with Interrupts(lambda: None) as guard:
        pass
    assert not guard.interrupted


def test_another_exception_becomes_the_cause():
    def work():
        with Interrupts(lambda: None):
            signal.raise_signal(signal.SIGINT)
            raise ValueError("first")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_request_that_raises_is_harmless():
    with pytest.raises(KeyboardInterrupt), Interrupts(lambda: 1 // 0):
        signal.raise_signal(signal.SIGINT)


def test_other_threads_are_left_alone():
    before = signal.getsignal(signal.SIGINT)
    during = []

    def run():
        with Interrupts(lambda: None):
            during.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert during == [before]


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts(lambda: None):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_third_signal_ends_the_process():
    script = (
        "import signal; from wireherd.ggml.interrupt import Interrupts\n"
        "with Interrupts(lambda: None):\n"
        "    for _ in range(3): signal.raise_signal(signal.SIGINT)\n"
        "    print('still here', flush=True)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (-signal.SIGINT, "")


def test_a_callback_is_never_cut_off_at_its_entry():
    """What the class is for: a signal that arrives just before C calls back must not lose the callback's answer."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    calls = []

    def compare(_a, _b):
        calls.append(1)
        if len(calls) < 3:
            os.kill(os.getpid(), signal.SIGINT)
        return 0

    items = (ctypes.c_int * 64)(*range(64))
    sort = ctypes.CDLL(None).qsort
    sort.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, kind]
    sort.restype = None
    asked = []
    with pytest.raises(KeyboardInterrupt), Interrupts(lambda: asked.append(1)):
        sort(ctypes.addressof(items), 64, 4, kind(compare))
    assert asked == [1]
    assert len(calls) > 60
