"""A worker on a unix socket: private, beside TCP, taken over when it was left behind, gone at the end."""

from __future__ import annotations

import re
import sys

import pytest

from wireherd.errors import UsageError
from wireherd.protocol.messages_stock import DeviceCountRequest
from wireherd.session.client import ClientSession
from wireherd.worker import WorkerSettings, spawn

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no unix sockets")


def test_a_worker_listens_on_a_unix_socket_too_and_removes_it(workers, tmp_path):
    path = tmp_path / "w.sock"
    (worker,) = workers(1, "-H", f"unix:{path},127.0.0.1")
    assert worker.endpoint == f"unix:{path}"
    assert re.search(r", 127\.0\.0\.1:\d+ \(protocol", worker.output[-1])
    assert path.stat().st_mode & 0o777 == 0o600
    with ClientSession.connect(worker.endpoint) as session:
        assert session.herd
        assert session.call(DeviceCountRequest()).count >= 1
        with pytest.raises(AssertionError, match="already in use"):
            workers(1, "-H", f"unix:{path}")
    assert worker.stop() == 0
    assert not path.exists()


def test_a_socket_that_a_killed_worker_left_is_taken_over(workers, tmp_path):
    path = tmp_path / "w.sock"
    (dead,) = workers(1, "-H", f"unix:{path}")
    dead.kill()
    dead.process.wait(10)
    assert path.exists()
    (worker,) = workers(1, "-H", f"unix:{path}")
    with ClientSession.connect(worker.endpoint) as session:
        assert session.call(DeviceCountRequest()).count >= 1


def test_spawn_takes_a_unix_socket(tmp_path):
    with spawn(WorkerSettings(host=f"unix:{tmp_path / 'w'}", threads=1)) as worker:
        assert worker.endpoint == f"unix:{tmp_path / 'w'}"
        assert worker.port == 0
        with ClientSession.connect(worker.endpoint) as session:
            assert session.herd


@pytest.mark.parametrize("host", ["unix:", "unix:/" + "x" * 200, "127.0.0.1,unix:"])
def test_a_path_that_cannot_be_one_is_refused_at_once(host):
    with pytest.raises(UsageError):
        WorkerSettings(host=host).check()
