"""Conversations to token ids, with a mask of what an assistant has to learn to write.

    {"messages": [{"role": "system", "content": "..."},            optional, joined to the first user message
                  {"role": "user", "content": "..."},
                  {"role": "assistant", "content": "..."}, ...]}   turns alternate

The content of an assistant's message is a string, or a list of parts {"type": ..., "text": ...}:

    text                   what it says
    python, python_output  a program that it runs, and what that printed
    query_tool, tool_result  a C++ tool that it asks, and the answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpplm.core.errors import UserError
from cpplm.tokenizer.special_tokens import BOS
from cpplm.tokenizer.tokenizer import Tokenizer

# Type of a part: the special tokens around its text, and whether the assistant writes it.
PARTS: dict[str, tuple[str | None, str | None, bool]] = {
    "text": (None, None, True),
    "python": ("<|python_start|>", "<|python_end|>", True),
    "python_output": ("<|output_start|>", "<|output_end|>", False),
    "query_tool": ("<QUERY_TOOL>", "<CODE_END>", True),
    "tool_result": ("<TOOL_RESULT>", "<CODE_END>", False),
}


@dataclass
class RenderedConversation:
    """A conversation as the model reads it.

    Attributes:
        ids: token ids, <BOS> first.
        mask: 1 where the assistant writes the token and is trained on it, else 0; as long as `ids`.
    """

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)

    def add(self, ids: list[int], *, supervised: bool) -> None:
        """Append tokens."""
        self.ids += ids
        self.mask += [int(supervised)] * len(ids)


def render_conversation(
    tokenizer: Tokenizer, conversation: Mapping[str, Any], max_tokens: int = 2048
) -> RenderedConversation:
    """All turns, cut off behind `max_tokens` tokens.

    Raises:
        UserError: not a conversation of the form above; the message names the place.
    """
    rendered = RenderedConversation()
    rendered.add([BOS], supervised=False)
    for number, message in enumerate(alternating_turns(conversation)):
        if number % 2:
            rendered.add([tokenizer.encode_special("<|assistant_start|>")], supervised=False)
            _add_parts(rendered, tokenizer, message["content"], f"message {number}")
            rendered.add([tokenizer.encode_special("<|assistant_end|>")], supervised=True)
        else:
            if not isinstance(message["content"], str):
                raise UserError(f"message {number} of the conversation: a user's content is a string")
            ids = tokenizer.encode(message["content"], prepend="<|user_start|>", append="<|user_end|>")
            rendered.add(ids, supervised=False)
    return RenderedConversation(rendered.ids[:max_tokens], rendered.mask[:max_tokens])


def render_for_completion(
    tokenizer: Tokenizer, conversation: Mapping[str, Any], max_tokens: int = 2048
) -> list[int]:
    """Token ids up to where the assistant speaks next; its message, if it has the last word, is left out.

    A conversation that is too long loses its beginning, but for <BOS>: the end is what is to be answered.

    Raises:
        UserError: as `render_conversation`.
    """
    messages = list(alternating_turns(conversation))
    if len(messages) % 2 == 0:
        messages.pop()
    ids = render_conversation(tokenizer, {"messages": messages}, max_tokens=2**62).ids
    ids.append(tokenizer.encode_special("<|assistant_start|>"))
    return ids if len(ids) <= max_tokens else [ids[0], *ids[len(ids) - max_tokens + 1 :]]


def alternating_turns(conversation: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Messages of user and assistant in turn, the system's joined to the first.

    Raises:
        UserError: they do not take turns, or are no messages.
    """
    messages = conversation.get("messages") if isinstance(conversation, Mapping) else None
    if not isinstance(messages, list) or not messages:
        raise UserError("a conversation has a list of messages", fix='Write {"messages": [{...}, ...]}.')
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise UserError(f"message {number} of the conversation has no role and content")
    if messages[0]["role"] == "system":
        if len(messages) < 2 or messages[1]["role"] != "user":
            raise UserError("the system message of a conversation is followed by one of the user")
        both = [messages[0]["content"], messages[1]["content"]]
        if not all(isinstance(content, str) for content in both):
            raise UserError("the content of a system or user message is a string")
        messages = [{"role": "user", "content": "\n\n".join(both)}, *messages[2:]]
    for number, message in enumerate(messages):
        expected = ("user", "assistant")[number % 2]
        if message["role"] != expected:
            raise UserError(
                f"message {number} of the conversation is from {message['role']!r}, not from {expected!r}",
                fix="User and assistant take turns, the user first.",
            )
    return messages


def _add_parts(rendered: RenderedConversation, tokenizer: Tokenizer, content: Any, where: str) -> None:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise UserError(f"{where}: an assistant's content is a string or a list of parts")
    for part in parts:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (None, None)
        if kind not in PARTS or not isinstance(text, str):
            raise UserError(
                f"{where} has a part that is not understood: {part!r}", fix=f"Types: {', '.join(PARTS)}."
            )
        start, end, supervised = PARTS[kind]
        rendered.add(tokenizer.encode(text, prepend=start, append=end), supervised=supervised)
