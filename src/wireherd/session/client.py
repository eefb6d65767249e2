"""A client's session with one worker: post commands, call for answers, wait for data.

Theory of operation. One ordered stream of commands. `post` never waits (but see the window), `call` waits for its own
answer, `request` names memory that an answer fills later, `drain` waits for all of those. Small commands are held back
for company for at most `HOLD_S`, and never while the worker could be idle: the first command marked `flush` after a
pause leaves at once. Before anybody waits, every session of the group is flushed.

The thread that waits reads the socket itself, in slices, so that signals, `cancel` from another thread and a dead peer
are seen. A write that blocks also reads: two ends with full buffers never wait on each other. While nobody waits, the
control connection's thread notices that the worker is gone and sends what was held back too long.

The first failure is kept, and every later operation raises it again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import LocalProtocolError, WorkerError, WorkerLost, WorkerRefused
from wireherd.protocol.messages_herd import FEATURES, Feature, HerdHelloResponse
from wireherd.protocol.table import BY_MESSAGE, Bulk
from wireherd.session.control import Control
from wireherd.session.group import SessionGroup
from wireherd.session.handshake import Opened, open_control, open_stream
from wireherd.session.options import ClientOptions, SessionStats
from wireherd.session.pipe import Answer
from wireherd.session.waiting import SLICE_S, WaitingSession

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Buffer, Self

    from wireherd.protocol.connection import Prepared
    from wireherd.protocol.dialect import Dialect
    from wireherd.protocol.fields import Message
    from wireherd.protocol.version import Version

__all__ = ["ClientOptions", "ClientSession", "SessionStats"]

#: a command marked `flush` waits at most this long for company; longer since the last flush, and it leaves at once
HOLD_S: Final = 150e-6
#: more than this does not wait for company
COALESCE_BYTES: Final = 32 << 10
#: payloads from this size on leave from the caller's memory, without a copy
BIG_BYTES: Final = 64 << 10

_CLOSE_S: Final = 0.5

_clock: Final = time.perf_counter


class ClientSession(WaitingSession):
    """One session; any thread may use it, one at a time, and `cancel` and `close` at any time.

    Attributes:
        endpoint: the worker's address as the user spelled it, or several.
        address: the one of them that this session goes by.
        group: the sessions flushed together.
        options: as given.
    """

    def __init__(self, endpoint: str, opened: Opened, options: ClientOptions, group: SessionGroup) -> None:
        """Take over a stream after its handshake; use `connect` instead."""
        super().__init__(endpoint, opened, options, group)
        self.address = opened.address
        self._window = 0  # without a control thread nobody sends later what the kernel does not take now

    @classmethod
    def connect(
        cls, endpoint: str, options: ClientOptions | None = None, group: SessionGroup | None = None
    ) -> ClientSession:
        """Connect to a worker, ours or a stock server.

        Raises:
            UsageError: `endpoint` is no address.
            WorkerLost: it cannot be reached, or does not answer in time.
            WorkerRefused: what is there is no ggml-rpc server, or said no.
            VersionMismatch: it speaks a version that we do not.
        """
        chosen = options or ClientOptions()
        opened = open_stream(
            endpoint,
            timeout_s=chosen.connect_timeout_s,
            at=dict(chosen.located).get(endpoint),
            retry_s=chosen.retry_s,
            herd=chosen.herd,
            features=FEATURES | Feature.ANSWERED_SETS if chosen.set_tensor == "sync" else FEATURES,
        )
        session = cls(endpoint, opened, chosen, group or SessionGroup())
        try:
            if chosen.set_tensor == "sync" and not session.dialect.answered_sets:
                raise WorkerRefused(endpoint, "does not answer SET_TENSOR: --set-tensor sync needs wireherd workers")
            session._join_control()
        except BaseException:
            session.close()
            raise
        session.group.add(session)
        return session

    def _join_control(self) -> None:
        hello = self.hello
        if hello is None or not hello.features & Feature.CONTROL:
            return
        opened = open_control(self.endpoint, self.address, hello.session, timeout_s=self.options.connect_timeout_s)
        self._window = min(self.options.window_bytes, hello.window)
        self._control = Control(opened, on_end=self._control_ended, on_quiet=self._tend)

    @property
    def dialect(self) -> Dialect:
        """How messages are laid out on this session."""
        return self._pipe.connection.dialect

    @property
    def version(self) -> Version | None:
        """The worker's protocol version, with its own patch."""
        return self._pipe.connection.version

    @property
    def herd(self) -> bool:
        """Whether our extension is spoken."""
        return self.hello is not None

    @property
    def hello(self) -> HerdHelloResponse | None:
        """What the worker said about itself; None for a stock server."""
        return self._pipe.connection.hello

    @property
    def stats(self) -> SessionStats:
        """What this session did so far; counts on."""
        return self._pipe.stats

    @property
    def failure(self) -> WorkerError | None:
        """The first failure, or None."""
        return self._failure

    @property
    def outstanding(self) -> int:
        """Answers that were requested and have not arrived."""
        return self._pipe.deferred

    @property
    def holding(self) -> bool:
        """Whether commands wait here to be sent."""
        return bool(self._pipe.out)

    def post(self, message: Message, bulk: Buffer | None = None, *, flush: bool = False) -> None:
        """Send a command and wait for nothing. The caller may reuse the memory of `bulk` at once.

        Args:
            message: the command.
            bulk: data that follows its fields, C-contiguous.
            flush: the worker should have it soon: a graph, or memory given back.

        Raises:
            LocalProtocolError: it is no command of this dialect, or does not fit; the session goes on.
            WorkerError: the session has failed, now or before.
        """
        with self._lock:
            if self._failure is not None:
                raise self._again(self._failure)
            pipe = self._pipe
            try:
                if bulk is None:
                    pipe.append(message)
                else:
                    view = memoryview(bulk).cast("B")
                    if len(view) >= BIG_BYTES:
                        pipe.announce(message, len(view))
                        self._send_all(view)
                        return
                    pipe.append(message, view)
                if len(pipe.out) > COALESCE_BYTES or (
                    flush and (_clock() - pipe.last_flush > HOLD_S or self._control is None)
                ):
                    self._hand_over()
            except BaseException as error:
                self._fault(error)
                raise

    def prepare(self, message: Message) -> Prepared:
        """Encode a command that has neither data nor an answer once, for `repeat`.

        Raises:
            LocalProtocolError: it is no such command of this dialect, or does not fit.
        """
        return self._pipe.connection.prepare(message)

    def repeat(self, prepared: Prepared) -> None:
        """Post a prepared command that the worker should have soon: what `post` does, for the hundreds a token.

        Raises:
            WorkerError: the session has failed, now or before.
        """
        with self._lock:
            if self._failure is not None:
                raise self._again(self._failure)
            pipe = self._pipe
            try:
                pipe.repeat(prepared)
                if _clock() - pipe.last_flush > HOLD_S or len(pipe.out) > COALESCE_BYTES or self._control is None:
                    self._hand_over()
            except BaseException as error:
                self._fault(error)
                raise

    def _hand_over(self) -> None:
        """Give the kernel what it takes; wait only where more is left than the window allows."""
        pipe = self._pipe
        pipe.send()
        while len(pipe.out) > self._window:
            self._turn(SLICE_S)
            pipe.send()

    def begin(self, message: Message) -> Answer:
        """Send a command at once and do not wait for its answer: `finish` does.

        Raises:
            LocalProtocolError: it is no command of this dialect, or does not fit; the session goes on.
            WorkerError: the session has failed, now or before.
        """
        answer = Answer(None, deferred=False)
        with self._lock:
            self.check()
            pipe = self._pipe
            try:
                before = pipe.connection.pending
                pipe.append(message, None, answer)
                answer.done = pipe.connection.pending == before  # nothing comes back in this dialect
                pipe.send()
            except BaseException as error:
                self._fault(error)
                raise
        return answer

    def finish(self, answer: Answer) -> Any:
        """Wait for the answer of a command that was begun, and give the message.

        Raises:
            RemoteError: the worker refused this command; the session goes on.
            WorkerError: the session has failed, now or before.
        """
        with self._lock:
            self.check()
            try:
                self._await(lambda: answer.done)
            except BaseException as error:
                self._fault(error)
                raise
        if answer.error is not None:
            raise answer.error
        return answer.message

    def call(self, message: Message, bulk: Buffer | None = None, *, into: Buffer | None = None) -> Any:
        """Send a command and wait for its answer.

        Args:
            message: the command.
            bulk: data that follows its fields, C-contiguous.
            into: writable memory, exactly as long as the data that comes back; only for commands that return data.

        Returns:
            The message that answers it; None for commands that return data or nothing.

        Raises:
            LocalProtocolError: it is no command of this dialect, or does not fit; the session goes on.
            RemoteError: the worker refused this command; the session goes on.
            WorkerError: the session has failed, now or before.
        """
        answer = Answer(_destination(message, into), deferred=False)
        with self._lock:
            self.check()
            pipe = self._pipe
            try:
                before = pipe.connection.pending
                if bulk is None:
                    pipe.append(message, None, answer)
                else:
                    pipe.append(message, memoryview(bulk).cast("B"), answer)
                if pipe.connection.pending == before:
                    answer.done = True  # nothing comes back in this dialect
                    self.group.flush()
                self._await(lambda: answer.done)
            except BaseException as error:
                self._fault(error)
                raise
        if answer.error is not None:
            raise answer.error
        return answer.message

    def request(self, message: Message, *, into: Buffer) -> None:
        """Send a command whose data lands in `into` later, at the latest when `drain` returns.

        The memory must stay valid and untouched until then. A refusal fails the session.

        Raises:
            LocalProtocolError: it is no command of this dialect, or does not fit; the session goes on.
            WorkerError: the session has failed, now or before.
        """
        answer = Answer(_destination(message, into), deferred=True)
        with self._lock:
            self.check()
            pipe = self._pipe
            try:
                pipe.append(message, None, answer)
                pipe.deferred += 1
                pipe.send()
                self.group.nudge()
            except BaseException as error:
                self._fault(error)
                raise

    def drain(self) -> None:
        """Wait for every answer that was requested, and for nothing else.

        Raises:
            WorkerError: the session has failed, now or before.
        """
        with self._lock:
            self.check()
            try:
                self._await(lambda: not self._pipe.deferred)
            except BaseException as error:
                self._fault(error)
                raise

    def flush(self) -> None:
        """Hand everything that is held back to the kernel.

        Raises:
            WorkerError: the session has failed, now or before.
        """
        with self._lock:
            self.check()
            try:
                self._send_all()
            except BaseException as error:
                self._fault(error)
                raise

    def cancel(self) -> None:
        """Stop whatever the worker does for this session and fail it; wakes a thread that waits. From any thread."""
        self._keep(WorkerLost(self.endpoint, "cancelled by this client"))
        if self._control is not None:
            self._control.cancel()
        self._pipe.stream.shutdown()

    def close(self) -> None:
        """End the session; sends what is held back if the worker takes it soon. From any thread, also twice."""
        self.group.remove(self)
        end = time.monotonic() + _CLOSE_S
        while self.holding and not self.push(SLICE_S) and time.monotonic() < end:
            pass
        self._keep(WorkerLost(self.endpoint, "the session is closed"))
        self._pipe.stream.shutdown()
        if self._control is not None:
            self._control.close()
        with self._lock:
            self._pipe.connection.close()
            self._pipe.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self._failure is None else self._failure.reason
        return f"<ClientSession {self.endpoint} {self.dialect!r}, {state}>"


def _destination(message: Message, into: Buffer | None) -> memoryview | None:
    """Memory for the data that answers `message`, checked to be exactly as long."""
    command = BY_MESSAGE.get(type(message))
    returns_data = command is not None and command.bulk is Bulk.RESPONSE and command.bulk_size is not None
    if not returns_data or command is None or command.bulk_size is None:
        if into is not None:
            raise LocalProtocolError(f"{type(message).__name__} returns no data")
        return None
    if into is None:
        raise LocalProtocolError(f"{type(message).__name__} needs memory for the data that it returns")
    view = memoryview(into).cast("B")
    size = command.bulk_size(message)
    if view.readonly or len(view) != size:
        raise LocalProtocolError(f"{command.name} returns {size} bytes and needs as much writable memory")
    return view
