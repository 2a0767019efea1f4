"""Requests of every kind, made from the schema of the API: none ends in a defect or an unknown answer."""

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from cpplm.generate.engine import Engine
from cpplm.serve.settings import RequestSettings
from tests.serve.served import Served, serving

OPERATIONS = [
    ("/v1/completions", "POST"),
    ("/v1/fim/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/infill", "POST"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/props", "GET"),
    ("/v1/models", "GET"),
    ("/v1/models/{name}", "GET"),
    ("/health", "GET"),
]


@pytest.fixture(scope="module")
def fuzzed(engine: Engine) -> Iterator[Served]:
    limits = RequestSettings(default_new_tokens=2, max_new_tokens=3, max_choices=4, grace=5)
    with serving(engine, requests=limits) as served:
        yield served
        served.settle()


@pytest.fixture(scope="module")
def api(fuzzed: Served) -> Any:
    return schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")


def test_every_operation_is_asked(api: Any) -> None:
    """The compile button has tests of its own (test_page_routes.py)."""
    found = {(each.ok().path, each.ok().method.upper()) for each in api.get_all_operations()}
    assert found - {("/api/compile", "POST")} == set(OPERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [
        (*operation, mode)
        for operation in OPERATIONS
        for mode in GenerationMode
        if "POST" in operation  # the others take nothing that could be wrong
    ],
    ids=str,
)
def test_any_request(api: Any, fuzzed: Served, path: str, method: str, mode: GenerationMode) -> None:
    """What the schema allows may still be too long, or ask for several things that exclude each other."""
    operation = api[path][method]

    @hypothesis.settings(max_examples=12, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.data())
    def asked(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        response = case.call_and_validate(excluded_checks=[positive_data_acceptance], timeout=30)
        assert response.status_code not in {500, 504}

    before = fuzzed.engine.num_failures
    asked()
    assert fuzzed.engine.num_failures == before
