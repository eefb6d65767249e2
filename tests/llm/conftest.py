"""A tiny random model for sessions: real files, real library, no network."""

import pytest
from quick import options

from wireherd.llm.session import LlmSession
from wireherd.testing import tiny


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", chat_template=tiny.CHATML)


@pytest.fixture(scope="session")
def base_path(tmp_path_factory):
    """A model without a chat template."""
    return tiny.write(tmp_path_factory.mktemp("tiny") / "base.gguf")


@pytest.fixture
def session(tiny_path):
    with LlmSession.open(options(tiny_path)) as opened:
        yield opened
