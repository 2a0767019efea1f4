"""POST /infill of llama.cpp's server, which llama.vscode and llama.vim ask for completions at the cursor.

The editor sends what stands around the cursor, pieces of other files, and how long it will wait. A prompt is
never refused as too long: what is farthest from the cursor is left out.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from typing_extensions import override

from cpplm.generate.project.context import ContextSource, ProjectContext, truncate_with_context
from cpplm.generate.project.line_retrieval import RetrievedLines
from cpplm.generate.scheduler import TokenEvent
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import SamplingSettings
from cpplm.generate.truncation import fit_prompt, token_ends
from cpplm.serve.api.llama_cpp import generation_settings
from cpplm.serve.errors import response_docs
from cpplm.serve.request_builder import RequestBuilder, off_event_loop
from cpplm.serve.request_models import InfillRequest
from cpplm.serve.response_formatters import ChoiceBuffer, Delta, ResponseFormatter
from cpplm.serve.response_models import ApiResponse, InfillResponse, Timings, Usage
from cpplm.serve.service import DeltaStream, Service, UsageCounter


@dataclass
class InfillProgress(UsageCounter):
    """Counts, times and the end of a request."""

    truncated: bool = False
    stop_type: Literal["none", "eos", "limit", "word"] = "none"
    begin: float = field(default_factory=time.monotonic)
    first: float = 0.0
    """Time of the first token."""
    probability: float = 0.0
    """Of lines that the project gave instead of the model."""
    written: list[tuple[str, float]] = field(default_factory=list)
    """Text and log-probability of each of the model's tokens, where they were asked for."""

    def timings(self) -> Timings:
        """Durations and rates up to now."""
        now = time.monotonic()
        first = self.first or now
        read, written = max(first - self.begin, 1e-6), max(now - first, 1e-6)
        return Timings(
            prompt_n=self.prompt_tokens, prompt_ms=read * 1e3, prompt_per_second=self.prompt_tokens / read,
            predicted_n=self.completion_tokens, predicted_ms=written * 1e3,
            predicted_per_second=self.completion_tokens / written,
        )  # fmt: skip


class InfillStop:
    """Ends of a suggestion before the model's own: at the line that is behind the cursor already, at one
    that is indented too little, or when it takes too long."""

    def __init__(self, indent: int, milliseconds: float, suffix: str = "") -> None:
        """Begin.

        Args:
            indent: columns, 0 for no such limit.
            milliseconds: from the first token on, 0 for no such limit.
            suffix: the text behind the cursor.
        """
        self._indent, self._seconds = indent, milliseconds / 1e3
        self._begin: float | None = None
        lines_behind = (line.rstrip() for line in suffix.split("\n")[1:])
        self._line_behind = next(filter(None, lines_behind), None)

    def __call__(self, text: str) -> bool:
        """Return whether the text so far will do; called after every token."""
        now = time.monotonic()
        self._begin = now if self._begin is None else self._begin
        if self._seconds and "\n" in text and now - self._begin > self._seconds:
            return True
        return self.cut(text) != text

    def cut(self, text: str, *, ended: bool = False) -> str:
        """The text up to the first line, behind the one it begins in, that does not belong to it.

        Args:
            text: so far.
            ended: its last line is whole.
        """
        begin = text.find("\n")
        while begin != -1:
            line, newline, _ = text[begin + 1 :].partition("\n")
            is_whole = ended or newline
            if line.strip() and len(line) - len(line.lstrip(" \t")) < self._indent:
                return text[:begin]
            if is_whole and line.rstrip() == self._line_behind:
                return text[:begin]
            begin = text.find("\n", begin + 1)
        return text

    def visible(self, text: str) -> str:
        """The text without a last line that may become one at which it is cut."""
        text = self.cut(text)
        before, newline, last = text.rpartition("\n")
        is_open = self._line_behind is not None and self._line_behind.startswith(last.rstrip())
        return before if newline and is_open else text


class InfillFormatter(ResponseFormatter):
    """llama.cpp's own form of responses: every chunk looks like a whole one, and the last says all."""

    end_of_stream = ""

    def __init__(
        self, model: str, context: int, settings: SamplingSettings, progress: InfillProgress
    ) -> None:
        self._model, self._progress = model, progress
        self._settings = {"n_ctx": context, **generation_settings(settings)}

    @override
    def response(self, choices: Sequence[ChoiceBuffer], usage: Usage) -> ApiResponse:
        return self._response(choices[0].text, usage, stop=True)

    @override
    def chunk(self, delta: Delta) -> ApiResponse:
        return self._response(delta.text, self._progress.usage, stop=delta.finish_reason is not None)

    def _response(self, content: str, usage: Usage, *, stop: bool) -> InfillResponse:
        progress = self._progress
        return InfillResponse(
            content=content, stop=stop, model=self._model, index=0, tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens, tokens_cached=usage.total_tokens,
            truncated=progress.truncated, stop_type=progress.stop_type, stopping_word="",
            generation_settings=self._settings, timings=progress.timings(),
            project_probability=progress.probability,
        )  # fmt: skip


def add_infill(routes: APIRouter, service: Service, project: ProjectContext | None) -> None:
    """Add the route; a project's text stands in front of the prefix, and its lines may be the answer."""
    builder = service.builder

    @routes.post(
        "/infill",
        responses=response_docs(InfillResponse | dict[str, Any], stream=True),
        summary="Fill in, as llama.cpp does",
    )
    async def infill(params: InfillRequest, http: HttpRequest) -> Response:
        """Fill in at an editor's cursor."""
        if params.input_suffix.strip():  # else there is no hole: any model goes on at the end of a file
            builder.check_supports_fim("input_suffix")
        characters = len(params.input_prefix) + len(params.prompt) + len(params.input_suffix)
        characters += sum(len(extra.text) for extra in params.input_extra)
        progress = InfillProgress()
        characters += sys.maxsize if project is not None else 0  # its files may have changed
        sampling = builder.sampling(params)
        stop = InfillStop(params.n_indent, params.t_max_predict_ms, params.input_suffix)
        formatter = InfillFormatter(service.model.name, service.model.context, sampling, progress)
        lines = None
        if project is not None and params.n_predict != 0:
            prefix = params.input_prefix + params.prompt
            lines = await off_event_loop(
                lambda: project.lines(params.input_file, prefix, params.input_suffix), characters
            )
        if lines is not None and project is not None and lines.probability >= project.min_probability:
            deltas = _retrieved(lines, sampling, stop, progress)
        else:
            request = await off_event_loop(
                lambda: _request(params, sampling, builder, progress, project), characters
            )
            service.metrics.prompt_tokens.inc(progress.prompt_tokens)
            events = service.token_events(
                [replace(request, stop=stop, logprobs=None if lines is None else 0)]
            )
            deltas = _deltas(events, request, stop, progress, read_only=params.n_predict == 0)
            if lines is not None:
                deltas = _likelier(deltas, lines, sampling, stop, progress)
        response = await service.respond(http, deltas, formatter, progress, stream=params.stream)
        if params.response_fields is None or params.stream or response.status_code != 200:
            return response
        return JSONResponse(_selected_fields(bytes(response.body), params.response_fields))


def _request(
    params: InfillRequest,
    sampling: SamplingSettings,
    builder: RequestBuilder,
    progress: InfillProgress,
    project: ProjectContext | None,
) -> GenerationRequest:
    supports_fim = builder.model.supports_fim
    extras = [extra.text for extra in params.input_extra]
    prefix, suffix = params.input_prefix + params.prompt, params.input_suffix if supports_fim else ""

    source = ngrams = None
    if project is not None:
        cursor = params.input_file, prefix, params.input_suffix
        source, ngrams = project.source(*cursor), project.ngrams(*cursor)

    def attempt(room: int) -> tuple[tuple[GenerationRequest, bool], int]:
        before, behind, truncated = infill_context(builder, extras, prefix, suffix, room, source)
        if supports_fim:
            request = builder.infill(before, behind, sampling)
        else:
            request = builder.model.engine.request(before, settings=sampling)
        request = replace(request, valid=params.context(prefix, suffix), ngrams=ngrams)
        return (request, truncated), builder.model.engine.num_prompt_tokens(request)

    (request, progress.truncated), progress.prompt_tokens = fit_prompt(
        builder.model.context, sampling.max_new_tokens, attempt
    )
    return builder.check_room(request)


def infill_context(
    builder: RequestBuilder,
    extras: Sequence[str],
    prefix: str,
    suffix: str,
    room: int,
    source: ContextSource | None = None,
) -> tuple[bytes, bytes, bool]:
    """Text before and behind a hole, the nearest first, and whether some of it was left out.

    Args:
        builder: of the model.
        extras: pieces of other files, the oldest first.
        prefix: in front of the hole.
        suffix: behind it.
        room: tokens.
        source: of text of the project.
    """
    tokenizer = builder.model.engine.tokenizer
    most = max(0, room) * int(tokenizer.token_bytes.max())  # no more characters fit in any case
    short = [*takewhile(lambda extra: len(extra) <= most, reversed(extras))][::-1]
    front, before, behind = truncate_with_context(
        prefix[max(0, len(prefix) - most) :], suffix[:most], room, token_ends(tokenizer), source, short
    )
    whole = [f"{extra}\n" for extra in extras]
    truncated = (before, behind, front[: len(whole)]) != (prefix.encode(), suffix.encode(), whole)
    return "".join(front).encode() + before, behind, truncated


async def _retrieved(
    lines: RetrievedLines, settings: SamplingSettings, stop: InfillStop, progress: InfillProgress
) -> DeltaStream:
    """Yield lines of the project, cut as what the model writes is."""
    progress.first, progress.stop_type = time.monotonic(), "eos"
    progress.probability = lines.probability
    text = stop.cut(lines.text, ended=True)
    for word in settings.stop:
        text = text.partition(word)[0]
    yield Delta(0, text, finish_reason="stop")


async def _likelier(
    written: DeltaStream, lines: RetrievedLines, settings: SamplingSettings, stop: InfillStop,
    progress: InfillProgress,
) -> DeltaStream:  # fmt: skip
    """Yield lines of the project, or what the model wrote where that is preferred."""
    deltas = [delta async for delta in written]
    if lines.is_preferred(progress.written):
        written = _retrieved(lines, settings, stop, progress)
        deltas = [delta async for delta in written]
    for delta in deltas:
        yield delta


async def _deltas(
    events: AsyncGenerator[tuple[int, TokenEvent], None], request: GenerationRequest, stop: InfillStop,
    progress: InfillProgress, *, read_only: bool,
) -> DeltaStream:  # fmt: skip
    """Yield the text up to where it stops."""
    text, num_shown = "", 0
    async with contextlib.aclosing(events):
        async for _, event in events:
            progress.first = progress.first or time.monotonic()
            if read_only:
                progress.stop_type = "limit"
                yield Delta(0, finish_reason="length")
                return
            progress.completion_tokens += event.is_new
            if event.logprob is not None:
                progress.written.append((event.text, event.logprob.logprob))
            text += event.text
            shown = stop.visible(text) if event.completion is None else stop.cut(text, ended=True)
            new = shown[num_shown:]
            num_shown += len(new)
            if event.completion is not None:
                progress.stop_type = _stop_type(event.completion, request)
                yield Delta(0, new, finish_reason="stop")
            elif new:
                yield Delta(0, new)


def _stop_type(completion: CompletionOutput, request: GenerationRequest) -> Literal["eos", "limit", "word"]:
    if completion.finish_reason == "end":
        return "eos"
    return "word" if completion.finish_reason == "stop" and request.settings.stop else "limit"


def _selected_fields(body: bytes, paths: Sequence[str]) -> dict[str, Any]:
    """Some fields of a response; those inside others are named by their path, such as timings/prompt_n."""
    selected: dict[str, Any] = {}
    response = json.loads(body)
    for path in paths:
        value = response
        with contextlib.suppress(KeyError, TypeError):  # there is no such field
            for name in path.split("/"):
                value = value[name]
            selected[path] = value
    return selected
