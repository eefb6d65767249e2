from __future__ import annotations

from pathlib import Path

import pytest

from wireherd.bench.cases import BenchSettings, Case, counts, pair
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
    assert counts("8-10,1") == (8, 9, 10, 1)
    assert counts("0-512+200") == (0, 200, 400)
    assert counts("1-9*2") == (1, 2, 4, 8)


def test_pairs_and_depths():
    settings = BenchSettings(llama=LLAMA, prompts=(512,), generated=(0,), pairs=((512, 128),), depths=(0, 64))
    names = [case.name for case in settings.cases()]
    assert names == ["pp512", "pp512+tg128", "pp512 @ d64", "pp512+tg128 @ d64"]
    assert settings.fitted().n_ctx == 704
    assert pair("512,128") == (512, 128)


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "a,b", "1,-2"])
def test_bad_pairs_are_refused(text):
    with pytest.raises(UsageError):
        pair(text)


@pytest.mark.parametrize(
    "text", ["", "a", "1,,2", "1.5", "-1", "2-1", "1-2+0", "1-2*1", "0-4*2", "1-2-3", "1-", "1-5000", "²"]
)
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
