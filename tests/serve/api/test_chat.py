"""Conversations through the real client: answers, tools of the client and the server's calculator."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from cpplm.generate.engine import Engine
from cpplm.generate.tools.tool_call_format import parse_call
from cpplm.serve.api.chat import ToolThreads, client_call, conversation_messages
from cpplm.serve.request_models import ChatMessageParam, FunctionTool
from cpplm.serve.response_models import FunctionCall
from tests.serve.learned import FOUND, GREETED, SEARCH
from tests.serve.served import NAME, Served, serving

TOOL = {"type": "function", "function": SEARCH}
GREEDY = {"model": NAME, "temperature": 0, "max_tokens": 60}


@pytest.fixture(scope="module")
def served(talking: Engine) -> Iterator[Served]:
    """Also of the fixture `client`."""
    with serving(talking) as found:
        yield found


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def streamed(client: openai.OpenAI, **asked: Any) -> tuple[str, list[Any], str | None, Any]:
    """Text, calls, reason and usage of a stream."""
    text, calls, reason, usage = "", [], None, None
    records = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert records[0].choices[0].delta.role == "assistant"
    for record in records:
        usage = record.usage or usage
        for choice in record.choices:
            text += choice.delta.content or ""
            calls += choice.delta.tool_calls or []
            reason = choice.finish_reason or reason
    return text, calls, reason, usage


def test_an_answer(client: openai.OpenAI) -> None:
    asked = {"messages": user("hello"), **GREEDY}
    answer = client.chat.completions.create(**asked)
    choice = answer.choices[0]
    assert (choice.message.content, choice.message.role) == (GREETED, "assistant")
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert streamed(client, **asked) == (GREETED, [], "stop", answer.usage)


def test_several_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=user("hello"), n=3, **GREEDY)
    assert [choice.message.content for choice in answer.choices] == [GREETED] * 3
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = {0: "", 1: "", 2: ""}
    for record in client.chat.completions.create(messages=user("hello"), n=3, stream=True, **GREEDY):
        texts[record.choices[0].index] += record.choices[0].delta.content or ""
    assert texts == {0: GREETED, 1: GREETED, 2: GREETED}


def test_limits_and_stop_texts(client: openai.OpenAI) -> None:
    cut = client.chat.completions.create(
        model=NAME, messages=user("hello"), temperature=0, max_completion_tokens=1
    )
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 1
    stopped = client.chat.completions.create(messages=user("hello"), stop=";", **GREEDY)
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("int é", "stop")


def test_probabilities(client: openai.OpenAI) -> None:
    asked = {"messages": user("hello"), "logprobs": True, "top_logprobs": 2, **GREEDY}
    whole = client.chat.completions.create(**asked).choices[0].logprobs
    assert whole is not None
    assert whole.content
    assert b"".join(bytes(each.bytes or ()) for each in whole.content).decode() == GREETED
    assert all(each.logprob > -0.5 for each in whole.content)  # it learned that
    assert all(len(each.top_logprobs) == 2 for each in whole.content)
    assert [each.top_logprobs[0].logprob for each in whole.content] == [
        each.logprob for each in whole.content
    ]
    streamed = []
    for record in client.chat.completions.create(**asked, stream=True):
        if record.choices[0].logprobs is not None:
            streamed += record.choices[0].logprobs.content or []
    assert streamed == whole.content


def test_the_calculator_is_the_servers(client: openai.OpenAI) -> None:
    """The client sees what the model says before and behind the call, in one answer."""
    asked = {"messages": user("12*34?"), **GREEDY}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == "It is 408."
    assert streamed(client, **asked)[0] == "It is 408."
    called = [{"call": "12*34", "result": "408"}]
    assert answer.choices[0].message.model_extra == {"server_tool_calls": called}
    pieces = [
        chunk.choices[0].delta.model_extra for chunk in client.chat.completions.create(**asked, stream=True)
    ]
    assert list(filter(None, pieces)) == [{"server_tool_calls": called}]
    assert answer.usage is not None
    assert answer.usage.completion_tokens > len("12*34")  # the call was written too


def test_a_clients_tool(client: openai.OpenAI) -> None:
    """The call goes out, the result comes in, and the model goes on as if it had never stopped."""
    asked = {"messages": user("where?"), "tools": [TOOL], **GREEDY}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see. "
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("search", {"text": "area"})

    text, (streamed_call,), reason, _ = streamed(client, **asked)
    assert (text, reason) == ("Let me see. ", "tool_calls")
    assert streamed_call.index == 0
    assert streamed_call.function.model_dump() == call.function.model_dump()

    result = {"role": "tool", "tool_call_id": call.id, "content": FOUND}
    history = [*user("where?"), choice.message.model_dump(), result]
    answer = client.chat.completions.create(messages=history, tools=[TOOL], **GREEDY)
    assert answer.choices[0].message.content == "In shapes.h."
    assert answer.choices[0].finish_reason == "stop"


def test_tools_that_may_not_be_called(client: openai.OpenAI) -> None:
    """The model does not learn of them, and no call goes out."""
    answer = client.chat.completions.create(
        messages=user("hello"), tools=[TOOL], tool_choice="none", **GREEDY
    )
    assert answer.choices[0].message.content == GREETED


# ---- messages ---------------------------------------------------------------------------------------------


def test_messages_in_a_row_are_joined() -> None:
    given = [
        ChatMessageParam(role="developer", content="be brief"),
        ChatMessageParam.model_validate({"role": "system", "content": [{"type": "text", "text": "in C++"}]}),
        ChatMessageParam(role="user", content="a"),
        ChatMessageParam(role="user", content="b"),
    ]
    assert conversation_messages(given, {}) == [
        {"role": "system", "content": "be brief\n\nin C++"},
        {"role": "user", "content": "a\n\nb"},
    ]


def test_functions_are_told_to_the_model() -> None:
    function = FunctionTool.model_validate(SEARCH)
    (system, _) = conversation_messages([ChatMessageParam(role="user", content="x")], {"search": function})
    assert system["content"].endswith("search(text: string, folder: string): Lines with a text.")
    (system, _) = conversation_messages(
        [ChatMessageParam(role="system", content="y"), ChatMessageParam(role="user", content="x")],
        {"search": function},
    )
    assert system["content"].startswith("y\n\nYou may call")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('search("a", "b")', FunctionCall(name="search", arguments='{"text": "a", "folder": "b"}')),
        ("search()", FunctionCall(name="search", arguments="{}")),
        (
            'search("a", "b", 3)',
            "error: call it like this: search(text: string, folder: string): Lines with a text.",
        ),
        ('other("a")', None),
        ("search(", None),
    ],
)
def test_calls(written: str, expected: object) -> None:
    functions = {"search": FunctionTool.model_validate(SEARCH)}
    assert client_call(parse_call("query_tool", written), functions) == expected


IMAGES = (
    "messages[0].content: must be text or a list of at most 1000 text parts, "
    '{"type": "text", "text": "..."}; images, audio and files are not supported'
)
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "there is none"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "Input should be"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "not one to answer"),
    ({"messages": [*user("x"), {"role": "tool", "content": "y"}]}, "messages", "answers no call"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content", IMAGES),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", IMAGES),
    ({"messages": user("x" * 4000)}, "messages", "context"),
    ({"messages": user("x; " * 300)}, "messages", "the model's context is 320"),
    ({"messages": user("x"), "top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"messages": user("x"), "max_tokens": 0}, "max_tokens", "1 token at least"),
    ({"messages": user("x"), "tool_choice": "required"}, "tool_choice", "tools names no function"),
    ({"messages": user("x"), "tool_choice": 7}, "tool_choice", "must be 'auto', 'none', 'required'"),
    ({"messages": user("x"), "tools": [TOOL], "tool_choice": "required", "regex": "x"}, "tool_choice",
     "no other form"),
    ({"messages": user("x"), "tools": [{"type": "function", "function": {"name": "a-b"}}],
      "tool_choice": "required"}, "tools", "none of C++"),
    ({"messages": user("x"), "tools": [{"type": "function"}]}, "tools[0].function", "required"),
    ({"messages": user("x"), "tools": [{"type": "function", "function": {"name": "a b"}}]},
     "tools", "pattern"),
    ({"messages": user("x"), "response_format": {"type": "json_schema"}}, "response_format", "schema"),
    ({"messages": user("x"), "modalities": ["audio"]}, "modalities", "is not supported"),
    ({"messages": user("x"), "functions": [{"name": "x"}]}, "functions", "is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_refused(served: Served, body: dict[str, Any], param: str, message: str) -> None:
    answer = served.post("/v1/chat/completions", body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error["message"]
    assert (error["param"] or "messages").startswith(param)


# ---- threads of tools -------------------------------------------------------------------------------------


def test_results_and_faults_come_back() -> None:
    async def main() -> None:
        threads = ToolThreads(1)
        assert await threads.run(lambda: "408") == "408"
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: str(1 // 0))
        assert await threads.run(lambda: threading.current_thread().name) == "cpplm-tool"

    asyncio.run(main())


def test_a_place_is_free_only_when_the_work_is_over() -> None:
    """Also of work that nobody waits for any more."""

    async def main() -> None:
        threads, gate, begun = ToolThreads(2), threading.Event(), []

        def work() -> str:
            begun.append(1)
            gate.wait(30)
            return "done"

        tasks = [asyncio.create_task(threads.run(work)) for _ in range(5)]
        while len(begun) < 2:
            await asyncio.sleep(0.01)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.sleep(0.1)
        assert len(begun) == 2
        gate.set()
        assert await asyncio.gather(*tasks[2:]) == ["done"] * 3
        assert len(begun) == 5

    asyncio.run(main())
