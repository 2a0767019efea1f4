"""Conversations become the ids and the mask that the format says."""

import pytest

from cpplm.core.errors import UserError
from cpplm.tokenizer.conversations import PARTS, render_conversation, render_for_completion
from cpplm.tokenizer.tokenizer import Tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is 2 << 3? <|user_end|>"}
ANSWER = {"role": "assistant", "content": "It is 16."}
TOOLS = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "Let me see."},
        {"type": "python", "text": "print(2 << 3)"},
        {"type": "python_output", "text": "16"},
        {"type": "query_tool", "text": "type_of(x)"},
        {"type": "tool_result", "text": "int"},
        {"type": "text", "text": "It is 16."},
    ],
}


def test_a_plain_turn(tokenizer: Tokenizer) -> None:
    rendered = render_conversation(tokenizer, {"messages": [USER, ANSWER]})
    special = tokenizer.encode_special
    question, answer = tokenizer.encode(USER["content"]), tokenizer.encode("It is 16.")
    assert rendered.ids == [
        2, special("<|user_start|>"), *question, special("<|user_end|>"),
        special("<|assistant_start|>"), *answer, special("<|assistant_end|>"),
    ]  # fmt: skip
    assert rendered.mask == [0] * (len(question) + 4) + [1] * (len(answer) + 1)
    assert min(question) >= 64  # a special token's name in a message is text


def test_tools_are_supervised_and_their_answers_are_not(tokenizer: Tokenizer) -> None:
    rendered = render_conversation(tokenizer, {"messages": [USER, TOOLS]})
    trained = [id_ for id_, flag in zip(rendered.ids, rendered.mask, strict=True) if flag]
    given = [id_ for id_, flag in zip(rendered.ids, rendered.mask, strict=True) if not flag]
    assert tokenizer.decode(trained) == (
        "Let me see.<|python_start|>print(2 << 3)<|python_end|><QUERY_TOOL>type_of(x)<CODE_END>It is 16."
        "<|assistant_end|>"
    )
    assert tokenizer.decode(given).endswith("<|output_start|>16<|output_end|><TOOL_RESULT>int<CODE_END>")
    assert {part["type"] for part in TOOLS["content"]} == set(PARTS)


def test_the_system_message_is_joined_to_the_first_question(tokenizer: Tokenizer) -> None:
    messages = [SYSTEM, USER, ANSWER]
    joined = {"role": "user", "content": f"Be brief.\n\n{USER['content']}"}
    assert render_conversation(tokenizer, {"messages": messages}) == render_conversation(
        tokenizer, {"messages": [joined, ANSWER]}
    )
    assert messages == [SYSTEM, USER, ANSWER]


def test_truncation(tokenizer: Tokenizer) -> None:
    whole = render_conversation(tokenizer, {"messages": [USER, TOOLS]})
    for length in (1, 5, len(whole.ids) - 1, len(whole.ids), 10_000):
        cut = render_conversation(tokenizer, {"messages": [USER, TOOLS]}, max_tokens=length)
        assert cut.ids == whole.ids[:length]
        assert cut.mask == whole.mask[:length]


def test_for_completion(tokenizer: Tokenizer) -> None:
    start = tokenizer.encode_special("<|assistant_start|>")
    question = render_conversation(tokenizer, {"messages": [USER]}).ids
    assert render_for_completion(tokenizer, {"messages": [USER, ANSWER]}) == [*question, start]
    assert render_for_completion(tokenizer, {"messages": [USER]}) == [*question, start]
    short = render_for_completion(tokenizer, {"messages": [USER, ANSWER]}, max_tokens=6)
    assert short == [2, *[*question, start][-5:]]


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ({}, "list of messages"),
        ([], "list of messages"),
        ({"messages": []}, "list of messages"),
        ({"messages": ["hello"]}, "message 0"),
        ({"messages": [{"role": "user"}]}, "message 0"),
        ({"messages": [SYSTEM]}, "system message"),
        ({"messages": [SYSTEM, ANSWER]}, "system message"),
        ({"messages": [{"role": "system", "content": 1}, USER]}, "is a string"),
        ({"messages": [ANSWER]}, "from 'assistant', not from 'user'"),
        ({"messages": [USER, USER]}, "message 1"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "is a string"),
        ({"messages": [USER, {"role": "assistant", "content": 3}]}, "string or a list of parts"),
        (
            {"messages": [USER, {"role": "assistant", "content": [{"type": "image", "text": ""}]}]},
            "Types: text",
        ),
        ({"messages": [USER, {"role": "assistant", "content": [{"type": "text"}]}]}, "Types: text"),
        ({"messages": [USER, {"role": "assistant", "content": ["x"]}]}, "message 1"),
    ],
)
def test_malformed_conversations(tokenizer: Tokenizer, conversation: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        render_conversation(tokenizer, conversation)  # type: ignore[arg-type]
