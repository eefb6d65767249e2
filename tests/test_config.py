from __future__ import annotations

from pathlib import Path

import pytest

from wireherd import config
from wireherd.errors import UsageError


def test_blank_settings_are_unset(monkeypatch):
    monkeypatch.setenv("WIREHERD_X", "  ")
    assert config.setting("WIREHERD_X") is None
    assert config.setting("WIREHERD_NOT_THERE") is None
    monkeypatch.setenv("WIREHERD_X", " a ")
    assert config.setting("WIREHERD_X") == "a"


def test_cache_folder_is_made(monkeypatch, tmp_path):
    monkeypatch.setenv(config.CACHE_VARIABLE, str(tmp_path / "here"))
    folder = config.cache_dir("a", "b")
    assert folder == tmp_path / "here" / "a" / "b"
    assert folder.is_dir()


def test_default_cache_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv(config.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.cache_dir().is_relative_to(tmp_path)
    assert "wireherd" in str(config.cache_dir())


def test_impossible_cache_folder_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(config.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(UsageError, match=config.CACHE_VARIABLE):
        config.cache_dir("models")


def test_library_of_the_environment(monkeypatch):
    monkeypatch.delenv(config.GGML_VARIABLE, raising=False)
    assert config.ggml_path() is None
    monkeypatch.setenv(config.GGML_VARIABLE, "/somewhere/libggml.so")
    assert config.ggml_path() == Path("/somewhere/libggml.so")
