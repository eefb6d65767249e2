"""A probe: answers what needs no state, for any client, one question after the other.

`entry.py` starts it. The supervisor reads the questions off the clients' sockets and writes the answers there. What a
hostile question breaks is this process only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireherd import ggml
from wireherd.errors import ProtocolError, RemoteError
from wireherd.obs.log import get_logger
from wireherd.protocol.connection import ServerConnection
from wireherd.protocol.framing import Frame
from wireherd.protocol.table import State
from wireherd.worker.channel import Kind, Message
from wireherd.worker.dispatch import Prober
from wireherd.worker.lifeline import describe

if TYPE_CHECKING:
    from wireherd.worker.lifeline import Lifeline

log = get_logger(__name__)


class Share:
    """What the sessions have left of the owner's limit, as the supervisor says with each question."""

    def __init__(self) -> None:
        self.left: int | None = None

    def reserve(self, size: int) -> bool:
        """Nothing is allocated here."""
        return size == 0

    def release(self, size: int) -> None:
        """Nothing was allocated here."""

    def free(self) -> int | None:
        """Bytes left when the question was asked; None without a limit."""
        return self.left


def work(line: Lifeline) -> str:
    """Answer questions until the supervisor is gone."""
    library = ggml.load(line.settings.ggml)
    connection = ServerConnection(line.settings.protocol, state=State.HELLO)
    share = Share()
    prober = Prober(library, line.settings, connection.dialect, account=share)
    line.ready(describe(prober))
    while True:
        question = line.work.get()
        opcode, _, left = question.text.partition(" ")
        share.left = None if int(left) < 0 else int(left)
        line.send(_answer(connection, prober, int(opcode), question))


def _answer(connection: ServerConnection, prober: Prober, opcode: int, question: Message) -> Message:
    frame = Frame(opcode, 0, 0, 0, len(question.data))
    try:
        connection.check(frame)
        reply = prober.handle(opcode, connection.request(frame, question.data), connection)
        return Message(Kind.ANSWER, question.number, data=connection.reply(frame, reply))
    except (RemoteError, ProtocolError) as error:
        return Message(Kind.ANSWER, question.number, text=str(error))
    except Exception as error:
        log.exception("a fault in the probe")
        return Message(Kind.ANSWER, question.number, text=f"a fault in the worker: {error}")
