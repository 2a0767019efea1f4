"""Conversations as requests: messages in, the answer of the assistant out.

    request = chat_request(engine, [{"role": "user", "content": "What is a functor?"}])

Messages are those of `cpplm.tokenizer.conversations`. Those that clients of OpenAI's API send are understood
too: a user's content may be a list of texts, and tools are called by `tool_calls` of an assistant's message
and answered by messages of the role `tool`; both become parts of the assistant's turn, as in training.

    {"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "function": {"name": "search", "arguments": "{\\"pattern\\": \\"draw\\"}"}}]}
    {"role": "tool", "tool_call_id": "1", "content": "src/shapes.h:3: void draw();"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import SamplingSettings
from cpplm.generate.tools.loop import Finished, TextDelta, ToolLoopEvent, ToolResult
from cpplm.generate.tools.tool_call_format import CALCULATOR, RESULTS, ArgumentValue, ToolCall, render_call
from cpplm.tokenizer.conversations import render_conversation
from cpplm.tokenizer.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool")
Message = Mapping[str, Any]
_ENDS = ("<|assistant_end|>", "<|user_start|>")  # a model that writes a user's turn has ended its own


def chat_request(
    engine: Engine,
    messages: Sequence[Message],
    settings: SamplingSettings | None = None,
    *,
    logprobs: int | None = None,
) -> GenerationRequest:
    """Make a request for an answer to the last message, a user's or a tool's.

    A conversation that is too long loses its beginning, but for <BOS>, as in `render_for_completion`. At
    least half of the context stays for it; the answer has what is left, at most `max_new_tokens`.

    Args:
        engine: whose tokenizer and context.
        messages: the conversation.
        settings: how tokens are chosen.
        logprobs: see `GenerationRequest`.

    Raises:
        UserError: not such messages; names the first that is wrong.
    """
    settings = settings or SamplingSettings()
    context = engine.model.config.max_seq_len
    max_prompt = max(context - settings.max_new_tokens, context // 2)
    ids = _render(engine.tokenizer, messages)
    if len(ids) > max_prompt:
        ids = [ids[0], *ids[len(ids) - max_prompt + 1 :]]
    ends = tuple(engine.tokenizer.encode_special(name) for name in _ENDS)
    return GenerationRequest(tuple(ids), settings, logprobs=logprobs, end_ids=ends)


class Conversation:
    """A conversation that grows turn by turn."""

    def __init__(self, engine: Engine, settings: SamplingSettings, system: str = "") -> None:
        """Nothing said yet, but by the system."""
        self._engine, self._settings, self._system = engine, settings, system
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.messages: list[dict[str, Any]] = (
            [{"role": "system", "content": self._system}] if self._system else []
        )

    def add_turn(self, text: str) -> GenerationRequest:
        """The request of an answer to what the user says; tell what comes of it to `add_event`."""
        question = {"role": "user", "content": text}
        request = chat_request(self._engine, [*self.messages, question], self._settings)
        self.messages += [question, {"role": "assistant", "content": []}]
        return request

    def add_event(self, event: ToolLoopEvent) -> None:
        """Keep what the assistant said, called and was answered."""
        parts = self.messages[-1]["content"]
        match event:
            case TextDelta(text) if parts and parts[-1]["type"] == "text":
                parts[-1]["text"] += text
            case TextDelta(text):
                parts.append({"type": "text", "text": text})
            case ToolCall() as call:
                parts.append({"type": call.kind, "text": call.text})
            case ToolResult(call, result):
                parts.append({"type": RESULTS[call.kind], "text": result})
            case Finished():
                pass

    def undo(self) -> None:
        """Forget the last question and what there is of its answer."""
        del self.messages[-2:]


def _render(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Ids up to where the assistant goes on; behind a tool's answer that is in the middle of its turn."""
    turns = conversation_turns(messages)
    if not messages or messages[-1]["role"] not in {"user", "tool"}:
        raise UserError("the last message is not one to answer", fix="End with a user's or a tool's message.")
    ids = render_conversation(tokenizer, {"messages": turns}, max_tokens=2**62).ids
    if turns[-1]["role"] == "assistant":
        return ids[:-1]  # the turn has not ended
    return [*ids, tokenizer.encode_special("<|assistant_start|>")]


def conversation_turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as those that `render_conversation` takes: tools' answers in the assistant's turns.

    Raises:
        UserError: an unknown role, or a call without an answer or the reverse.
    """
    turns: list[dict[str, Any]] = []
    open_calls: list[tuple[Any, dict[str, str]]] = []  # id and part
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES:
            raise UserError(f"message {number} has the role {role!r}", fix=f"Roles: {', '.join(ROLES)}.")
        if role == "tool":
            _answer(turns, open_calls, message, number)
            continue
        if open_calls:
            raise UserError(f"message {number} stands before the answer of a tool that was called")
        if role != "assistant":
            turns.append({"role": role, "content": _text(message.get("content"), number)})
            continue
        parts = _parts(message, number)
        open_calls = [(id_, part) for id_, part in parts if id_ is not None]
        content = [part for _, part in parts]
        if number and messages[number - 1]["role"] == "tool":  # the same turn goes on
            turns[-1]["content"] += content
        else:
            turns.append({"role": role, "content": content})
    if open_calls:
        raise UserError("the last message calls a tool, and no message of the tool follows")
    return turns


def _answer(
    turns: list[dict[str, Any]], open_calls: list[tuple[Any, dict[str, str]]], message: Message, number: int
) -> None:
    """Put a tool's answer behind the call that it belongs to: the one of that id, else the first."""
    id_ = message.get("tool_call_id")
    call = next((each for each in open_calls if id_ in {None, each[0]}), None)
    if call is None:
        raise UserError(f"message {number} answers no call of a tool", fix="Take the id of the call.")
    open_calls.remove(call)
    parts = turns[-1]["content"]
    place = next(place for place, part in enumerate(parts) if part is call[1])
    kind = RESULTS["python" if call[1]["type"] == "python" else "query_tool"]
    parts.insert(place + 1, {"type": kind, "text": _text(message.get("content"), number)})


def _parts(message: Message, number: int) -> list[tuple[Any, Any]]:
    """Parts of an assistant's message, those that are calls to be answered with their ids."""
    content, calls = message.get("content"), message.get("tool_calls") or []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if not isinstance(parts, list) or not isinstance(calls, list):
        raise UserError(f"message {number}: an assistant's content is a string or a list of parts")
    return [*((None, part) for part in parts), *(_call(call, number) for call in calls)]


def _call(call: Any, number: int) -> tuple[Any, dict[str, str]]:
    """Id and part of a call."""
    try:
        id_, name, arguments = call["id"], call["function"]["name"], call["function"]["arguments"]
        values = tuple(json.loads(arguments).values())
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UserError(
            f"message {number} has a call of a tool that is not understood: {call!r:.200}",
            fix='Form: {"id": ..., "function": {"name": ..., "arguments": a JSON object as a string}}.',
        ) from error
    if (
        not isinstance(id_, str)
        or not isinstance(name, str)
        or not all(isinstance(v, ArgumentValue) for v in values)
    ):
        raise UserError(f"message {number}: arguments of tools are texts, whole numbers, true and false")
    if name == CALCULATOR:
        return id_, {"type": "python", "text": " ".join(map(str, values))}
    return id_, {"type": "query_tool", "text": render_call(name, values)}


def _text(content: Any, number: int) -> str:
    """Content that is a string, or a list of parts that are texts."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if isinstance(parts, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in parts
    ):
        return "".join(part["text"] for part in parts)
    raise UserError(f"message {number}: the content is a string, or a list of parts of the type text")
