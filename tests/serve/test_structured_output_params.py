"""Structured outputs over HTTP, through the real client."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from cpplm.generate.engine import Engine
from cpplm.generate.grammar import GrammarCompiler, GrammarSpec
from cpplm.serve import request_builder
from cpplm.tokenizer.special_tokens import NUM_SPECIAL
from tests.serve.learned import SEARCH
from tests.serve.served import NAME, Served, serving

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["class", "struct"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
RESPONSE_FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "item", "schema": SCHEMA, "strict": True},
}
MESSAGES: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [{"type": "function", "function": SEARCH}, {"type": "function", "function": {"name": "stop"}}]


@pytest.fixture(scope="module")
def served(talking: Engine) -> Iterator[Served]:
    """Also of the fixture `client`."""
    with serving(talking) as found:
        yield found


def test_json_of_a_schema_in_a_chat(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": NAME,
        "messages": MESSAGES,
        "response_format": RESPONSE_FORMAT,
        "seed": 3,
        "max_tokens": 100,
    }
    choice = client.chat.completions.create(**asked, logprobs=True).choices[0]
    answer = json.loads(choice.message.content or "")
    assert set(answer) == {"name", "kind"}
    assert answer["kind"] in {"class", "struct"}
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    tokens = b"".join(bytes(each.bytes or ()) for each in choice.logprobs.content or ())
    assert tokens.decode() == choice.message.content
    streamed = client.chat.completions.create(**asked, stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in streamed) == choice.message.content


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "[1-9][0-9]{2}"}, {"guided_regex": "[1-9][0-9]{2}"},
        {"structured_outputs": {"regex": "[1-9][0-9]{2}"}}, {"grammar": "root ::= [1-9] [0-9] [0-9]"},
        {"guided_grammar": "start: /[1-9][0-9]{2}/"},
        {"guided_choice": ["123", "456"]}, {"structured_outputs": {"choice": ["123", "789"]}},
        {"json_schema": {"type": "integer", "minimum": 100, "maximum": 999}},
        {"guided_json": '{"enum": [123]}'}, {"structured_outputs": {"json": {"enum": [123]}}},
    ],
    ids=lambda form: json.dumps(form)[:45],
)  # fmt: skip
def test_other_names(served: Served, form: dict[str, Any]) -> None:
    for more in ({}, {"suffix": ";"}):
        (choice,) = served.complete(prompt="int x = ", max_tokens=10, **form, **more)["choices"]
        assert 100 <= int(choice["text"]) <= 999
        assert choice["finish_reason"] == "stop"


def test_any_object_up_to_the_limit(client: openai.OpenAI) -> None:
    choice = client.completions.create(
        model=NAME, prompt="x", max_tokens=1, extra_body={"response_format": {"type": "json_object"}}
    ).choices[0]
    assert choice.text.startswith("{")
    assert choice.finish_reason == "length"


def test_syntax_that_is_watched(served: Served) -> None:
    bias = {str(NUM_SPECIAL + ord(")")): 100}
    for more in ({}, {"suffix": "; }"}):
        asked = {"prompt": "int f() { return 2 *", "max_tokens": 4, "logit_bias": bias, **more}
        free, watched = (served.complete(**asked, seed=1, **form) for form in ({}, {"valid": "cpp"}))
        assert ")" in free["choices"][0]["text"]
        assert free["choices"][0]["text"] != watched["choices"][0]["text"]
    assert served.post("/v1/chat/completions", {"messages": MESSAGES, "valid": "cpp"}).status_code == 400


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "search"}}])
def test_a_call_that_is_demanded(client: openai.OpenAI, choice: Any) -> None:
    """The question is one that the model learned to answer with text."""
    asked: Any = {"model": NAME, "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice}
    asked |= {"temperature": 0, "max_tokens": 100}
    answer = client.chat.completions.create(**asked).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name in ({"search", "stop"} if choice == "required" else {"search"})
    assert isinstance(json.loads(call.function.arguments), dict)
    streamed = list(client.chat.completions.create(**asked, stream=True))
    calls = [each for chunk in streamed for each in chunk.choices[0].delta.tool_calls or ()]
    assert [each.function.name for each in calls if each.function] == [call.function.name]
    cut = client.chat.completions.create(**{**asked, "max_tokens": 2}).choices[0]
    assert (cut.finish_reason, cut.message.tool_calls) == ("length", None)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"regex": "(("}, "the regular expression is not understood: unclosed group"),
        ({"regex": "x", "guided_regex": "x"}, "one form"),
        ({"json_schema": {"mimimum": 1}}, "unknown keyword 'mimimum'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "required"),
        ({"structured_outputs": {"regexp": "x"}}, "unknown parameter: structured_outputs.regexp"),
        ({"guided_json": "{"}, "the JSON schema is not understood"),
    ],
)
def test_what_is_refused(served: Served, form: dict[str, Any], message: str) -> None:
    answer = served.post("/v1/completions", {"prompt": "x", **form})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]


def test_a_form_that_takes_long_keeps_nobody_waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def slow(self: GrammarCompiler, spec: GrammarSpec) -> None:
        over.wait(10)

    monkeypatch.setattr(
        served.application.services[0].model.engine, "grammars", type("", (), {"compile": slow})()
    )
    monkeypatch.setattr(request_builder, "_COMPILE_TIMEOUT", 0.5)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(served.post, "/v1/completions", {"prompt": "x", "regex": "x"})
        begin = time.monotonic()
        served.complete(prompt="x", max_tokens=1)
        assert time.monotonic() - begin < 1.5
        refused = waiting.result()
    over.set()
    assert refused.status_code == 400
    assert "was not compiled within" in refused.json()["error"]["message"]
