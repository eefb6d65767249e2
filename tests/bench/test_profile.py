from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wireherd.bench.cases import BenchSettings
from wireherd.bench.profile import Clock, Profile, roomy, timed_callbacks
from wireherd.errors import UsageError
from wireherd.ggml import vtable
from wireherd.llm.options import LlamaOptions

SETTINGS = BenchSettings(llama=LlamaOptions(model=Path("m.gguf")), generated=(128, 0))


def test_the_parts_add_up():
    found = Profile(
        tokens=8,
        total_ms=10.0,
        native_ms=9.5,
        callbacks_ms=8.0,
        waiting_ms=7.0,
        processor_ms=2.0,
        round_trips=1.0,
        slots=(),
    )
    assert (found.driver_ms, found.libllama_ms, found.python_ms, found.overhead_ms) == (0.5, 1.5, 1.0, 1.5)
    assert found.total_ms == found.waiting_ms + found.libllama_ms + found.overhead_ms
    assert "callback  " not in "".join(found.lines())  # a table without rows is not shown


def test_nested_callbacks_count_once_in_the_total():
    clock = Clock()
    inner = clock.timed("inner", lambda: 1)
    outer = clock.timed("outer", lambda: inner() + inner())
    assert outer() == 2
    assert (clock.slots["inner"].calls, clock.slots["outer"].calls) == (2, 1)
    assert clock.total_ns == clock.slots["outer"].total_ns >= clock.slots["inner"].total_ns


def test_a_callback_that_raises_is_counted():
    clock = Clock()

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        clock.timed("slot", fails)()
    assert clock.slots["slot"].calls == 1
    assert clock.depth == 0
    clock.clear()
    assert clock.slots["slot"].calls == clock.total_ns == 0


def test_callbacks_are_timed_only_while_asked():
    original = vtable.callback_of
    with timed_callbacks():
        assert vtable.callback_of is not original
    assert vtable.callback_of is original


def test_the_profile_has_room_for_its_warm_up():
    wanted = roomy(SETTINGS)
    assert wanted.prompts == ()
    assert wanted.fitted().n_ctx > 128
    with pytest.raises(UsageError, match="-n"):
        roomy(replace(SETTINGS, generated=(0,)))
