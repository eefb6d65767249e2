from __future__ import annotations

import ctypes
import gc

import pytest

from wireherd.ggml import memory
from wireherd.ggml.enums import Status
from wireherd.ggml.structs import ABIS, POINTER_T
from wireherd.ggml.vtable import FAILURES, bind

INTERFACES = [
    (abi.api, name)
    for abi in ABIS.values()
    for name in ("BufferTypeInterface", "BufferInterface", "BackendInterface", "DeviceInterface", "RegInterface")
]
SLOTS = [(api, name, slot) for api, name in INTERFACES for slot, _ in getattr(ABIS[api], name)._fields_]


def arguments(kind):
    return [1 for _ in kind._argtypes_]


class Raising:
    def __init__(self, error):
        self.error = error

    def __getattr__(self, slot):
        def method(*_):
            raise self.error

        return method


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), MemoryError(), RecursionError()]
)
@pytest.mark.parametrize(("api", "name", "slot"), SLOTS)
def test_an_exception_in_any_slot_gives_its_failure_value(api, name, slot, error):
    seen = []
    kind = getattr(ABIS[api], name)
    table = bind(kind, Raising(error), on_error=lambda *what: seen.append(what))
    function = dict(kind._fields_)[slot]
    answer = getattr(table, slot)(*arguments(function))
    assert seen == [(slot, error)]
    if function._restype_ is None:
        assert answer is None
    else:
        assert answer == FAILURES.get(slot, 0)


def test_failure_values_are_safe_for_c():
    assert FAILURES["graph_compute"] == Status.FAILED == -1
    assert memory.read_text(FAILURES["get_name"]) == "failed"
    assert FAILURES["get_alignment"].bit_count() == 1
    assert FAILURES["get_base"]


def test_failures_can_be_chosen():
    table = bind(ABIS[3].BufferInterface, Raising(OSError()), on_error=lambda *_: None, failures={"get_base": 4096 * 7})
    assert table.get_base(1) == 4096 * 7


def test_a_reporter_that_raises_is_harmless():
    def on_error(*_):
        raise KeyboardInterrupt

    table = bind(ABIS[3].BackendInterface, Raising(ValueError()), on_error=on_error)
    assert table.graph_compute(1, 2) == -1


@pytest.mark.parametrize("answer", [None, "text", 1.5, object()])
def test_a_senseless_answer_is_a_failure(answer):
    class Backend:
        def graph_compute(self, *_):
            return answer

    seen = []
    table = bind(ABIS[3].BackendInterface, Backend(), on_error=lambda slot, error: seen.append((slot, type(error))))
    assert table.graph_compute(1, 2) == -1
    assert seen == [("graph_compute", TypeError)]


def test_missing_methods_are_null_and_arguments_arrive():
    class Buffer:
        clear = None

        def set_tensor(self, *what):
            self.what = what

        def cpy_tensor(self, *_):
            return True

    buffer = Buffer()
    table = bind(ABIS[3].BufferInterface, buffer, on_error=lambda *_: None)
    filled = {slot for slot, _ in table._fields_ if getattr(table, slot)}
    assert filled == {"set_tensor", "cpy_tensor"}
    table.set_tensor(2**63 + 8, 0, 3, 2**40, 5)
    assert buffer.what == (2**63 + 8, 0, 3, 2**40, 5)
    assert table.cpy_tensor(1, 2, 3) is True


def test_nothing_is_collected_while_the_table_lives():
    class Device:
        def get_type(self, _):
            return 7

    abi = ABIS[3]
    device = abi.Device()
    device.iface = bind(abi.DeviceInterface, Device(), on_error=lambda *_: None)
    gc.collect()
    junk = [bytearray(200) for _ in range(2000)]
    pointer = memory.read_u64(ctypes.addressof(device) + abi.DeviceInterface.get_type.offset)
    assert ctypes.CFUNCTYPE(ctypes.c_int, POINTER_T)(pointer)(0) == 7
    assert junk


def test_ggml_calls_a_device_made_in_python(installed):
    """The layout and the wall, seen from C: ggml's own functions call the slots."""
    abi, c = installed.abi, installed.c
    errors = []

    class Device:
        name = ctypes.create_string_buffer(b"made here")

        def get_name(self, _device):
            return ctypes.addressof(self.name)

        def get_type(self, _device):
            return 1

        def get_memory(self, _device, free, total):
            memory.write_u64(free, 11)
            memory.write_u64(total, 22)

        def supports_op(self, _device, tensor):
            if tensor == 5:
                raise KeyboardInterrupt
            return tensor == 4

        def init_backend(self, _device, _params):
            raise OSError("no")

    device = abi.Device()
    device.iface = bind(abi.DeviceInterface, Device(), on_error=lambda *what: errors.append(what[0]))
    where = ctypes.addressof(device)
    assert c.ggml_backend_dev_name(where) == b"made here"
    assert c.ggml_backend_dev_type(where) == 1
    room = (ctypes.c_size_t * 2)()
    c.ggml_backend_dev_memory(where, ctypes.addressof(room), ctypes.addressof(room) + 8)
    assert list(room) == [11, 22]
    assert [c.ggml_backend_dev_supports_op(where, tensor) for tensor in (3, 4, 5)] == [False, True, False]
    assert c.ggml_backend_dev_init(where, None) == 0
    assert errors == ["supports_op", "init_backend"]
