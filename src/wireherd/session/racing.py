"""Several addresses of one worker: all are tried at once, and the quickest to answer is kept.

Each is measured by a connection of its own that says HELLO and leaves again: no server spends a session on that, and
one that serves a single client at a time is free again for the connection that counts.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError, WireherdError, WorkerError
from wireherd.obs.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wireherd.transport import Address

log = get_logger(__name__)

#: after the first answer the others have as long again, at least this long, to show that they are quicker: a longer
#: way to connect (a name to look up) may lead over the quicker link
GRACE_S: Final = 0.1


def quickest(addresses: Sequence[Address], measure: Callable[[Address], float]) -> Address:
    """The address whose round trip is shortest.

    Args:
        addresses: two or more.
        measure: seconds of one round trip; runs on a thread of its own, and must end in bounded time.

    Raises:
        ConnectError: none answers; the sentence names every address and why.
    """
    results: SimpleQueue[tuple[Address, float | WireherdError]] = SimpleQueue()

    def run(address: Address) -> None:
        try:
            results.put((address, measure(address)))
        except WireherdError as error:
            results.put((address, error))
        except Exception as error:  # noqa: BLE001 - the one that waits must hear of it
            results.put((address, ConnectError(f"{type(error).__name__}: {error}")))

    begun = time.monotonic()
    for address in addresses:
        threading.Thread(target=run, args=(address,), name=f"try {address}", daemon=True).start()
    times: dict[Address, float] = {}
    reasons: dict[Address, str] = {}
    end: float | None = None
    while len(times) + len(reasons) < len(addresses):
        try:
            address, result = results.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
        except Empty:
            break
        if isinstance(result, WireherdError):
            reasons[address] = result.reason if isinstance(result, WorkerError) else str(result)
            continue
        times[address] = result
        if end is None:
            now = time.monotonic()
            end = now + max(GRACE_S, now - begun)
    told = ", ".join(_tell(address, times, reasons) for address in addresses)
    if not times:
        raise ConnectError(f"none of its addresses leads there: {told}")
    best = min(times, key=times.__getitem__)
    log.info("going by %s, the quickest of %s", best, told)
    return best


def _tell(address: Address, times: dict[Address, float], reasons: dict[Address, str]) -> str:
    if address in times:
        return f"{address} ({times[address] * 1e3:.2f} ms)"
    return f"{address} ({reasons.get(address, 'no answer yet')})"
