"""The one wall between Python exceptions and C.

`bind` turns an object with methods into a vtable struct: every function-pointer field of the struct whose name is a
method of the object becomes a callback, the others stay NULL. A callback catches everything, BaseException too:
without that ctypes prints the exception and hands an arbitrary integer to C, which takes it for a status or a pointer.
What the method returns is made an int inside the wall, so a forgotten `return` is caught as well.

One thing no wall in Python can catch: an exception that a signal handler raises at the very entry of a callback,
before its first instruction (KeyboardInterrupt on the main thread). Native calls that end in callbacks therefore run
under `interrupt.Interrupts`, whose handler does not raise, or on another thread than the main one.
"""

from __future__ import annotations

import contextlib
import ctypes
from operator import index
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wireherd.ggml.enums import DeviceType, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    OnError = Callable[[str, BaseException], None]

_Struct = TypeVar("_Struct", bound=ctypes.Structure)

#: what every CFUNCTYPE derives from
_FUNCTION_POINTER: Final = ctypes.CFUNCTYPE(None).__mro__[1]
_NAME: Final = ctypes.create_string_buffer(b"failed")

#: What a slot answers after its method raised. Whatever is not here answers 0: NULL, false, no devices.
FAILURES: Final[dict[str, int]] = {
    # C prints names without looking: never NULL
    "get_name": ctypes.addressof(_NAME),
    "get_description": ctypes.addressof(_NAME),
    # ggml asserts that a buffer has a base; nobody but its owner looks at what is there
    "get_base": 1 << 12,
    # a power of two, or rounding up breaks
    "get_alignment": 128,
    "get_max_size": 1 << 60,
    # too large to be allocated, small enough to be added up
    "get_alloc_size": 1 << 56,
    "get_alloc_size_n": 1 << 56,
    "get_type": DeviceType.GPU,
    "init_tensor": Status.FAILED,
    "graph_compute": Status.FAILED,
    "graph_plan_compute": Status.FAILED,
}


def bind(
    struct_type: type[_Struct],
    impl: object,
    *,
    on_error: OnError,
    failures: Mapping[str, int] | None = None,
) -> _Struct:
    """Make a vtable of `struct_type` whose slots call the methods of `impl` of the same names.

    Args:
        struct_type: an interface struct (`abi.BufferInterface`, `abi.DeviceInterface`, ...).
        impl: its attributes named like slots are called with the C arguments: addresses as ints, 0 for NULL.
            A slot that `impl` lacks, or has as None, is NULL.
        on_error: told of every exception (slot name, exception); what it raises itself is dropped.
        failures: slot → answer after an exception, over `FAILURES`.

    Returns:
        the struct; it keeps its callbacks and `impl` alive, and must itself live as long as C may call. Assigning it
        to a field of another ctypes struct keeps it alive too; passing it to C by value does not.
    """
    table = struct_type()
    kept: list[object] = [impl]
    for field in struct_type._fields_:
        slot, kind = field[0], field[1]
        if not (isinstance(kind, type) and issubclass(kind, _FUNCTION_POINTER)):
            continue
        method = getattr(impl, slot, None)
        if method is None:
            continue
        failure = (failures or {}).get(slot, FAILURES.get(slot, 0))
        callback = callback_of(kind, method, slot=slot, failure=failure, on_error=on_error)
        kept.append(callback)
        setattr(table, slot, callback)
    table.__dict__["_kept"] = kept
    return table


def callback_of(
    kind: Any,
    method: Callable[..., Any],
    *,
    slot: str,
    failure: int,
    on_error: OnError,
) -> Any:
    """One guarded callback of the function type `kind`; keep the result alive as long as C may call it."""
    if kind._restype_ is None:

        def guarded_void(*arguments: Any) -> None:
            try:
                method(*arguments)
            except BaseException as error:  # noqa: BLE001  the wall
                _report(on_error, slot, error)

        return kind(guarded_void)

    def guarded(*arguments: Any) -> int:
        try:
            return index(method(*arguments))
        except BaseException as error:  # noqa: BLE001  the wall
            _report(on_error, slot, error)
            return failure

    return kind(guarded)


def _report(on_error: OnError, slot: str, error: BaseException) -> None:
    with contextlib.suppress(BaseException):
        on_error(slot, error)
