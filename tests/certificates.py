"""The certificates of authorities, read once for all clients: 30 ms each, and what is here speaks no TLS."""

import functools
from collections.abc import Iterator

import httpcore2
import pytest


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """For the clients of conftest.py files that import this."""
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(httpcore2.default_ssl_context)
        patch.setattr(httpcore2, "default_ssl_context", once)
        yield
