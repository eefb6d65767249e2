"""Where every process of a worker begins: `python -m wireherd.worker.entry ROLE CHANNEL`, started by the supervisor.

The lifeline comes first and the heavy imports (numpy, ggml) after it, so that a process whose supervisor dies meanwhile
is gone at once too.
"""

from __future__ import annotations

import importlib
import socket
import sys
from typing import Final, NoReturn

from wireherd.errors import WireherdError
from wireherd.obs.log import get_logger
from wireherd.worker.channel import Channel, Kind, Message
from wireherd.worker.lifeline import Lifeline, expect_the_worst, leave
from wireherd.worker.logs import start_logging

log = get_logger("wireherd.worker.entry")  # this module runs as __main__

#: role on the command line → module with `work(line) -> str`: runs to the end and says why it ended
_MODULES: Final = {"probe": "wireherd.worker.probe", "session": "wireherd.worker.process"}
_MAX_SHARE: Final = 1 << 16


def main(role: str, channel: str) -> NoReturn:
    """Run a process of the worker until its work ends or the supervisor is gone."""
    line = Lifeline(_open(channel))
    start_logging(line.settings)
    expect_the_worst()
    try:
        reason: str = importlib.import_module(_MODULES[role]).work(line)
    except WireherdError as error:
        log.debug("cannot go on", exc_info=True)
        line.send(Message(Kind.FAILED, number=error.exit_code, text=str(error)))
        leave(error.exit_code)
    except Exception as error:
        log.exception("a fault in the worker")
        line.send(Message(Kind.FAILED, number=1, text=f"a fault in the worker: {error}"))
        leave(1)
    line.send(Message(Kind.ENDED, text=reason))
    leave(0)


def _open(channel: str) -> Channel:
    """The channel whose end the supervisor put into this process."""
    if sys.platform == "win32":
        return Channel(socket.fromshare(sys.stdin.buffer.read(_MAX_SHARE)))
    sock = socket.socket(fileno=int(channel))
    sock.set_inheritable(False)
    sock.setblocking(True)
    return Channel(sock)


if __name__ == "__main__":
    main(*sys.argv[1:3])
