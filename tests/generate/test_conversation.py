"""Messages become the ids that training showed, and grow turn by turn."""

import json
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.generate.conversation import Conversation, chat_request
from cpplm.generate.engine import Engine
from cpplm.generate.sequence import CompletionOutput
from cpplm.generate.settings import SamplingSettings
from cpplm.generate.tools.loop import Finished, TextDelta, ToolResult, generate_with_tools
from cpplm.generate.tools.tool_call_format import ToolCall
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.tokenizer.conversations import render_conversation, render_for_completion
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import CONTEXT, GREEDY, LEARNED, talker

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "12*34?"}
ANSWER = {"role": "assistant", "content": "It is 408."}


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    return talker(tokenizer)


def call(id_: str, name: str = "search", **arguments: object) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def result(content: object, id_: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": content} | ({} if id_ is None else {"tool_call_id": id_})


def assistant(content: object, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


# ---- requests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages", [[USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER]]
)
def test_it_is_rendered_as_in_training(engine: Engine, messages: list[dict[str, Any]]) -> None:
    request = chat_request(engine, messages, GREEDY)
    assert list(request.ids) == render_for_completion(engine.tokenizer, {"messages": messages})
    assert request.ids[-1] == engine.tokenizer.encode_special("<|assistant_start|>")
    assert engine.tokenizer.encode_special("<|assistant_end|>") in request.end_ids
    assert request.settings == GREEDY


def test_a_tools_answer_is_a_part_of_the_assistants_turn(engine: Engine) -> None:
    """The prompt ends within the turn: the model goes on as it learned."""
    learned = {"role": "assistant", "content": LEARNED["where?"]}
    user = {"role": "user", "content": "where?"}
    whole = render_conversation(engine.tokenizer, {"messages": [user, learned]}).ids
    hits = LEARNED["where?"][1]["text"]
    messages = [user, assistant(None, call("a", pattern="area")), result(hits, "a")]
    request = chat_request(engine, messages, GREEDY)
    assert list(request.ids) == whole[: len(request.ids)]
    (answer,) = engine.complete_many([request])
    assert answer.completions[0].text == "shapes.h"
    assert [*request.ids, *answer.completions[0].ids] == whole
    more = [*messages, {"role": "assistant", "content": "shapes.h"}, USER]
    assert chat_request(engine, more).ids == chat_request(engine, [user, learned, USER]).ids


def test_several_calls_are_answered_each_in_its_place(engine: Engine) -> None:
    calls = (call("a", "calculator", expression="1+1"), call("b", "read_file", path='a"b', first=1, last=2))
    expected = [
        {"type": "text", "text": "See."},
        {"type": "python", "text": "1+1"},
        {"type": "python_output", "text": "2"},
        {"type": "query_tool", "text": 'read_file(R"(a"b)", 1, 2)'},
        {"type": "tool_result", "text": "x"},
    ]
    whole = render_conversation(
        engine.tokenizer, {"messages": [USER, {"role": "assistant", "content": expected}]}
    ).ids
    for results in (
        [result("2", "a"), result("x", "b")],
        [result("x", "b"), result("2", "a")],
        [result("2"), result("x")],
    ):
        request = chat_request(engine, [USER, assistant("See.", *calls), *results])
        assert list(request.ids) == whole[:-1]


def test_a_long_conversation_loses_its_beginning(engine: Engine) -> None:
    long = {"role": "user", "content": "int x; " * 100}
    for count in (1, 30, 100, 10_000):
        request = chat_request(engine, [long, ANSWER, USER], SamplingSettings(max_new_tokens=count))
        most = max(CONTEXT - count, CONTEXT // 2)
        assert list(request.ids) == render_for_completion(
            engine.tokenizer, {"messages": [long, ANSWER, USER]}, max_tokens=most
        )
        assert len(request.ids) == most
    request = chat_request(engine, [USER, assistant(None, call("a", pattern="x")), result("int x; " * 99)])
    assert len(request.ids) == CONTEXT // 2


REFUSED: dict[str, list[Any]] = {
    "not one to answer": [
        [], [SYSTEM], [USER, ANSWER],
    ],
    "no message of the tool follows": [[USER, assistant("", call("a"), call("b")), result("x", "a")]],
    "User and assistant take turns": [[USER, USER], [ANSWER, USER], [USER, SYSTEM, USER]],
    "message 0 has the role None": [["hello"], [{"content": "x"}]],
    "role 'robot'": [[USER, {"role": "robot", "content": "x"}]],
    "message 0: the content is a string": [[{"role": "user"}], [{"role": "user", "content": None}]],
    "parts of the type text": [
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
    ],
    "message 1: an assistant's content": [
        [USER, {"role": "assistant", "content": 3}, USER], [USER, {**assistant(""), "tool_calls": 3}, USER],
    ],
    "Types: text": [[USER, {"role": "assistant", "content": [{"type": "audio", "text": ""}]}, USER]],
    "answers no call": [
        [result("x", "a")], [USER, result("x")], [USER, assistant("", call("a")), result("x", "b")],
        [USER, assistant("", call("a")), result("x", "a"), result("x", "a")],
    ],
    "message 2 stands before the answer": [[USER, assistant("", call("a")), USER]],
    "message 2: the content": [[USER, assistant("", call("a")), result(None, "a")]],
    "message 1 has a call": [
        [USER, assistant("", each), result("x")]
        for each in ({"id": "a"}, "a", {"id": "a", "function": {"name": "f", "arguments": "{"}},
                     {"id": "a", "function": {"name": "f", "arguments": "[1]"}})
    ],
    "arguments of tools": [
        [USER, assistant("", each), USER] for each in (call("a", x=[1]), call("a", x=1.5), call(3))
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "message"), [(each, message) for message, many in REFUSED.items() for each in many]
)
def test_messages_that_are_refused(engine: Engine, messages: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        chat_request(engine, messages)


# ---- turn by turn -----------------------------------------------------------------------------------------


def test_a_conversation_keeps_what_was_said(engine: Engine) -> None:
    conversation = Conversation(engine, GREEDY)
    for event in generate_with_tools(engine.scheduler(), conversation.add_turn("12*34?"), ToolBox()):
        conversation.add_event(event)
    assert conversation.messages == [USER, {"role": "assistant", "content": LEARNED["12*34?"]}]
    request = conversation.add_turn("hello")
    expected = [*conversation.messages[:2], {"role": "user", "content": "hello"}]
    assert list(request.ids) == render_for_completion(engine.tokenizer, {"messages": expected})


def test_an_answer_may_be_broken_off_anywhere(engine: Engine) -> None:
    call = ToolCall("python", "1+", "calculator", ("1+",))
    heard = [
        TextDelta("a"),
        TextDelta("b"),
        call,
        ToolResult(call, "error"),
        TextDelta("c"),
        Finished(CompletionOutput("", (), "end")),
    ]
    for count in range(len(heard) + 1):
        conversation = Conversation(engine, GREEDY, system="Be brief.")
        conversation.add_turn("one")
        for event in heard[:count]:
            conversation.add_event(event)
        conversation.add_turn("two")
        assert [message["role"] for message in conversation.messages] == [
            "system",
            *["user", "assistant"] * 2,
        ]
    assert [part["text"] for part in conversation.messages[2]["content"]] == ["ab", "1+", "error", "c"]


def test_the_last_question_may_be_taken_back(engine: Engine) -> None:
    conversation = Conversation(engine, GREEDY, system="Be brief.")
    first = conversation.add_turn("one")
    conversation.undo()
    assert conversation.messages == [SYSTEM]
    assert conversation.add_turn("one") == first
    conversation.clear()
    assert conversation.add_turn("one") == first
    assert first.ids == chat_request(engine, [SYSTEM, {"role": "user", "content": "one"}]).ids
