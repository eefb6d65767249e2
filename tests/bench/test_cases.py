from __future__ import annotations

from pathlib import Path

import pytest

from wireherd.bench.cases import BenchSettings, Case, counts
from wireherd.errors import UsageError
from wireherd.llm.options import LlamaOptions

LLAMA = LlamaOptions(model=Path("m.gguf"))


def test_prompts_come_first_and_zeros_are_left_out():
    settings = BenchSettings(llama=LLAMA, prompts=(512, 0, 64), generated=(0, 128))
    assert settings.cases() == [Case(n_prompt=512), Case(n_prompt=64), Case(n_gen=128)]
    assert [case.name for case in settings.cases()] == ["pp512", "pp64", "tg128"]
    assert [case.tokens for case in settings.cases()] == [512, 64, 128]


def test_counts():
    assert counts("512") == (512,)
    assert counts("1,2,0") == (1, 2, 0)


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1.5", "-1", "1-2"])
def test_bad_counts_are_refused(text):
    with pytest.raises(UsageError):
        counts(text)


@pytest.mark.parametrize("change", [{"repetitions": 0}, {"prompts": (0,), "generated": ()}])
def test_senseless_settings_are_refused(change):
    BenchSettings(llama=LLAMA).check()
    with pytest.raises(UsageError):
        BenchSettings(llama=LLAMA, **change).check()


def test_the_context_fits_the_longest_case():
    assert BenchSettings(llama=LLAMA, prompts=(64, 700), generated=(128,)).fitted().n_ctx == 700
    assert BenchSettings(llama=LLAMA, prompts=(), generated=(128,)).fitted().n_ctx == 128
