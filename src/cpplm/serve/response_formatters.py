"""How each endpoint puts what was written into JSON."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from cpplm.serve.logprobs import Token, for_chat, for_completions
from cpplm.serve.response_models import (
    Answer,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Completion,
    CompletionChoice,
    Ended,
    ToolCall,
    ToolCallPiece,
    Usage,
)
from cpplm.serve.service import Call, Choice, Piece, Tally
from cpplm.serve.sse import DONE


class CompletionStyle:
    """POST /v1/completions: see `Style`."""

    ends_with = DONE

    def __init__(self, model: str, *, usage: bool) -> None:
        """Of one answer; `usage`: whether a stream ends with the number of tokens."""
        self._model, self._usage = model, usage
        self._id, self._created = f"cmpl-{secrets.token_hex(12)}", int(time.time())

    def whole(self, choices: Sequence[Choice], tally: Tally) -> Answer:
        """See `Style`."""
        listed = [
            _completion_choice(number, choice.text, choice.tokens, choice.ended)
            for number, choice in enumerate(choices)
        ]
        return self._answer(listed, tally.usage)

    def opening(self, choice: int) -> Answer | None:
        """Nothing: the first piece has all that is needed."""
        del choice
        return None

    def piece(self, piece: Piece) -> Answer:
        """See `Style`."""
        choice = _completion_choice(piece.choice, piece.text, piece.tokens, piece.ended)
        return self._answer([choice], None)

    def closing(self, tally: Tally) -> Answer | None:
        """See `Style`."""
        return self._answer([], tally.usage) if self._usage else None

    def _answer(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        answer = Completion(
            id=self._id, object="text_completion", created=self._created, model=self._model, choices=choices
        )
        if usage is not None or self._usage:  # null in all records but the last
            answer.usage = usage
        return answer


def _completion_choice(
    number: int, text: str, tokens: Sequence[Token] | None, ended: Ended | None
) -> CompletionChoice:
    logprobs = None if tokens is None else for_completions(tokens)
    return CompletionChoice(index=number, text=text, logprobs=logprobs, finish_reason=ended)


class ChatStyle:
    """POST /v1/chat/completions, and Mistral's fill-in, whose answers look the same: see `Style`."""

    ends_with = DONE

    def __init__(self, model: str, *, usage: bool, says_role: bool = True) -> None:
        """Of one answer.

        Args:
            model: its name.
            usage: whether a stream ends with the number of tokens.
            says_role: whether a stream begins with a record that says who speaks.
        """
        self._model, self._usage, self._says_role = model, usage, says_role
        self._id, self._created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        self._calls: dict[int, int] = {}

    def whole(self, choices: Sequence[Choice], tally: Tally) -> Answer:
        """See `Style`."""
        return ChatCompletion(
            id=self._id, object="chat.completion", created=self._created, model=self._model,
            choices=[_chat_choice(number, choice) for number, choice in enumerate(choices)],
            usage=tally.usage,
        )  # fmt: skip

    def opening(self, choice: int) -> Answer | None:
        """See `Style`."""
        if not self._says_role:
            return None
        return self._chunk(choice, ChatDelta(role="assistant", content=""), None, None)

    def piece(self, piece: Piece) -> Answer:
        """See `Style`."""
        delta = ChatDelta()
        if piece.text or not (piece.calls or piece.ended) or not self._says_role:
            delta.content = piece.text
        if piece.calls:
            before = self._calls.get(piece.choice, 0)
            self._calls[piece.choice] = before + len(piece.calls)
            delta.tool_calls = [
                ToolCallPiece(index=number, **dict(_tool_call(call)))
                for number, call in enumerate(piece.calls, before)
            ]
        return self._chunk(piece.choice, delta, piece.tokens, piece.ended)

    def closing(self, tally: Tally) -> Answer | None:
        """See `Style`."""
        return self._answer([], tally.usage) if self._usage else None

    def _chunk(
        self, choice: int, delta: ChatDelta, tokens: Sequence[Token] | None, ended: Ended | None
    ) -> Answer:
        chunk = ChatChunkChoice(
            index=choice, delta=delta, logprobs=_chat_logprobs(tokens), finish_reason=ended
        )
        return self._answer([chunk], None)

    def _answer(self, choices: list[ChatChunkChoice], usage: Usage | None) -> ChatChunk:
        answer = ChatChunk(
            id=self._id, object="chat.completion.chunk", created=self._created, model=self._model,
            choices=choices,
        )  # fmt: skip
        if usage is not None or self._usage:
            answer.usage = usage
        return answer


def _chat_choice(number: int, choice: Choice) -> ChatChoice:
    calls, text = [_tool_call(call) for call in choice.calls], choice.text
    message = ChatMessage(role="assistant", content=None if calls and not text else text)
    if calls:
        message.tool_calls = calls
    return ChatChoice(
        index=number, message=message, logprobs=_chat_logprobs(choice.tokens), finish_reason=choice.ended
    )


def _chat_logprobs(tokens: Sequence[Token] | None) -> ChatLogprobs | None:
    return None if tokens is None else ChatLogprobs(content=for_chat(tokens))


def _tool_call(call: Call) -> ToolCall:
    function = CalledFunction(name=call.name, arguments=call.arguments)
    return ToolCall(id=f"call_{secrets.token_hex(12)}", type="function", function=function)
