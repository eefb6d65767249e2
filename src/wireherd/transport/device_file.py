"""A byte-stream device as a file: opened for one owner, set to carry bytes as they are, read and written unblocking.

A terminal (a serial line, a pseudo-terminal) is made raw and is put back on close; other character devices are taken as
they are. `/dev/fd/N` is a descriptor that this process was given: a socket or a pipe end that a driver's helper made.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import ConnectError
from wireherd.transport.sockets import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

_GIVEN: Final = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
_READ: Final = 1 << 17


class DeviceGone(Exception):  # noqa: N818 - a state of the device; whoever owns it decides what it means
    """The device ended or failed; `again` tells whether the same descriptor may come back to life."""

    def __init__(self, reason: str, *, again: bool) -> None:
        self.again = again
        super().__init__(reason)


class DeviceBusyError(ConnectError):
    """Another process has the device, for now."""


class DeviceFile:
    """An open device; for one thread."""

    def __init__(self, path: str, descriptor: int, *, given: bool) -> None:
        """Take over a descriptor; use `open_device`."""
        self.path = path
        self.given = given
        self._descriptor = descriptor
        self._before: list[Any] | None = None
        os.set_blocking(descriptor, False)
        if os.isatty(descriptor):
            self._make_raw()

    def fileno(self) -> int:
        """The descriptor, -1 once closed."""
        return self._descriptor

    def read(self) -> bytes | None:
        """What is there; None if nothing is.

        Raises:
            DeviceGone: it ended or failed.
        """
        try:
            data = os.read(self._descriptor, _READ)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._gone(error) from error
        if not data:
            raise DeviceGone("the device ended", again=False)
        return data

    def write(self, views: Sequence[memoryview]) -> int:
        """Write what fits; the number of bytes.

        Raises:
            DeviceGone: it ended or failed.
        """
        try:
            return os.writev(self._descriptor, views)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._gone(error) from error

    def close(self) -> None:
        """Put the terminal back as it was and close. Closing twice is fine."""
        if self._descriptor < 0:
            return
        if self._before is not None and sys.platform != "win32":
            import termios  # noqa: PLC0415 - POSIX only

            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
        os.close(self._descriptor)
        self._descriptor = -1

    def _make_raw(self) -> None:
        if sys.platform == "win32":
            return
        import termios  # noqa: PLC0415 - POSIX only
        import tty  # noqa: PLC0415

        try:
            if not self.given:  # its giver knows what it is for; the two ends of a pseudo-terminal share their modes
                self._before = termios.tcgetattr(self._descriptor)
            tty.setraw(self._descriptor, termios.TCSANOW)
            mode = termios.tcgetattr(self._descriptor)
            mode[2] |= termios.CLOCAL | termios.CREAD  # no carrier is waited for
            termios.tcsetattr(self._descriptor, termios.TCSANOW, mode)
        except termios.error as error:
            raise ConnectError(f"the terminal {self.path} cannot be made raw: {error.args[-1]}") from error

    @staticmethod
    def _gone(error: OSError) -> DeviceGone:
        # the controlling end of a pseudo-terminal fails so while nobody has the other end open
        return DeviceGone(sentence(error), again=error.errno == errno.EIO)


def open_device(path: str) -> DeviceFile:
    """Open a device for this process alone.

    Raises:
        DeviceBusyError: another process has it.
        ConnectError: there is none, or it is no byte-stream device.
    """
    if sys.platform == "win32":
        raise ConnectError("device: needs a POSIX system; on Windows give the worker's network address")
    given = _GIVEN.fullmatch(path)
    try:
        descriptor = os.dup(int(given[1])) if given else os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        reason = "there is no such device" if error.errno in {errno.ENOENT, errno.EBADF} else sentence(error)
        raise ConnectError(reason) from error
    try:
        os.set_inheritable(descriptor, False)
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)) or path == os.devnull:
            raise ConnectError("it is no byte-stream device")
        _lock(descriptor)
        return DeviceFile(path, descriptor, given=given is not None)
    except BaseException:
        os.close(descriptor)
        raise


def _lock(descriptor: int) -> None:
    """Keep other processes off: two that read one stream would each get half of it. Their end frees the lock."""
    if sys.platform == "win32":
        return
    import fcntl  # noqa: PLC0415 - POSIX only

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DeviceBusyError("the device is in use by another process") from error
    except OSError:  # a kind of file that knows no locks
        return
