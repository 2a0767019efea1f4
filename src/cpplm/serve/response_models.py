"""Responses of the API, as OpenAI's clients read them. `request_models.py` has the requests.

Models are dumped without the fields that were not set, so that a field is null only where it is meant to be.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from cpplm.train.checkpoint.format import Stage

FinishReason = Literal["stop", "length", "tool_calls"]


class ApiResponse(BaseModel):
    """A body, or one record of a stream."""

    def json_text(self) -> str:
        """Return the text as it is sent."""
        return self.model_dump_json(exclude_unset=True)


class Usage(BaseModel):
    """Tokens of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


# ---- completions ------------------------------------------------------------------------------------------


class CompletionLogprobs(BaseModel):
    """Lists with one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(ApiResponse):
    """Response of POST /v1/completions, whole or one chunk."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


# ---- chat -------------------------------------------------------------------------------------------------


class LikelyToken(BaseModel):
    """A token and how likely it was."""

    token: str
    bytes: list[int]
    logprob: float


class ChatToken(LikelyToken):
    """A token of the text, and those that could have stood there."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(BaseModel):
    """The tokens of a message."""

    content: list[ChatToken]


class FunctionCall(BaseModel):
    """Name and arguments of a call."""

    name: str
    arguments: str
    """JSON."""


class ChatToolCall(BaseModel):
    """One call that the client is asked to make."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatToolCallDelta(ChatToolCall):
    """A call in a stream, whole."""

    index: int


class ServerToolCall(BaseModel):
    """A call that the server answered itself: not in OpenAI's API, whose clients pass it by."""

    call: str
    """As the model wrote it."""
    result: str


class ChatMessage(BaseModel):
    """Message of the model."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ChatToolCall] | None = None
    server_tool_calls: list[ServerToolCall] | None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletionResponse(ApiResponse):
    """Response of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(BaseModel):
    """A piece of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ChatToolCallDelta] | None = None
    server_tool_calls: list[ServerToolCall] | None = None


class ChatChunkChoice(BaseModel):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(ApiResponse):
    """One record of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


# ---- models and health ------------------------------------------------------------------------------------


class ModelEntry(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    """Tokens of its context, as vLLM says it."""
    supports_fim: bool
    """True if it takes a `suffix`."""
    stage: Stage
    """Training stage; `base` has seen no conversation and goes on with code instead of answering."""
    parent: str | None
    """The model that its training started from, as vLLM says it."""


class ModelList(BaseModel):
    """Response of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelEntry]


class Health(BaseModel):
    """Response of GET /health."""

    status: Literal["ok", "stopping", "failed"]


# ---- llama.cpp --------------------------------------------------------------------------------------------


class Timings(BaseModel):
    """Durations of the parts; rates are per second."""

    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


class InfillResponse(ApiResponse):
    """Response of POST /infill, whole or one chunk."""

    content: str
    stop: bool
    model: str
    index: int
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    generation_settings: dict[str, Any]
    timings: Timings
    project_probability: float
    """Of being right, of an answer that is lines of --project; 0 where the model wrote it."""
