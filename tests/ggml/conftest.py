"""The loaded library, a tiny model, and graphs made through ggml's own API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wireherd import ggml
from wireherd.ggml.library import Library
from wireherd.ggml.llama import Model, ModelOptions
from wireherd.testing import tiny


@pytest.fixture(scope="session")
def installed() -> Library:
    """The library of the installed wheel: API 3, with llama.cpp."""
    return ggml.load()


@pytest.fixture(scope="session", params=["api 3", pytest.param("api 2", marks=pytest.mark.stock)])
def lib(request: pytest.FixtureRequest) -> Library:
    """Each library a worker can run on."""
    if request.param == "api 3":
        return ggml.load()
    from stock.get_stock import libggml

    return ggml.load(libggml())


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("ggml") / "tiny.gguf", tied=False, chat_template=tiny.CHATML)


@pytest.fixture
def model(installed: Library, tiny_path: Path) -> Iterator[Model]:
    model = Model(installed, tiny_path, ModelOptions(devices=[]))
    yield model
    model.close()
