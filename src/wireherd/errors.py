"""Every exception the package raises on purpose, as one tree.

    WireherdError
      UsageError                    what the user asked for makes no sense (exit code 2)
      ModelError                    a model file that cannot be read, or does not fit
      NativeError                   the native library: missing, of an unknown build, or failing
        LibraryNotFound  UnknownBuild  GgmlFailed
      TransportError                bytes could not be moved
        ConnectError  ConnectTimeout  ReadTimeout  PeerClosed
      ProtocolError                 abstract: the rules of the wire were broken
        LocalProtocolError          ... by us: a bug
        RemoteProtocolError         ... by the peer
          FrameTooLarge  BadLength  UnknownCommand  OutOfOrder  VersionMismatch
      RemoteError                   the worker answered with a status other than OK
        BadRequest  NoSuchBuffer  NoSuchDevice  OutOfBounds  OutOfMemory  UnsupportedOp
        BadGraph  NoSuchGraph  GraphFailed  NotAllowed  LimitExceeded  Cancelled  InternalError  PeerLost
      WorkerError                   what reaches the user of a cluster: it names the worker
        WorkerLost  WorkerRefused

The wire status stands on the class (`RemoteError.status`), and a registry refuses two classes with one status.
"""

from __future__ import annotations

import re
from typing import ClassVar

_RANK = re.compile(r"(?:^|: )rank (\d{1,5}) \(")


class WireherdError(Exception):
    """Base of all errors of this package; `str()` is one sentence fit for a user."""

    exit_code: ClassVar[int] = 1


class UsageError(WireherdError):
    """What was asked for makes no sense: a wrong flag, a malformed address, a missing file."""

    exit_code = 2


class ModelError(WireherdError):
    """A model file that cannot be read, is not what it claims, or does not fit."""


class NativeError(WireherdError):
    """The native library is missing, unknown or failed."""


class LibraryNotFound(NativeError):
    """No ggml library where one was expected."""


class UnknownBuild(NativeError):
    """A library whose layout this release does not know; the message names what is supported."""


class GgmlFailed(NativeError):
    """A call into ggml or llama.cpp returned a failure."""


class TransportError(WireherdError):
    """Bytes could not be moved."""


class ConnectError(TransportError):
    """The peer could not be reached."""


class ConnectTimeout(ConnectError):
    """The peer did not take the connection in time."""


class ReadTimeout(TransportError):
    """The peer sent nothing for longer than allowed."""


class PeerClosed(TransportError):
    """The peer closed the stream."""


class ProtocolError(WireherdError):
    """The rules of the wire were broken. Abstract: raise one of its two halves."""

    def __init__(self, message: str = "") -> None:
        if type(self) is ProtocolError:
            raise TypeError("ProtocolError is abstract: raise LocalProtocolError or RemoteProtocolError")
        super().__init__(message)


class LocalProtocolError(ProtocolError):
    """This side broke the rules: a bug here."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules."""


class FrameTooLarge(RemoteProtocolError):
    """A declared size beyond what the command may carry."""


class BadLength(RemoteProtocolError):
    """A size that does not fit the layout of the message."""


class UnknownCommand(RemoteProtocolError):
    """A command number the agreed dialect does not have."""


class OutOfOrder(RemoteProtocolError):
    """A command in a state that does not allow it."""


class VersionMismatch(RemoteProtocolError):
    """The peer speaks a protocol version this side cannot."""


class RemoteError(WireherdError):
    """The worker answered with a status other than OK; `status` is its number on the wire."""

    status: ClassVar[int] = 0


class BadRequest(RemoteError):
    """Malformed or senseless values in a well-formed message."""

    status = 1


class NoSuchBuffer(RemoteError):
    """A buffer handle that this session does not own."""

    status = 2


class NoSuchDevice(RemoteError):
    """A device index the worker does not have."""

    status = 3


class OutOfBounds(RemoteError):
    """An offset, size, row or address outside its tensor or buffer."""

    status = 4


class OutOfMemory(RemoteError):
    """The device, or the limit set by its owner, has no room."""

    status = 5


class UnsupportedOp(RemoteError):
    """An operation the device cannot run, or that is not allowed over the network."""

    status = 6


class BadGraph(RemoteError):
    """A graph that does not hang together: ids, sources, shapes or parameters."""

    status = 7


class NoSuchGraph(RemoteError):
    """A graph uid that the worker does not hold."""

    status = 8


class GraphFailed(RemoteError):
    """ggml reported a failure while it computed a graph."""

    status = 9


class NotAllowed(RemoteError):
    """The worker's settings forbid it."""

    status = 10


class LimitExceeded(RemoteError):
    """A quota of the worker was reached."""

    status = 11


class Cancelled(RemoteError):
    """The work was cancelled by its client."""

    status = 12


class InternalError(RemoteError):
    """The worker met a fault of its own."""

    status = 13


class PeerLost(RemoteError):
    """Another member of a group failed, died or fell silent; `rank` says which one, where the sentence tells.

    The sentence begins with "rank N (its address)", also when it has travelled; a command's name may stand before it.
    """

    status = 14

    @classmethod
    def of(cls, rank: int, address: str, why: str) -> PeerLost:
        """Name the member and what is wrong with it."""
        return cls(f"rank {rank} ({address}) {why}")

    @property
    def rank(self) -> int | None:
        """Rank of the member at fault; None if the sentence names none."""
        found = _RANK.search(str(self))
        return int(found[1]) if found else None


def _registry() -> dict[int, type[RemoteError]]:
    found: dict[int, type[RemoteError]] = {}
    for cls in RemoteError.__subclasses__():
        if cls.status in found or cls.status == 0:
            raise TypeError(f"{cls.__name__} reuses wire status {cls.status}")
        found[cls.status] = cls
    return found


#: wire status → exception class; status 0 means OK and has no class
REMOTE_ERRORS: dict[int, type[RemoteError]] = _registry()


def remote_error(status: int, reason: str) -> RemoteError:
    """Build the exception for a wire status; unknown numbers give `InternalError`."""
    return REMOTE_ERRORS.get(status, InternalError)(reason)


class WorkerError(WireherdError):
    """Something is wrong with one worker; `endpoint` is how the user spelled it."""

    def __init__(self, endpoint: str, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"worker {endpoint}: {reason}")


class WorkerLost(WorkerError):
    """The worker died, hung or was cut off."""


class WorkerRefused(WorkerError):
    """The worker is there but said no."""
