"""Several models on one server: which one answers, and what is said of them."""

from collections.abc import Iterator

import pytest

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.settings import ModelSource
from cpplm.serve.request_builder import ServedModel
from cpplm.serve.settings import ServeSettings
from tests.serve.served import NAME, Served, assert_nothing_held, serving


@pytest.fixture(scope="module")
def both(engine: Engine, talking: Engine) -> Iterator[Served]:
    """The random model, and beside it, as if it were its adapter, the one that has learned to talk."""
    adapter = ServedModel(talking, "talker", False, "sft", "some/adapter", 1_700_000_001, NAME)
    with serving(engine, stage="base", adapters=[adapter]) as found:
        yield found
    assert_nothing_held(found.application.services[1].engine)
    assert not found.application.services[1].engine.alive


def test_models_are_listed_with_stage_and_parent(both: Served) -> None:
    listed = both.http.get("/v1/models").json()["data"]
    found = [(entry["id"], entry["stage"], entry["parent"]) for entry in listed]
    assert found == [(NAME, "base", None), ("talker", "sft", NAME)]
    assert both.http.get("/v1/models/talker").json() == listed[1]


def test_the_model_that_is_named_answers(both: Served) -> None:
    body = {"prompt": "int main", "max_tokens": 12, "temperature": 0.0}
    by_model = {name: both.complete(model=name, **body) for name in (NAME, "talker")}
    assert [answer["model"] for answer in by_model.values()] == [NAME, "talker"]
    texts = {name: answer["choices"][0]["text"] for name, answer in by_model.items()}
    assert texts[NAME] != texts["talker"]
    assert both.complete(**body)["choices"][0]["text"] == texts[NAME]
    messages = [{"role": "user", "content": "int main"}]
    chats = [
        both.post("/v1/chat/completions", {"messages": messages, "model": name, "max_tokens": 8}).json()
        for name in (NAME, "talker")
    ]
    assert [chat["model"] for chat in chats] == [NAME, "talker"]
    refused = both.post("/v1/completions", {"prompt": "x", "model": "other"})
    assert refused.status_code == 404
    assert "'tiny', 'talker'" in refused.json()["error"]["message"]


def test_figures_are_sums(both: Served) -> None:
    before = both.metric("cpplm_generation_tokens_total")
    for name in (NAME, "talker"):
        both.complete(model=name, prompt="int", max_tokens=3)
    assert both.metric("cpplm_generation_tokens_total") >= before + 2
    assert both.metric("cpplm_model_up") == 1.0


@pytest.mark.parametrize("entry", ["a", "=run", "a=", "a=run,a=other"])
def test_names_of_adapters(entry: str) -> None:
    with pytest.raises(UserError, match="Write NAME=RUN"):
        ServeSettings(ModelSource("some/run"), adapter=(entry,))
    settings = ServeSettings(ModelSource("some/run"), adapter=("a=x:5,b=y", "c=z"))
    assert settings.adapters() == {"a": "x:5", "b": "y", "c": "z"}
