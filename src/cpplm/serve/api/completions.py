"""POST /v1/completions, and Mistral's POST /v1/fim/completions, which editors know."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cpplm.generate.sequence import GenerationRequest
from cpplm.serve.errors import ApiError, too_long
from cpplm.serve.logprobs import Token, prompt_tokens
from cpplm.serve.openapi import answers
from cpplm.serve.request_models import CompletionRequest, FimRequest
from cpplm.serve.request_validation import Planner, planned
from cpplm.serve.response_formatters import ChatStyle, CompletionStyle
from cpplm.serve.response_models import ChatCompletion, Completion
from cpplm.serve.service import Piece, Pieces, Service, Tally
from cpplm.tokenizer.special_tokens import BOS


@dataclass(frozen=True)
class Prompt:
    """A prompt, and how to go on from it."""

    text: str
    ids: tuple[int, ...]
    """<BOS> first; empty where nobody needs them."""
    listed: bool = False
    """Whether its own tokens are to be listed."""
    says_start: bool = False
    """Whether the client sent <BOS> itself."""
    request: GenerationRequest | None = None
    """None where nothing is to be written."""


def add_completions(routes: APIRouter, service: Service, planner: Planner) -> None:
    """Both."""

    @routes.post("/v1/completions", responses=answers(Completion, stream=True), summary="Continue a text")
    async def completions(asked: CompletionRequest, http: HttpRequest) -> Response:
        """Continue prompts, or fill in between a prompt and a `suffix`."""
        _check(asked, planner)
        characters = sum(map(len, asked.prompts)) + len(asked.suffix or "")
        prompts = await planned(lambda: [_prompt(each, asked, planner) for each in asked.prompts], characters)
        tally = Tally()
        style = CompletionStyle(service.model.name, usage=asked.wants_usage)
        pieces = _pieces(service, prompts, asked, tally)
        return await service.respond(http, pieces, style, tally, stream=bool(asked.stream))

    @routes.post("/v1/fim/completions", responses=answers(ChatCompletion, stream=True), summary="Fill in")
    async def fill_in(asked: FimRequest, http: HttpRequest) -> Response:
        """Fill in between `prompt` and `suffix`; answers look like those of a chat."""
        planner.check_model(asked.model)
        planner.check_choices(asked.choices)
        characters = len(asked.prompt) + len(asked.suffix or "")
        request = await planned(lambda: _hole(asked, planner), characters)
        tally = Tally()
        # Continue reads the content of every record, so each has one.
        style = ChatStyle(service.model.name, usage=asked.wants_usage, says_role=False)
        pieces = service.pieces([request], tally)
        return await service.respond(http, pieces, style, tally, stream=bool(asked.stream))


def _check(asked: CompletionRequest, planner: Planner) -> None:
    planner.check_model(asked.model)
    planner.check_choices(len(asked.prompts) * asked.choices)
    if asked.best_of is not None and asked.best_of != asked.choices:
        raise ApiError(400, "best_of is not supported: leave it out", code="invalid_value", param="best_of")
    if asked.suffix and asked.echo:
        raise ApiError(400, "echo and suffix exclude each other", code="invalid_value", param="echo")


def _prompt(prompt: str | list[int], asked: CompletionRequest, planner: Planner) -> Prompt:
    sampling, tokenizer = planner.sampling(asked), planner.model.engine.tokenizer
    writes = planner.new_tokens(asked.most_tokens) > 0
    if asked.suffix:
        if not isinstance(prompt, str):
            raise ApiError(400, "a prompt with a suffix is text", code="invalid_value", param="prompt")
        request = planner.hole(prompt, asked.suffix, sampling, samples=asked.choices, logprobs=asked.logprobs)
        return Prompt(prompt, request.ids, request=request if writes else None)
    listed = bool(asked.echo) and asked.logprobs is not None
    ids = planner.ids(prompt) if listed or not writes or not isinstance(prompt, str) else ()
    if len(ids) > planner.model.context:
        raise too_long(len(ids), planner.model.context, "prompt")
    says_start = not isinstance(prompt, str) and prompt[0] == BOS
    text = prompt if isinstance(prompt, str) else tokenizer.decode(ids if says_start else ids[1:])
    if not writes:
        return Prompt(text, ids, listed, says_start)
    request = planner.prompt(prompt, sampling, samples=asked.choices, logprobs=asked.logprobs, exact=listed)
    return Prompt(text, ids, listed, says_start, request)


async def _pieces(
    service: Service, prompts: Sequence[Prompt], asked: CompletionRequest, tally: Tally
) -> Pieces:
    """The prompts where they are to be repeated, then what is written."""
    requests = [prompt.request for prompt in prompts if prompt.request is not None]
    if asked.echo or not requests:
        for number, prompt in enumerate(prompts):
            tokens = await _listed(service, prompt, asked.logprobs or 0) if prompt.listed else None
            if not requests:
                tally.prompt += len(prompt.ids)
            text = prompt.text if asked.echo else ""
            for sample in range(asked.choices):
                choice = number * asked.choices + sample
                yield Piece(choice, text, tokens, ended=None if requests else "length")
    if requests:
        offsets = [len(prompt.text) for prompt in prompts]
        async with contextlib.aclosing(service.pieces(requests, tally, offsets=offsets)) as source:
            async for piece in source:
                yield piece


async def _listed(service: Service, prompt: Prompt, count: int) -> tuple[Token, ...]:
    """The prompt's own tokens."""
    tokenizer = service.model.engine.tokenizer
    found = await service.score(prompt.ids, count)
    start = tokenizer.decode_bytes(prompt.ids[:1]) if prompt.says_start else b""
    tokens = tuple(prompt_tokens(tokenizer, prompt.ids, found))
    return (Token(start, 0, None, ()), *tokens) if start else tokens


def _hole(asked: FimRequest, planner: Planner) -> GenerationRequest:
    planner.check_writes(asked)
    sampling = planner.sampling(asked)
    if not asked.suffix:
        return planner.prompt(asked.prompt, sampling, samples=asked.choices, logprobs=None)
    return planner.hole(asked.prompt, asked.suffix, sampling, samples=asked.choices)
