"""The supervisor's side of the probes: questions that need no session, asked in order, each answered once.

A probe works through its questions one by one, so when it dies the first unanswered question is the suspect. All are
asked again of the next probe; a question that was the suspect twice is refused.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wireherd.errors import BadRequest, InternalError, LimitExceeded
from wireherd.obs.log import get_logger
from wireherd.worker.channel import Kind, Message
from wireherd.worker.child import Child, Role
from wireherd.worker.pool import Keeper

if TYPE_CHECKING:
    from wireherd.worker.budget import Budget
    from wireherd.worker.settings import WorkerSettings

log = get_logger(__name__)

_ANSWER_TIMEOUT_S: Final = 5.0
_MAX_PENDING: Final = 4096


@dataclass(slots=True)
class _Question:
    number: int
    opcode: int
    payload: bytes
    answer: asyncio.Future[bytes]
    #: probes that died with this question first in line
    deaths: int = 0
    timer: asyncio.TimerHandle | None = None


class ProbePool(Keeper):
    """The probe processes and the questions they have not answered yet."""

    def __init__(self, settings: WorkerSettings, budget: Budget, *, processes: int = 1) -> None:
        super().__init__(Role.PROBE, settings)
        self._budget = budget
        self._processes = processes
        self._numbers = itertools.count(1)
        self._asked: dict[Child, OrderedDict[int, _Question]] = {}
        self._waiting: deque[_Question] = deque()

    def missing(self) -> int:
        """The number of probes never changes."""
        return self._processes - len(self.children)

    async def ask(self, opcode: int, payload: bytes) -> bytes:
        """The whole reply, framed, to one stateless command.

        Raises:
            RemoteError: the probe refused, died of it or took too long; the client's connection should be closed.
        """
        if len(self._waiting) + sum(len(asked) for asked in self._asked.values()) >= _MAX_PENDING:
            raise LimitExceeded("too many questions at once")
        loop = asyncio.get_running_loop()
        question = _Question(next(self._numbers), opcode, payload, loop.create_future())
        question.timer = loop.call_later(_ANSWER_TIMEOUT_S, self._late, question)
        self._put(question)
        try:
            return await question.answer
        finally:
            question.timer.cancel()

    def _put(self, question: _Question) -> None:
        if not self._asked:
            self._waiting.append(question)
            return
        child = min(self._asked, key=lambda candidate: len(self._asked[candidate]))
        self._asked[child][question.number] = question
        free = -1 if self._budget.free is None else self._budget.free
        child.send(Message(Kind.PROBE, question.number, f"{question.opcode} {free}", question.payload))

    def ready(self, child: Child) -> None:
        """Ask what waited for a probe."""
        self._asked[child] = OrderedDict()
        waiting, self._waiting = self._waiting, deque()
        for question in waiting:
            self._put(question)

    def received(self, child: Child, message: Message) -> None:
        """An answer came."""
        question = self._asked.get(child, OrderedDict()).pop(message.number, None)
        if message.kind is not Kind.ANSWER or question is None or question.answer.done():
            return
        if message.data:
            question.answer.set_result(message.data)
        else:
            question.answer.set_exception(BadRequest(message.text))

    def exited(self, child: Child) -> None:
        """Ask again what the dead probe had not answered, unless it is what kills probes."""
        asked = self._asked.pop(child, OrderedDict())
        log.warning("probe %d was lost: %s", child.number, child.reason())
        for position, question in enumerate(asked.values()):
            if question.answer.done():
                continue
            question.deaths += position == 0
            if question.deaths > 1:
                question.answer.set_exception(InternalError(f"the probe was {child.reason()} by this command"))
            else:
                self._put(question)

    def _late(self, question: _Question) -> None:
        """End a probe that hangs; this question gets its second chance as after any death of a probe."""
        if question.answer.done():
            return
        for child, asked in self._asked.items():
            if question.number in asked:
                log.warning("probe %d does not answer and is ended", child.number)
                child.kill()
                question.timer = asyncio.get_running_loop().call_later(_ANSWER_TIMEOUT_S, self._late, question)
                return
        question.answer.set_exception(InternalError("no probe process was ready in time"))
