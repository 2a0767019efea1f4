"""From requests of the API to those of the engine: names, limits, sampling settings, prompts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeVar

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.grammar import Grammar, GrammarSpec
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import SamplingSettings
from cpplm.serve.errors import ApiError, to_api_error, too_long
from cpplm.serve.request_models import BasicSampling, SamplingParams
from cpplm.serve.settings import RequestSettings
from cpplm.tokenizer.special_tokens import BOS
from cpplm.train.checkpoint.format import Checkpoint, Stage

Result = TypeVar("Result")

_COMPILE_TIMEOUT = 5.0  # seconds that a client's grammar may take
_COMPILERS = ThreadPoolExecutor(1, "cpplm-grammar")  # one at a time: others wait for it, the model does not
_SHORT = 4096  # characters that are tokenized at once; longer texts would keep the loop from its streams
_MIN_TOP_P = 1e-6  # what top_p 0, the likeliest token alone, comes to
_MIN_TEMPERATURE = 1e-3  # lower ones take the likeliest token too; what is divided by them must stay finite


@dataclass(frozen=True)
class ServedModel:
    """An engine under a name. It lives in memory whole: what happens to its files meanwhile is no matter."""

    engine: Engine
    name: str
    supports_fim: bool
    """True if it was trained on rearranged documents."""
    stage: Stage
    """Training stage; `base` has seen no conversation."""
    path: str
    """Location it was loaded from, as given on the command line."""
    created: int
    """When it was loaded, in seconds since 1970."""
    parent: str | None = None
    """Name of the model that its training started from."""

    @classmethod
    def from_checkpoint(
        cls, engine: Engine, checkpoint: Checkpoint, run: str, name: str = "", parent: str | None = None
    ) -> ServedModel:
        """Name the model of a checkpoint, and its parent, after run and step, unless they have names."""
        record = checkpoint.parent
        if parent is None and record:
            parent = _name(record["location"].removesuffix("/checkpoints"), record["step"])
        name = name or _name(run, checkpoint.step)
        return cls(engine, name, checkpoint.supports_fim, checkpoint.stage, run, int(time.time()), parent)

    @property
    def context(self) -> int:
        """Tokens that it can have in view, the prompt and what it writes."""
        return self.engine.model.config.max_seq_len


def _name(run: str, step: int) -> str:
    """Run and step, without the folders above."""
    return f"{'/'.join(PurePosixPath(run).parts[-2:])}:{step}"


class RequestBuilder:
    """Checks requests of the API against one model and its limits, and makes engine requests of them."""

    def __init__(self, model: ServedModel, settings: RequestSettings) -> None:
        self.model = model
        self._settings = settings
        self._tokenizer = model.engine.tokenizer
        self._max_bytes = model.context * int(self._tokenizer.token_bytes.max())

    # ---- limits ---------------------------------------------------------------------------------------

    def check(self, params: SamplingParams, *, prompts: int = 1) -> None:
        """Refuse too many choices, prompts times completions of each, with ApiError."""
        count = prompts * params.num_choices
        if count > self._settings.max_choices:
            raise ApiError(
                400, f"{count} completions in one request: the most is {self._settings.max_choices}",
                code="too_many_choices", param="n",
            )  # fmt: skip

    def check_generates(self, params: SamplingParams) -> None:
        """Refuse with ApiError a limit of 0 tokens where nothing but text can be the response."""
        if not self.max_new_tokens(params):
            raise ApiError(400, "ask for 1 token at least", code="invalid_value", param="max_tokens")

    def check_supports_fim(self, param: str) -> None:
        """Refuse a suffix with ApiError where the model was not trained to fill in."""
        if not self.model.supports_fim:
            raise ApiError(
                400, "this model was not trained to fill in: leave the suffix out",
                code="no_fill_in", param=param,
            )  # fmt: skip

    def check_ids(self, ids: list[int], param: str) -> None:
        """Refuse with ApiError token ids that are not of the model's vocabulary."""
        vocab_size = self._tokenizer.vocab_size
        unknown = next((id_ for id_ in ids if id_ >= vocab_size), None)
        if unknown is not None:
            message = f"the model has no token {unknown}, only {vocab_size}"
            raise ApiError(400, message, code="invalid_value", param=param)

    def check_length(self, characters: int, param: str = "prompt") -> None:
        """Refuse a text that cannot fit (ApiError) before it is tokenized, which would take long."""
        if characters > self._max_bytes:
            tokens = f"more than {characters * self.model.context // self._max_bytes}"
            raise too_long(tokens, self.model.context, param)

    def check_room(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request if the context has room for a token behind its prompt, else ApiError."""
        tokens = self.model.engine.num_prompt_tokens(request)
        if tokens >= self.model.context:
            raise too_long(tokens, self.model.context, "prompt")
        return request

    # ---- sampling -------------------------------------------------------------------------------------

    def max_new_tokens(self, params: BasicSampling) -> int:
        """Tokens that may be generated: never more than the server allows, or than the context has."""
        limit = self._settings.max_new_tokens or self.model.context
        new = self._settings.default_new_tokens if params.new_tokens is None else params.new_tokens
        return min(limit if new < 0 else new, limit, self.model.context)

    def sampling(self, params: BasicSampling) -> SamplingSettings:
        """Sampling settings of a request, with the server's where it has none."""
        own, seed = self._settings, params.sampling_seed
        temperature = own.temperature if params.temperature is None else params.temperature
        settings = SamplingSettings(
            max_new_tokens=max(1, self.max_new_tokens(params)),
            temperature=temperature if temperature >= _MIN_TEMPERATURE else 0.0,
            top_k=own.top_k if params.top_k is None else max(0, params.top_k),
            seed=secrets.randbits(32) if seed is None else seed % 2**32,
            top_p=own.top_p if params.top_p is None else max(params.top_p, _MIN_TOP_P),
            min_p=params.min_p or 0.0,
            repetition_penalty=params.penalty or 1.0,
            stop=params.stop_texts,
        )
        if not isinstance(params, SamplingParams):
            return settings
        return replace(
            settings,
            frequency_penalty=params.frequency_penalty or 0.0,
            presence_penalty=params.presence_penalty or 0.0,
            logit_bias=tuple((int(id_), bias) for id_, bias in (params.logit_bias or {}).items()),
        )

    async def grammar(self, spec: GrammarSpec | None) -> Grammar | None:
        """Compile what an answer has to match, in a thread of its own; None for any text.

        Raises:
            ApiError: it is wrong, too complex, or takes too long.
        """
        if spec is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_COMPILE_TIMEOUT):
                return await loop.run_in_executor(_COMPILERS, self.model.engine.grammars.compile, spec)
        except UserError as error:
            raise ApiError(400, str(error), code="invalid_grammar") from error
        except TimeoutError as error:
            message = f"the form of the answer was not compiled within {_COMPILE_TIMEOUT:.0f} s: simplify it"
            raise ApiError(400, message, code="invalid_grammar") from error

    # ---- prompts --------------------------------------------------------------------------------------

    def continuation(
        self, prompt: str | list[int], sampling: SamplingSettings, *, exact: bool = False
    ) -> GenerationRequest:
        """Engine request for what follows a text, or tokens.

        Args:
            prompt: the beginning of a document.
            sampling: how tokens are chosen.
            exact: take the last token as it is; otherwise the end, which may be inside one, is spelt anew.

        Raises:
            ApiError: too long, or no token of this model.
        """
        if isinstance(prompt, str) and not exact:
            self.check_length(len(prompt))
            request = self.model.engine.request(prompt, settings=sampling)
        else:
            request = GenerationRequest(self.token_ids(prompt), sampling)
        return self.check_room(request)

    def token_ids(self, prompt: str | list[int]) -> tuple[int, ...]:
        """Tokens of a prompt, <BOS> first.

        Raises:
            ApiError: too long, or no token of this model.
        """
        if isinstance(prompt, str):
            self.check_length(len(prompt))
            return (BOS, *self._tokenizer.encode(prompt))
        self.check_ids(prompt, "prompt")
        return tuple(prompt) if prompt[0] == BOS else (BOS, *prompt)

    def infill(
        self, prefix: str | bytes, suffix: str | bytes, sampling: SamplingSettings
    ) -> GenerationRequest:
        """Engine request for what belongs between two texts; nothing is checked."""
        spm = self._settings.fim_order == "spm"
        return self.model.engine.request(prefix, suffix, settings=sampling, spm=spm)

    def infill_checked(self, prefix: str, suffix: str, sampling: SamplingSettings) -> GenerationRequest:
        """Engine request as from `infill`, if there is room for it.

        Raises:
            ApiError: too long, or the model does not fill in.
        """
        self.check_supports_fim("suffix")
        self.check_length(len(prefix) + len(suffix))
        return self.check_room(self.infill(prefix, suffix, sampling))


async def off_event_loop(work: Callable[[], Result], characters: int) -> Result:
    """Do some work on a text in a thread where it may take long, and return its result.

    Raises:
        ApiError: as the work does, or for what the engine finds wrong.
    """
    try:
        return work() if characters <= _SHORT else await asyncio.to_thread(work)
    except UserError as error:
        raise to_api_error(error, begun=False) from error
