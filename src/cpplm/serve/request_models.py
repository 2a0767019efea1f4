"""Requests of the API: the fields that are done, those that change nothing, and no others.

Clients send much. What only hints at something, or means something to other servers alone, is taken and
ignored (`IgnoredParams`). A parameter that would change the text and is not done is refused unless its value
is the one that does nothing, and a field that nobody knows is refused, as by OpenAI: a spelling mistake
should not go unseen. Types are strict: "0.5" is no number.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from typing_extensions import override

from cpplm.serve.structured_output_params import FormParams, Loose, SyntaxParams, ToolChoice

_MOST_STOPS = 128
_LONGEST_STOP = 1000
_MOST_PARTS = 1000
_MOST_BIASES = 1024
_SEED = 2**63
MOST_LOGPROBS = 20


def _only(*neutral: Any) -> AfterValidator:
    """A parameter that is not done, and the values at which that makes no difference."""
    instead = f", or send {neutral[0]!r}" if neutral else ""

    def check(value: Any) -> Any:
        if value is not None and value not in neutral:
            raise ValueError(f"is not supported: leave it out{instead}")
        return value

    return AfterValidator(check)


def _takes(forms: str) -> WrapValidator:
    """A field of several forms: one sentence names them all, where pydantic would complain about each."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValueError(f"must be {forms}") from error

    return WrapValidator(check)


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("an empty stop text would end everything at once")
    return text


Zero = Annotated[float | None, _only(0)]
One = Annotated[float | None, _only(1)]
TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
StopText = Annotated[str, Field(max_length=_LONGEST_STOP), AfterValidator(_not_empty)]


class Strict(BaseModel):
    """Fields of these types and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class RequestBody(BaseModel):
    """The whole of a request."""

    @model_validator(mode="before")
    @classmethod
    def reject_surrogates(cls, data: Any) -> Any:
        """Refuse half of a surrogate pair, which JSON can hold and which is no text, with ValueError."""
        values = [data]
        while values:
            value = values.pop()
            if isinstance(value, dict):
                values += [*value, *value.values()]
            elif isinstance(value, list):
                values += value
            elif isinstance(value, str) and not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    raise ValueError("the body holds half of a surrogate pair") from error
        return data


class StreamOptions(Loose):
    """Options of a stream."""

    include_usage: bool | None = False


class IgnoredParams(Strict):
    """Taken and ignored, or taken as long as it does nothing."""

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    cache_salt: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    # Of llama.cpp's clients.
    cache_prompt: Any = None
    samplers: Any = None
    id_slot: Any = None
    repeat_last_n: Any = None
    dynatemp_exponent: Any = None
    xtc_threshold: Any = None
    dry_base: Any = None
    dry_allowed_length: Any = None
    dry_penalty_last_n: Any = None
    timings_per_token: Any = None
    t_max_prompt_ms: Any = None
    t_max_predict_ms: Any = None
    # What is not done.
    min_tokens: Zero = None
    dynatemp_range: Zero = None
    xtc_probability: Zero = None
    dry_multiplier: Zero = None
    typical_p: One = None
    lora: Annotated[list[Any] | None, _only([])] = None


class BasicSampling(RequestBody):
    """Sampling parameters that OpenAI's and llama.cpp's requests share; None for what was not sent."""

    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31, description="0 or -1: all tokens.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    repeat_penalty: float | None = Field(None, ge=0.01, le=100, description="llama.cpp's name of it.")
    seed: int | None = Field(None, ge=-_SEED, lt=_SEED, description="None: another text each time.")
    stop: Annotated[
        StopText | Annotated[list[StopText], Field(max_length=_MOST_STOPS)] | None,
        _takes(f"text of 1 to {_LONGEST_STOP} characters, or a list of at most {_MOST_STOPS} such texts"),
    ] = None

    @property
    def sampling_seed(self) -> int | None:
        """Seed of whichever name."""
        return self.seed

    @property
    def penalty(self) -> float | None:
        """Repetition penalty of whichever name."""
        return self.repetition_penalty or self.repeat_penalty

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end a completion."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def new_tokens(self) -> int | None:
        """Tokens to generate at most; negative: as many as the context allows."""
        return None


class SamplingParams(IgnoredParams, FormParams, BasicSampling):
    """Parameters of all requests for text, by OpenAI's names and those that other servers give them."""

    model: str | None = Field(None, description="The one that is served, or nothing.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Annotated[
        Annotated[dict[TokenName, Bias], Field(max_length=_MOST_BIASES)] | None,
        _takes(f"at most {_MOST_BIASES} token ids, as text, each with a number from -100 to 100"),
    ] = Field(None, description="What is added to the logits of tokens.")
    random_seed: int | None = Field(None, ge=-_SEED, lt=_SEED, description="Mistral's name of it.")
    max_tokens: int | None = Field(None, ge=-1, le=2**31, description="-1: as many as the context allows.")
    max_completion_tokens: int | None = Field(None, ge=-1, le=2**31)
    n_predict: int | None = Field(None, ge=-1, le=2**31, description="llama.cpp's name of it.")
    n: int | None = Field(None, ge=1, le=1024)
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    @override
    def sampling_seed(self) -> int | None:
        return self.random_seed if self.seed is None else self.seed

    @property
    @override
    def new_tokens(self) -> int | None:
        sent = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        return next((each for each in sent if each is not None), None)

    @property
    def num_choices(self) -> int:
        """Completions of each prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """True if a stream ends with the number of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Ids = Annotated[list[TokenId], Field(min_length=1)]


class CompletionRequest(SyntaxParams, SamplingParams):
    """POST /v1/completions."""

    prompt: Annotated[
        str | Ids | Annotated[list[str], Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1)],
        _takes("text, a list of token ids (whole numbers from 0), or a list of either; no list may be empty"),
    ] = ""
    suffix: str | None = None
    echo: bool | None = False
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    best_of: int | None = Field(None, ge=1, le=1024, description="Only the same as n.")
    return_token_ids: bool | None = Field(False, description="vLLM's: all ids, the prompt's and the end's.")
    stop_token_ids: Annotated[list[TokenId], Field(max_length=_MOST_BIASES)] = Field(
        [], description="vLLM's."
    )

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts as a list, whichever form was sent."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class FimRequest(SyntaxParams, SamplingParams):
    """POST /v1/fim/completions, Mistral's form of filling in."""

    prompt: str
    suffix: str | None = None


# ---- chat -------------------------------------------------------------------------------------------------


class TextPart(Loose):
    """A part of a message."""

    type: Literal["text"]
    text: str


class PastFunctionCall(Loose):
    """A call of the model, as the client repeats it."""

    name: str
    arguments: str


class PastToolCall(Loose):
    """A call of an earlier turn."""

    id: str | None = None
    function: PastFunctionCall


class ChatMessageParam(Loose):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(max_length=_MOST_PARTS)] | None,
        _takes(
            f'text or a list of at most {_MOST_PARTS} text parts, {{"type": "text", "text": "..."}}; '
            "images, audio and files are not supported"
        ),
    ] = None
    tool_calls: Annotated[list[PastToolCall], Field(max_length=100)] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """All of its content."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class FunctionTool(Loose):
    """Name, description and parameters of a function."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ClientTool(Loose):
    """A tool of the client's."""

    type: Literal["function"]
    function: FunctionTool


class ChatRequest(SamplingParams):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessageParam], Field(min_length=1, max_length=10_000)]
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    tools: Annotated[list[ClientTool], Field(max_length=128)] | None = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ToolChoice | None,
        _takes("'auto', 'none', 'required', or {'type': 'function', 'function': {'name': '...'}}"),
    ] = None
    parallel_tool_calls: Any = None
    modalities: Annotated[list[str] | None, _only(["text"])] = None
    audio: Annotated[Any, _only()] = None
    functions: Annotated[list[Any] | None, _only([])] = None
    function_call: Annotated[str | dict[str, Any] | None, _takes("'none'"), _only("none")] = None
    web_search_options: Annotated[Any, _only()] = None
    moderation: Annotated[Any, _only()] = None


# ---- llama.cpp --------------------------------------------------------------------------------------------


class ExtraText(Loose):
    """A piece of another file."""

    text: str
    filename: str | None = None


class InfillRequest(Loose, SyntaxParams, BasicSampling):
    """POST /infill of llama.cpp's server, as far as editors send it; other fields mean nothing."""

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = Field("", description="What stands between the prefix and the hole: the cursor's line.")
    input_extra: Annotated[list[ExtraText], Field(max_length=1000)] = Field(default_factory=list)
    input_file: str = Field("", description="The file with the hole, in --project; empty: guessed.")
    n_predict: int = Field(-1, ge=-1, le=2**31, description="0: only read, for the next request.")
    n_indent: int = Field(0, ge=0, le=2**31, description="Ends at a line indented less.")
    t_max_predict_ms: float = Field(0, ge=0, description="Ends behind the first line after this time.")
    stream: bool = False
    response_fields: Annotated[list[str], Field(max_length=100)] | None = None

    @property
    @override
    def sampling_seed(self) -> int | None:
        return None if self.seed == -1 else self.seed  # llama.cpp's value for a random one

    @property
    @override
    def new_tokens(self) -> int | None:
        return None if self.n_predict < 0 else self.n_predict
