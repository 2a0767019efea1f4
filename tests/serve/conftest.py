"""Servers that tests of this folder share."""

from collections.abc import Iterator

import openai
import pytest

from cpplm.generate.engine import Engine
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.certificates import certificates_are_read_once  # noqa: F401  (a fixture)
from tests.generate.talker import babbler
from tests.serve.learned import learned
from tests.serve.served import Served, serving


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the machine's stands before the loopback."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(scope="session")
def engine(tokenizer: Tokenizer) -> Engine:
    """Random, and hardly ever at an end by itself."""
    return babbler(tokenizer, context=256)


@pytest.fixture(scope="session")
def long_engine(tokenizer: Tokenizer) -> Engine:
    """One that can write for seconds."""
    return babbler(tokenizer, context=16_384)


@pytest.fixture(scope="session")
def talking(tokenizer: Tokenizer) -> Engine:
    """One that answers as it learned, with calls of tools."""
    return learned(tokenizer)


@pytest.fixture(scope="module")
def served(engine: Engine) -> Iterator[Served]:
    with serving(engine) as found:
        yield found


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found
    served.settle()
