"""How each endpoint puts what the model generates into JSON, as one body or chunk by chunk."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from typing_extensions import override

from cpplm.serve.logprobs import ListedToken, chat_logprobs, completion_logprobs
from cpplm.serve.response_models import (
    ApiResponse,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionResponse,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatToolCall,
    ChatToolCallDelta,
    CompletionChoice,
    CompletionResponse,
    FinishReason,
    FunctionCall,
    ServerToolCall,
    Usage,
)
from cpplm.serve.sse import DONE


@dataclass(frozen=True)
class Delta:
    """New text, tokens or call of one choice."""

    index: int
    """Index of the choice."""
    text: str = ""
    tokens: tuple[ListedToken, ...] | None = None
    """With their probabilities, where these were asked for."""
    tool_call: FunctionCall | None = None
    """Call of a client's function, which the client is to make."""
    server_tool_call: ServerToolCall | None = None
    finish_reason: FinishReason | None = None


@dataclass
class ChoiceBuffer:
    """A whole choice, put together from its deltas."""

    text: str = ""
    tokens: list[ListedToken] | None = None
    tool_calls: list[FunctionCall] = field(default_factory=list)
    server_tool_calls: list[ServerToolCall] = field(default_factory=list)
    finish_reason: FinishReason = "length"

    def append(self, delta: Delta) -> None:
        """Put a delta behind it."""
        self.text += delta.text
        if delta.tool_call is not None:
            self.tool_calls.append(delta.tool_call)
        if delta.server_tool_call is not None:
            self.server_tool_calls.append(delta.server_tool_call)
        if delta.tokens is not None:
            self.tokens = self.tokens or []
            self.tokens += delta.tokens
        self.finish_reason = delta.finish_reason or self.finish_reason


class ResponseFormatter(ABC):
    """Puts choices or their deltas into the JSON of one response."""

    end_of_stream = DONE
    """Text of the last event of a stream; none if empty."""

    @abstractmethod
    def response(self, choices: Sequence[ChoiceBuffer], usage: Usage) -> ApiResponse:
        """Return the one body of a response that is not streamed."""

    @abstractmethod
    def chunk(self, delta: Delta) -> ApiResponse:
        """Return the chunk of a delta."""

    def first_chunk(self, index: int) -> ApiResponse | None:
        """Return the chunk with which a choice begins, if there is one."""
        return None

    def last_chunk(self, usage: Usage) -> ApiResponse | None:
        """Return the chunk behind all choices, if there is one."""
        return None


class OpenAIFormatter(ResponseFormatter):
    """Common parts of OpenAI's endpoints: an id, the time, and the usage at the end of a stream."""

    _response: Callable[..., CompletionResponse | ChatCompletionChunk]
    """Of one chunk."""

    def __init__(self, model: str, id_prefix: str, *, include_usage: bool) -> None:
        """Begin one response.

        Args:
            model: its name.
            id_prefix: with which the response's id begins.
            include_usage: whether a stream ends with the number of tokens.
        """
        self._include_usage = include_usage
        self._head: dict[str, Any] = {
            "id": f"{id_prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model,
        }  # fmt: skip

    @override
    def last_chunk(self, usage: Usage) -> ApiResponse | None:
        return self._chunk([], usage) if self._include_usage else None

    def _chunk(self, choices: list[Any], usage: Usage | None) -> ApiResponse:
        chunk = self._response(choices=choices, **self._head)
        if usage is not None or self._include_usage:  # null in all chunks but the last
            chunk.usage = usage
        return chunk


class CompletionFormatter(OpenAIFormatter):
    """POST /v1/completions: chunks look like whole responses."""

    _response = staticmethod(partial(CompletionResponse, object="text_completion"))

    def __init__(self, model: str, *, include_usage: bool, prompts: Sequence[Sequence[int]] = ()) -> None:
        """Begin one response; `prompts` are the ids to repeat beside those of the completions, if any."""
        super().__init__(model, "cmpl", include_usage=include_usage)
        self._prompts = prompts

    @override
    def response(self, choices: Sequence[ChoiceBuffer], usage: Usage) -> ApiResponse:
        listed = [_completion_choice(index, each) for index, each in enumerate(choices)]
        for choice, each in zip(listed, choices, strict=True) if self._prompts else ():
            choice.prompt_token_ids = list(self._prompts[choice.index * len(self._prompts) // len(choices)])
            choice.token_ids = [token.id for token in each.tokens or ()]
        return self._chunk(listed, usage)

    @override
    def chunk(self, delta: Delta) -> ApiResponse:
        return self._chunk([_completion_choice(delta.index, delta)], None)


def _completion_choice(index: int, choice: ChoiceBuffer | Delta) -> CompletionChoice:
    logprobs = None if choice.tokens is None else completion_logprobs(choice.tokens)
    return CompletionChoice(
        index=index, text=choice.text, logprobs=logprobs, finish_reason=choice.finish_reason
    )


class ChatFormatter(OpenAIFormatter):
    """POST /v1/chat/completions, and Mistral's fill-in, whose responses look the same."""

    _response = staticmethod(partial(ChatCompletionChunk, object="chat.completion.chunk"))

    def __init__(self, model: str, *, include_usage: bool, role_chunk: bool = True) -> None:
        """Begin one response.

        Args:
            model: its name.
            include_usage: whether a stream ends with the number of tokens.
            role_chunk: whether a stream begins with a chunk that says who speaks.
        """
        super().__init__(model, "chatcmpl", include_usage=include_usage)
        self._role_chunk = role_chunk

    @override
    def response(self, choices: Sequence[ChoiceBuffer], usage: Usage) -> ApiResponse:
        return ChatCompletionResponse(
            object="chat.completion", usage=usage, **self._head,
            choices=[_chat_choice(index, choice) for index, choice in enumerate(choices)],
        )  # fmt: skip

    @override
    def first_chunk(self, index: int) -> ApiResponse | None:
        if not self._role_chunk:
            return None
        return self._chunk([_chat_chunk(Delta(index), ChatDelta(role="assistant", content=""))], None)

    @override
    def chunk(self, delta: Delta) -> ApiResponse:
        message = ChatDelta()
        says_else = delta.tool_call or delta.server_tool_call or delta.finish_reason
        if delta.text or not says_else or not self._role_chunk:
            message.content = delta.text
        if delta.tool_call:
            message.tool_calls = [ChatToolCallDelta(index=0, **dict(_tool_call(delta.tool_call)))]
        if delta.server_tool_call:
            message.server_tool_calls = [delta.server_tool_call]
        return self._chunk([_chat_chunk(delta, message)], None)


def _chat_chunk(delta: Delta, message: ChatDelta) -> ChatChunkChoice:
    return ChatChunkChoice(
        index=delta.index, delta=message, logprobs=_chat_logprobs(delta.tokens),
        finish_reason=delta.finish_reason,
    )  # fmt: skip


def _chat_choice(index: int, choice: ChoiceBuffer) -> ChatChoice:
    calls = [_tool_call(call) for call in choice.tool_calls]
    message = ChatMessage(role="assistant", content=None if calls and not choice.text else choice.text)
    if calls:
        message.tool_calls = calls
    if choice.server_tool_calls:
        message.server_tool_calls = choice.server_tool_calls
    return ChatChoice(
        index=index, message=message, logprobs=_chat_logprobs(choice.tokens),
        finish_reason=choice.finish_reason,
    )  # fmt: skip


def _chat_logprobs(tokens: Sequence[ListedToken] | None) -> ChatLogprobs | None:
    return None if tokens is None else ChatLogprobs(content=chat_logprobs(tokens))


def _tool_call(call: FunctionCall) -> ChatToolCall:
    return ChatToolCall(id=f"call_{secrets.token_hex(12)}", type="function", function=call)
