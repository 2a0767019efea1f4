"""POST /infill of llama.cpp's server, which llama.vscode and llama.vim ask for completions at the cursor.

The editor sends what stands around the cursor, pieces of other files, and how long it will wait. A prompt is
never refused as too long: what is farthest from the cursor is left out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.truncation import fit_prompt, token_ends, truncate
from cpplm.serve.api.llama_cpp import generation_settings
from cpplm.serve.openapi import answers
from cpplm.serve.request_models import InfillRequest
from cpplm.serve.request_validation import Planner, planned
from cpplm.serve.response_models import Answer, Infilled, Timings
from cpplm.serve.service import Choice, Piece, Pieces, Service, Tally


@dataclass
class _State:
    """How far it is, and what ended it."""

    evaluated: int = 0
    predicted: int = 0
    truncated: bool = False
    stop_type: Literal["none", "eos", "limit", "word"] = "none"
    begin: float = field(default_factory=time.monotonic)
    first: float = 0.0
    """When the first token was there."""

    def timings(self) -> Timings:
        """Up to now."""
        now = time.monotonic()
        first = self.first or now
        read, written = max(first - self.begin, 1e-6), max(now - first, 1e-6)
        return Timings(
            prompt_n=self.evaluated, prompt_ms=read * 1e3, prompt_per_second=self.evaluated / read,
            predicted_n=self.predicted, predicted_ms=written * 1e3,
            predicted_per_second=self.predicted / written,
        )  # fmt: skip


class Enough:
    """When to stop before the model does: at a line indented too little, or when it takes too long."""

    def __init__(self, indent: int, milliseconds: float) -> None:
        """Of one request; 0 for no such limit."""
        self._indent, self._seconds = indent, milliseconds / 1e3
        self._begin: float | None = None

    def __call__(self, text: str) -> bool:
        """Whether the text so far will do; asked after every token."""
        now = time.monotonic()
        self._begin = now if self._begin is None else self._begin
        if self._seconds and "\n" in text and now - self._begin > self._seconds:
            return True
        return self.cut(text) != text

    def cut(self, text: str) -> str:
        """The text up to the first line, behind the one it begins in, that is indented too little."""
        begin = text.find("\n")
        while self._indent and begin != -1:
            line = text[begin + 1 :].partition("\n")[0]
            if line.strip() and len(line) - len(line.lstrip(" \t")) < self._indent:
                return text[:begin]
            begin = text.find("\n", begin + 1)
        return text


class InfillStyle:
    """llama.cpp's own form of answers: see `Style`."""

    ends_with = ""

    def __init__(self, model: str, context: int, request: GenerationRequest, state: _State) -> None:
        self._model, self._state = model, state
        self._settings = {"n_ctx": context, **generation_settings(request.settings)}

    def whole(self, choices: Sequence[Choice], tally: Tally) -> Answer:
        """See `Style`."""
        del tally
        return self._answer(choices[0].text, stop=True)

    def opening(self, choice: int) -> Answer | None:
        """Nothing."""
        del choice
        return None

    def piece(self, piece: Piece) -> Answer:
        """See `Style`."""
        return self._answer(piece.text, stop=piece.ended is not None)

    def closing(self, tally: Tally) -> Answer | None:
        """Nothing: the last piece says all."""
        del tally
        return None

    def _answer(self, content: str, *, stop: bool) -> Infilled:
        state = self._state
        return Infilled(
            content=content, stop=stop, model=self._model, index=0, tokens_predicted=state.predicted,
            tokens_evaluated=state.evaluated, tokens_cached=state.evaluated + state.predicted,
            truncated=state.truncated, stop_type=state.stop_type, stopping_word="",
            generation_settings=self._settings, timings=state.timings(),
        )  # fmt: skip


def add_infill(routes: APIRouter, service: Service, planner: Planner) -> None:
    """The one route."""

    @routes.post(
        "/infill",
        responses=answers(Infilled | dict[str, Any], stream=True),
        summary="Fill in, as llama.cpp does",
    )
    async def infill(asked: InfillRequest, http: HttpRequest) -> Response:
        """Fill in at an editor's cursor."""
        if asked.input_suffix.strip():  # else there is no hole: any model goes on at the end of a file
            planner.check_fills_in("input_suffix")
        characters = len(asked.input_prefix) + len(asked.prompt) + len(asked.input_suffix)
        characters += sum(len(extra.text) for extra in asked.input_extra)
        state = _State()
        request = await planned(lambda: _request(asked, planner, state), characters)
        enough = Enough(asked.n_indent, asked.t_max_predict_ms)
        style = InfillStyle(service.model.name, service.model.context, request, state)
        pieces = _pieces(
            service, replace(request, stop=enough), enough, state, reads_only=asked.n_predict == 0
        )
        answer = await service.respond(http, pieces, style, Tally(), stream=asked.stream)
        if asked.response_fields is None or asked.stream or answer.status_code != 200:
            return answer
        return JSONResponse(_chosen(bytes(answer.body), asked.response_fields))


def _request(asked: InfillRequest, planner: Planner, state: _State) -> GenerationRequest:
    sampling = planner.chosen(
        new_tokens=None if asked.n_predict < 0 else asked.n_predict,
        temperature=asked.temperature, top_p=asked.top_p, top_k=asked.top_k, min_p=asked.min_p,
        penalty=asked.repeat_penalty, seed=None if asked.seed == -1 else asked.seed, stops=tuple(asked.stop),
    )  # fmt: skip
    supports_fim = planner.model.supports_fim
    extras = [extra.text for extra in asked.input_extra]
    prefix, suffix = asked.input_prefix + asked.prompt, asked.input_suffix if supports_fim else ""

    def attempt(room: int) -> tuple[tuple[GenerationRequest, bool], int]:
        around = surroundings(planner, extras, prefix, suffix, room)
        if supports_fim:
            request = planner.hole(around.prefix, around.suffix, sampling, checked=False)
        else:
            request = planner.model.engine.request(around.prefix, settings=sampling)
        return (request, around.truncated), planner.model.prompt_tokens(request)

    found, state.evaluated = fit_prompt(planner.model.context, sampling.max_new_tokens, attempt)
    request, state.truncated = found
    return planner.checked(request)


@dataclass(frozen=True)
class Surroundings:
    """What the model reads around a hole."""

    prefix: bytes
    suffix: bytes
    truncated: bool


def surroundings(
    planner: Planner, extras: Sequence[str], prefix: str, suffix: str, room: int
) -> Surroundings:
    """As much of the surroundings as fits, the nearest first.

    Half of the room at most is for pieces of other files, the newest of them, which stand before the prefix;
    how many fit does not depend on what is near, so that they stay the same while somebody types.

    Args:
        planner: of the model.
        extras: pieces of other files, the oldest first.
        prefix: in front of the hole.
        suffix: behind it.
        room: tokens.
    """
    tokenizer = planner.model.engine.tokenizer
    most = max(0, room) * int(tokenizer.token_bytes.max())  # no more characters fit in any case
    taken: list[str] = []
    left = room // 2
    for extra in reversed(extras):
        size = len(tokenizer.encode(extra + "\n")) if len(extra) <= most else left + 1
        if size > left:
            break
        taken.insert(0, extra + "\n")
        left -= size
    near = room - (room // 2 - left) if taken else room
    before, behind = truncate(prefix[-most:] if most else "", suffix[:most], near, token_ends(tokenizer))
    truncated = (before, behind, len(taken)) != (prefix.encode(), suffix.encode(), len(extras))
    return Surroundings("".join(taken).encode() + before, behind, truncated)


async def _pieces(
    service: Service, request: GenerationRequest, enough: Enough, state: _State, *, reads_only: bool
) -> Pieces:
    """The text up to where it is enough."""
    service.metrics.prompt_tokens.inc(state.evaluated)
    text, shown = "", 0
    async with contextlib.aclosing(service.news([request])) as source:
        async for news in source:
            state.first = state.first or time.monotonic()
            if reads_only:
                state.stop_type = "limit"
                yield Piece(0, ended="length")
                return
            state.predicted += news.event.is_new
            text += news.event.text
            new = enough.cut(text)[shown:]
            shown += len(new)
            if (done := news.event.completion) is not None:
                state.stop_type = _stop_type(done, request)
                yield Piece(0, new, ended="stop")
            elif new:
                yield Piece(0, new)


def _stop_type(done: CompletionOutput, request: GenerationRequest) -> Literal["eos", "limit", "word"]:
    if done.finish_reason == "end":
        return "eos"
    return "word" if done.finish_reason == "stop" and request.settings.stop else "limit"


def _chosen(body: bytes, paths: Sequence[str]) -> dict[str, Any]:
    """Some fields of an answer; those inside others are named by their path, such as timings/prompt_n."""
    chosen: dict[str, Any] = {}
    whole = Infilled.model_validate_json(body).model_dump()
    for path in paths:
        found: Any = whole
        for name in path.split("/"):
            found = found.get(name, _MISSING) if isinstance(found, dict) else _MISSING
        if found is not _MISSING:
            chosen[path] = found
    return chosen


_MISSING = object()
