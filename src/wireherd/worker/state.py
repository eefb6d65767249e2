"""Everything one session has: devices, buffers, graphs, and the dialect its peer speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireherd.bridge.numbering import NumberMap
from wireherd.collective import Groups
from wireherd.protocol.numbering import Numbering, stock_numbering, translate
from wireherd.worker.buffers import Buffers, Memory, OwnMemory
from wireherd.worker.devices import Devices
from wireherd.worker.facts import Types
from wireherd.worker.graphs import Graphs
from wireherd.worker.ops import OpTable
from wireherd.worker.peers import Permitted
from wireherd.worker.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.collective.pair import Pair
    from wireherd.ggml import Library
    from wireherd.protocol.dialect import Dialect
    from wireherd.worker.settings import WorkerSettings


class State:
    """What the handlers work on.

    Args:
        lib: the library.
        settings: the worker's settings.
        account: the owner's limit; None gives this process `settings.memory_limit` for itself.
    """

    def __init__(self, lib: Library, settings: WorkerSettings, account: Memory | None = None) -> None:
        names = lib.numbering()
        self.lib = lib
        self.settings = settings
        self.numbering = Numbering.of(*names)
        self.types = Types(self.numbering.types, *lib.type_sizes())
        self.account: Memory = OwnMemory(settings.memory_limit) if account is None else account
        self.devices = Devices(lib, settings.devices, settings.threads)
        self.buffers = Buffers(self.types, self.account)
        table = OpTable(self.numbering.ops, self.numbering.unary_ops, self.numbering.glu_ops, lib.api)
        self.graphs = Graphs(lib, self.types, table, self.buffers)
        self.scratch = Scratch()
        self.groups = Groups()
        #: the link to one other server that a stock client asked for
        self.pair: Pair | None = None
        self.permitted = Permitted(settings)
        #: where other workers reach this one; the session knows once it has its client's stream
        self.addresses: tuple[str, ...] = ()
        self.table = table
        self.dialect: Dialect | None = None
        #: the peer's numbers to the library's; None where they are the same
        self.map: NumberMap | None = None
        self.type_numbers: Sequence[int] | None = None
        self._op_numbers: Sequence[int] = ()

    def speak(self, dialect: Dialect) -> None:
        """Take commands of `dialect` from now on. In our own, the client writes the worker's numbers.

        Raises:
            VersionMismatch: nobody knows that version's numbers.
        """
        self.dialect = dialect
        self.map = self.type_numbers = None
        if not dialect.herd:
            theirs = stock_numbering(dialect.version)
            found = NumberMap(theirs, self.numbering)
            self.map = None if found.identity else found
            lookups = translate(theirs, self.numbering)
            self.type_numbers = lookups.types.tolist()
            self._op_numbers = lookups.ops.tolist()
        self.buffers.speak(dialect, self.type_numbers)
        self.graphs.speak(dialect, self.map)

    def op_number(self, number: int) -> int:
        """The library's number of the peer's op; -1 if it has none."""
        if self.type_numbers is None:
            return number
        return self._op_numbers[number] if 0 <= number < len(self._op_numbers) else -1

    @property
    def herd(self) -> bool:
        """Whether the peer speaks our extension, so that failures can be told instead of closing."""
        return self.dialect is not None and self.dialect.herd

    def cancel(self) -> None:
        """Stop the running graph and refuse all later ones; from any thread."""
        self.graphs.cancelled = True
        self.devices.stop()
        self.groups.stop()
        pair = self.pair  # the session's own thread may leave it meanwhile
        if pair is not None:
            pair.shutdown()

    def leave_pair(self) -> None:
        """End the link to the other server, if there is one."""
        if self.pair is not None:
            self.pair.close()
            self.pair = None

    def close(self) -> None:
        """Give everything back."""
        self.groups.close_all()
        self.leave_pair()
        self.graphs.close()
        self.buffers.close()
        self.devices.close()
