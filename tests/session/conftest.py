from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from store_peer import Peer

from wireherd.session.client import ClientOptions, ClientSession

SCHEMES = ["memory", "tcp"] if sys.platform == "win32" else ["memory", "tcp", "unix"]


@pytest.fixture
def peers(tmp_path):
    """Factory of peers by scheme; closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(scheme="tcp", **options):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="wh-"))
            where = {"memory": "memory:0", "tcp": "127.0.0.1:0", "unix": f"unix:{folder}/s"}[scheme]
            return stack.enter_context(Peer(where, **options))

        yield make


@pytest.fixture
def sessions():
    """Factory of client sessions; closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(endpoint, group=None, **options):
            return stack.enter_context(ClientSession.connect(endpoint, ClientOptions(**options), group))

        yield make


@pytest.fixture(params=SCHEMES)
def linked(request, peers, sessions):
    """A peer and a session with it, over every transport."""
    peer = peers(request.param)
    return peer, sessions(peer.address)


@pytest.fixture
def process():
    """Factory of peers in processes of their own: `(endpoint, Popen)`."""
    children = []

    def make(*flags):
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "store_peer.py"), "127.0.0.1:0", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        children.append(child)
        return child.stdout.readline().strip(), child

    yield make
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGCONT)
        child.kill()
        child.communicate(timeout=10)
