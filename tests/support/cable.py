"""A cable between two pseudo-terminals: a byte-stream device with two ends that have paths, as two machines' would."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import threading


class Cable:
    """`near` and `far` are the paths of its ends; what goes in at one comes out at the other, until it is unplugged."""

    def __init__(self) -> None:
        self._masters = []
        self._slaves = []  # held open, so that an end without a user is an idle wire and not a hang-up
        for _ in range(2):
            master, slave = pty.openpty()
            os.set_blocking(master, False)
            self._masters.append(master)
            self._slaves.append(slave)
        self.near, self.far = map(os.ttyname, self._slaves)
        self.plugged = True
        self.carried = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def inject(self, data: bytes) -> None:
        """Noise on the wire, towards the far end."""
        os.set_blocking(self._masters[1], True)
        while data:
            data = data[os.write(self._masters[1], data) :]
        os.set_blocking(self._masters[1], False)

    def _run(self) -> None:
        held = [b"", b""]  # towards each master
        while not self._closing:
            poller = select.poll()
            for index, master in enumerate(self._masters):
                wanted = 0 if held[1 - index] else select.POLLIN
                poller.register(master, wanted | (select.POLLOUT if held[index] else 0))
            poller.poll(50)
            for index, master in enumerate(self._masters):
                other = 1 - index
                with contextlib.suppress(BlockingIOError):
                    if not held[other]:
                        held[other] = os.read(master, 1 << 16)
                        self.carried += len(held[other])
                    if not self.plugged:
                        held[other] = b""
                with contextlib.suppress(BlockingIOError):
                    if held[other]:
                        held[other] = held[other][os.write(self._masters[other], held[other]) :]

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        for descriptor in self._masters + self._slaves:
            os.close(descriptor)

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
