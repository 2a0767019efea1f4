"""From what a client asked for to what the engine is told to write."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from cpplm.core.errors import UserError
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import SamplingSettings
from cpplm.serve.errors import ApiError, too_long
from cpplm.serve.model_info import ServedModel
from cpplm.serve.request_models import Sampled
from cpplm.serve.settings import RequestSettings
from cpplm.tokenizer.special_tokens import BOS

Result = TypeVar("Result")

_LITTLE = 4096  # characters that are made tokens at once; longer texts would keep the loop from its streams
_LEAST_SHARE = 1e-6  # of the probability: what top_p 0, the likeliest token alone, comes to
_LEAST_TEMPERATURE = 1e-3  # lower ones take the likeliest token too; what is divided by them must stay finite


class Planner:
    """For one model with its limits."""

    def __init__(self, model: ServedModel, settings: RequestSettings) -> None:
        self.model = model
        self._settings = settings
        self._tokenizer = model.engine.tokenizer
        self._most_bytes = model.context * int(self._tokenizer.token_bytes.max())

    # ---- limits ---------------------------------------------------------------------------------------

    def check_model(self, name: str | None) -> None:
        """Only one model is served.

        Raises:
            ApiError: another one was asked for.
        """
        if name and name != self.model.name:
            raise ApiError(
                404, f"there is no model {name!r} here, only {self.model.name!r}",
                code="model_not_found", param="model",
            )  # fmt: skip

    def check_choices(self, count: int) -> None:
        """Prompts times completions of each.

        Raises:
            ApiError: too many.
        """
        if count > self._settings.max_choices:
            raise ApiError(
                400, f"{count} completions in one request: the most is {self._settings.max_choices}",
                code="too_many_choices", param="n",
            )  # fmt: skip

    def check_writes(self, asked: Sampled) -> None:
        """An answer that may have no token is none.

        Raises:
            ApiError: that was asked for.
        """
        if not self.new_tokens(asked.most_tokens):
            raise ApiError(400, "ask for 1 token at least", code="invalid_value", param="max_tokens")

    def check_fills_in(self, param: str) -> None:
        """Only models that were trained for it fill in.

        Raises:
            ApiError: this one was not.
        """
        if not self.model.supports_fim:
            raise ApiError(
                400, "this model was not trained to fill in: leave the suffix out",
                code="no_fill_in", param=param,
            )  # fmt: skip

    def check_ids(self, ids: list[int], param: str) -> None:
        """Token ids are those of the model's vocabulary.

        Raises:
            ApiError: one is beyond it.
        """
        wrong = next((each for each in ids if each >= self._tokenizer.vocab_size), None)
        if wrong is not None:
            raise ApiError(
                400, f"the model has no token {wrong}, only {self._tokenizer.vocab_size}",
                code="invalid_value", param=param,
            )  # fmt: skip

    def new_tokens(self, asked: int | None) -> int:
        """How many tokens may be written: never more than is allowed, or than the context has."""
        if asked is None:
            asked = self._settings.default_new_tokens
        most = self._settings.max_new_tokens or self.model.context
        return min(most if asked < 0 else asked, most, self.model.context)

    # ---- sampling -------------------------------------------------------------------------------------

    def sampling(self, asked: Sampled) -> SamplingSettings:
        """How tokens are chosen."""
        seed = asked.seed if asked.seed is not None else asked.random_seed
        penalty = asked.repetition_penalty or asked.repeat_penalty
        chosen = self.chosen(
            new_tokens=asked.most_tokens, temperature=asked.temperature, top_p=asked.top_p,
            top_k=asked.top_k, min_p=asked.min_p, penalty=penalty, seed=seed, stops=asked.stops,
        )  # fmt: skip
        return replace(
            chosen,
            frequency_penalty=asked.frequency_penalty or 0.0,
            presence_penalty=asked.presence_penalty or 0.0,
            logit_bias=tuple((int(id_), bias) for id_, bias in (asked.logit_bias or {}).items()),
        )

    def chosen(
        self, *, new_tokens: int | None, temperature: float | None, top_p: float | None, top_k: int | None,
        min_p: float | None, penalty: float | None, seed: int | None, stops: tuple[str, ...],
    ) -> SamplingSettings:  # fmt: skip
        """The same, of single values; None for what was not said."""
        own = self._settings
        return SamplingSettings(
            max_new_tokens=max(1, self.new_tokens(new_tokens)),
            temperature=_bounded(own.temperature if temperature is None else temperature),
            top_k=own.top_k if top_k is None else max(0, top_k),
            seed=secrets.randbits(32) if seed is None else seed % 2**32,
            top_p=own.top_p if top_p is None else max(top_p, _LEAST_SHARE),
            min_p=min_p or 0.0,
            repetition_penalty=penalty or 1.0,
            stop=stops,
        )

    # ---- prompts --------------------------------------------------------------------------------------

    def prompt(
        self, prompt: str | list[int], sampling: SamplingSettings, *, samples: int, logprobs: int | None,
        exact: bool = False,
    ) -> GenerationRequest:  # fmt: skip
        """What follows a text, or tokens.

        Args:
            prompt: the beginning of a document.
            sampling: how tokens are chosen.
            samples: continuations.
            logprobs: see `GenerationRequest`.
            exact: take the last token as it is; otherwise the end, which may be inside one, is spelt anew.

        Raises:
            ApiError: too long, or no token of this model.
        """
        if isinstance(prompt, str) and not exact:
            self.check_size(len(prompt))
            request = self.model.engine.request(
                prompt, settings=sampling, num_samples=samples, logprobs=logprobs
            )
            return self.checked(request)
        ids = self.ids(prompt)
        return self.checked(GenerationRequest(ids, sampling, samples, logprobs=logprobs))

    def ids(self, prompt: str | list[int]) -> tuple[int, ...]:
        """The tokens of a prompt, <BOS> first.

        Raises:
            ApiError: see `prompt`.
        """
        if isinstance(prompt, str):
            self.check_size(len(prompt))
            return (BOS, *self._tokenizer.encode(prompt))
        self.check_ids(prompt, "prompt")
        return tuple(prompt) if prompt[0] == BOS else (BOS, *prompt)

    def hole(
        self, prefix: str | bytes, suffix: str | bytes, sampling: SamplingSettings, *, samples: int = 1,
        logprobs: int | None = None, checked: bool = True,
    ) -> GenerationRequest:  # fmt: skip
        """What belongs between two texts; unless `checked`, however long they are.

        Raises:
            ApiError: too long, or the model does not fill in.
        """
        self.check_fills_in("suffix")
        if checked:
            self.check_size(len(prefix) + len(suffix))
        request = self.model.engine.request(
            prefix, suffix, settings=sampling, num_samples=samples, logprobs=logprobs,
            spm=self._settings.fim_order == "spm",
        )  # fmt: skip
        return self.checked(request) if checked else request

    def check_size(self, characters: int, param: str = "prompt") -> None:
        """Refuse a text that cannot fit before it is made tokens, which would take long.

        Raises:
            ApiError: too long.
        """
        if characters > self._most_bytes:
            least = f"more than {characters * self.model.context // self._most_bytes}"
            raise too_long(least, self.model.context, param)

    def checked(self, request: GenerationRequest) -> GenerationRequest:
        """The same.

        Raises:
            ApiError: there is no room for a single token behind the prompt.
        """
        tokens = self.model.prompt_tokens(request)
        if tokens >= self.model.context:
            raise too_long(tokens, self.model.context, "prompt")
        return request


def _bounded(temperature: float) -> float:
    return temperature if temperature >= _LEAST_TEMPERATURE else 0.0


async def planned(work: Callable[[], Result], characters: int) -> Result:
    """Do some planning beside the loop where it may take long.

    Raises:
        ApiError: as the planning does, or what the engine finds wrong.
    """
    try:
        return work() if characters <= _LITTLE else await asyncio.to_thread(work)
    except UserError as error:
        raise ApiError(400, str(error), code="invalid_value") from error
