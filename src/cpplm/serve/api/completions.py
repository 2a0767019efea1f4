"""POST /v1/completions, and Mistral's POST /v1/fim/completions, which editors know."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cpplm.generate.grammar import Grammar
from cpplm.generate.sequence import GenerationRequest
from cpplm.serve.errors import ApiError, response_docs, too_long
from cpplm.serve.logprobs import ListedToken, prompt_tokens
from cpplm.serve.request_builder import RequestBuilder, off_event_loop
from cpplm.serve.request_models import CompletionRequest, FimRequest
from cpplm.serve.response_formatters import ChatFormatter, CompletionFormatter, Delta
from cpplm.serve.response_models import ChatCompletionResponse, CompletionResponse
from cpplm.serve.service import DeltaStream, Service, UsageCounter, pick_service
from cpplm.tokenizer.special_tokens import BOS


@dataclass(frozen=True)
class CompletionPrompt:
    """A prompt, and how to go on from it."""

    text: str
    ids: tuple[int, ...]
    """<BOS> first; empty where nobody needs them."""
    list_tokens: bool = False
    """True if its own tokens are listed in the response."""
    has_bos: bool = False
    """True if the client sent <BOS> itself."""
    request: GenerationRequest | None = None
    """None where nothing is to be generated."""


def add_completions(routes: APIRouter, services: Sequence[Service]) -> None:
    """Add both routes."""

    @routes.post(
        "/v1/completions", responses=response_docs(CompletionResponse, stream=True), summary="Continue a text"
    )
    async def completions(params: CompletionRequest, http: HttpRequest) -> Response:
        """Continue prompts, or fill in between a prompt and a `suffix`."""
        service = pick_service(services, params)
        builder = service.builder
        _check(params, builder)
        characters = sum(map(len, params.prompts)) + len(params.suffix or "")
        grammar = await builder.grammar(params.grammar_spec)
        prompts = await off_event_loop(
            lambda: [_prompt(each, params, builder, grammar) for each in params.prompts], characters
        )
        counter = UsageCounter()
        formatter = CompletionFormatter(
            service.model.name, include_usage=params.include_usage,
            prompts=[prompt.request.ids for prompt in prompts if prompt.request and params.return_token_ids],
        )  # fmt: skip
        deltas = _deltas(service, prompts, params, counter)
        return await service.respond(http, deltas, formatter, counter, stream=params.stream)

    @routes.post(
        "/v1/fim/completions", responses=response_docs(ChatCompletionResponse, stream=True), summary="Fill in"
    )
    async def fill_in(params: FimRequest, http: HttpRequest) -> Response:
        """Fill in between `prompt` and `suffix`; responses look like those of a chat."""
        service = pick_service(services, params)
        builder = service.builder
        builder.check(params)
        characters = len(params.prompt) + len(params.suffix or "")
        grammar = await builder.grammar(params.grammar_spec)
        request = await off_event_loop(lambda: _fim_request(params, builder, grammar), characters)
        counter = UsageCounter()
        # Continue reads the content of every chunk, so each has one.
        formatter = ChatFormatter(service.model.name, include_usage=params.include_usage, role_chunk=False)
        deltas = service.deltas([request], counter)
        return await service.respond(http, deltas, formatter, counter, stream=params.stream)


def _check(params: CompletionRequest, builder: RequestBuilder) -> None:
    builder.check(params, prompts=len(params.prompts))
    if params.best_of is not None and params.best_of != params.num_choices:
        raise ApiError(400, "best_of is not supported: leave it out", code="invalid_value", param="best_of")
    if params.suffix and params.echo:
        raise ApiError(400, "echo and suffix exclude each other", code="invalid_value", param="echo")
    if params.return_token_ids and (params.logprobs is None or params.stream or params.echo):
        raise ApiError(
            400, "return_token_ids needs logprobs, and neither stream nor echo",
            code="invalid_value", param="return_token_ids",
        )  # fmt: skip
    builder.check_ids(params.stop_token_ids, "stop_token_ids")


def _prompt(
    prompt: str | list[int], params: CompletionRequest, builder: RequestBuilder, grammar: Grammar | None
) -> CompletionPrompt:
    sampling, tokenizer = builder.sampling(params), builder.model.engine.tokenizer
    logprobs, generates = params.logprobs, builder.max_new_tokens(params) > 0
    if params.suffix:
        if not isinstance(prompt, str):
            raise ApiError(400, "a prompt with a suffix is text", code="invalid_value", param="prompt")
        request = replace(
            builder.infill_checked(prompt, params.suffix, sampling), num_samples=params.num_choices,
            logprobs=logprobs, grammar=grammar, valid=params.context(prompt, params.suffix),
        )  # fmt: skip
        return CompletionPrompt(prompt, request.ids, request=request if generates else None)
    list_tokens = bool(params.echo) and logprobs is not None
    ids = builder.token_ids(prompt) if list_tokens or not generates or not isinstance(prompt, str) else ()
    if len(ids) > builder.model.context:
        raise too_long(len(ids), builder.model.context, "prompt")
    has_bos = not isinstance(prompt, str) and prompt[0] == BOS
    text = prompt if isinstance(prompt, str) else tokenizer.decode(ids if has_bos else ids[1:])
    if not generates:
        return CompletionPrompt(text, ids, list_tokens, has_bos)
    request = replace(
        builder.continuation(prompt, sampling, exact=list_tokens), num_samples=params.num_choices,
        logprobs=logprobs, grammar=grammar, end_ids=tuple(params.stop_token_ids),
        valid=params.context(text, None),
    )  # fmt: skip
    return CompletionPrompt(text, ids, list_tokens, has_bos, request)


async def _deltas(
    service: Service, prompts: Sequence[CompletionPrompt], params: CompletionRequest, counter: UsageCounter
) -> DeltaStream:
    """Yield the prompts where they are to be repeated, then what is generated."""
    requests = [prompt.request for prompt in prompts if prompt.request is not None]
    if params.echo or not requests:
        for number, prompt in enumerate(prompts):
            tokens = await _prompt_tokens(service, prompt, params.logprobs or 0)
            if not requests:
                counter.prompt_tokens += len(prompt.ids)
                service.metrics.prompt_tokens.inc(len(prompt.ids))
            text = prompt.text if params.echo else ""
            for sample in range(params.num_choices):
                index = number * params.num_choices + sample
                yield Delta(index, text, tokens, finish_reason=None if requests else "length")
    if requests:
        offsets = [len(prompt.text) for prompt in prompts]
        listed = service.deltas(
            requests, counter, offsets=offsets, has_ids=bool(params.return_token_ids),
            has_end=bool(params.echo),  # one entry for each token: clients count from the end
        )  # fmt: skip
        async with contextlib.aclosing(listed) as deltas:
            async for delta in deltas:
                yield delta


async def _prompt_tokens(
    service: Service, prompt: CompletionPrompt, count: int
) -> tuple[ListedToken, ...] | None:
    """The prompt's own tokens, with so many likeliest ones beside each; None where they are not listed."""
    if not prompt.list_tokens:
        return None
    tokenizer = service.model.engine.tokenizer
    scores = await service.score(prompt.ids, count)
    tokens = tuple(prompt_tokens(tokenizer, prompt.ids, scores))
    bos = tokenizer.decode_bytes(prompt.ids[:1]) if prompt.has_bos else b""
    return (ListedToken(bos, 0, None, ()), *tokens) if bos else tokens


def _fim_request(params: FimRequest, builder: RequestBuilder, grammar: Grammar | None) -> GenerationRequest:
    builder.check_generates(params)
    sampling = builder.sampling(params)
    if not params.suffix:
        request = builder.continuation(params.prompt, sampling)
    else:
        request = builder.infill_checked(params.prompt, params.suffix, sampling)
    valid = params.context(params.prompt, params.suffix)
    return replace(request, num_samples=params.num_choices, grammar=grammar, valid=valid)
