"""Writing with tools: a continuation that stops at each call and goes on behind the result.

    for event in generate_with_tools(scheduler, request, box):
        match event:
            case TextDelta(text): ...            # text, as soon as it is certain
            case ToolCall() as call: ...          # the model asks for a tool
            case ToolResult(call, result): ...
            case Finished(completion): ...     # last

One continuation is a chain of requests. Each stops where a call begins or ends; the next one reads all that
came before, and behind a call also its result, which the model did not write. What was read stays in the
scheduler's cache, and each request goes on with the random numbers of the one before it: the text depends on
the prompt, the seed and the results, as if it had been written in one go.

`ToolLoop` is the chain without anybody who works it off, for a server that drives many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from cpplm.generate.grammar import Grammar
from cpplm.generate.scheduler import Scheduler
from cpplm.generate.sequence import (
    CompletionOutput,
    FinishReason,
    GenerationRequest,
    StopCondition,
    TokenLogprob,
)
from cpplm.generate.tools.tool_call_format import KINDS, Kind, ToolCall, parse_call, tool_tokens
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextDelta:
    """Text that can be shown."""

    text: str


@dataclass(frozen=True)
class ToolResult:
    """A call with its result."""

    call: ToolCall
    result: str


@dataclass(frozen=True)
class Finished:
    """That was all."""

    completion: CompletionOutput


ToolLoopEvent = TextDelta | ToolCall | ToolResult | Finished


class ToolLoop:
    """One sample that may call tools, as a chain of requests.

    Attributes:
        request: what is to be written next; None while a call waits, and at the end.
        call: waits for its result.
        finish_reason: why it ended; None before.
    """

    def __init__(
        self, tokenizer: Tokenizer, request: GenerationRequest, context: int, sample: int = 0, *,
        call_grammar: Grammar | None = None,
    ) -> None:  # fmt: skip
        """Begin with the request itself.

        Args:
            tokenizer: the model's.
            request: what is to be written; its limit on new tokens counts what the model writes, calls too.
                With a grammar all of it is text, and no tool is called.
            context: the most tokens that the model reads.
            sample: which of the request's samples this is.
            call_grammar: what the call matches with which it begins; None where it may begin with text.
        """
        self._tokenizer, self._context = tokenizer, context
        self._first = replace(request, num_samples=1, first_sample=request.first_sample + sample)
        self._tokens = {kind: tool_tokens(tokenizer, kind) for kind in KINDS}
        self._starts: dict[int | None, Kind] = {each.start: kind for kind, each in self._tokens.items()}
        self._writing: Kind | None = None  # a call of that kind, or text
        self._ids, self._text = list(request.ids), ""
        self._call_grammar = call_grammar
        if call_grammar is not None:
            self._writing = "query_tool"
            self._ids.append(self._tokens[self._writing].start)
        self._logprobs: list[TokenLogprob] = []
        self._left, self._written = request.settings.max_new_tokens, request.written
        self.call: ToolCall | None = None
        self.finish_reason: FinishReason | None = None
        self.request: GenerationRequest | None = self._next(request.prefix)

    @property
    def in_text(self) -> bool:
        """True if `request` gives text, and not part of a call."""
        return self._writing is None

    def add_completion(self, completion: CompletionOutput) -> None:
        """Take the completion of `request`."""
        assert self.request is not None  # noqa: S101  (the caller was given it)
        prefix, written = self.request.prefix, completion.ids
        last = written[-1] if written and completion.finish_reason == "end" else None
        self._ids += written
        self._written += written
        self._left -= len(written) - _spelling(self._tokenizer, prefix, written)
        self._logprobs += completion.logprobs
        begins = finished = False
        if self._writing is None:
            self._text += completion.text
            begins = last in self._starts
        else:
            # A grammar ends a call without the mark behind it.
            demanded = self._call_grammar is not None and completion.finish_reason == "stop"
            finished = demanded or last == self._tokens[self._writing].end
        if not begins and not finished:
            self._end(completion.finish_reason)
        elif self._left <= 0 and self._call_grammar is None:
            self._end("length")
        elif self._writing is not None:
            if last != self._tokens[self._writing].end:
                self._ids.append(self._tokens[self._writing].end)
            self.request, self.call = None, parse_call(self._writing, completion.text)
            self._call_grammar = None
        else:
            self._writing = self._starts[last]
            self._go_on()

    def add_result(self, result: str) -> None:
        """The result of `call`; the model gets to read as much of it as there is room for."""
        assert self._writing is not None  # noqa: S101  (there is a call)
        each, room = self._tokens[self._writing], self._context - len(self._ids) - 3
        if room < 0:  # the two marks, and a token to write
            self._end("length")
            return
        self._ids += [each.result_start, *self._tokenizer.encode(result)[:room], each.result_end]
        self._writing = self.call = None
        self._go_on()

    def completion(self) -> CompletionOutput:
        """All of it: the text without calls and results, the ids with them, logprobs of what was written."""
        assert self.finish_reason is not None  # noqa: S101  (the caller looked)
        ids = tuple(self._ids[len(self._first.ids) :])
        return CompletionOutput(self._text, ids, self.finish_reason, tuple(self._logprobs))

    def _go_on(self) -> None:
        self.request = self._next(b"") if len(self._ids) < self._context else None
        if self.request is None:
            self._end("length")

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason, self.request, self.call = reason, None, None

    def _next(self, prefix: bytes) -> GenerationRequest:
        """Text up to where a call begins, or a call up to its end; stop texts are for text alone."""
        grammar = self._first.grammar if self._writing is None else self._call_grammar
        if self._writing is None:
            starts = [each.start for each in self._tokens.values()]
            ends, stops = ([] if grammar is not None else starts), self._first.settings.stop
        else:
            ends, stops = [self._tokens[self._writing].end], ()
        return replace(
            self._first,
            ids=tuple(self._ids),
            settings=replace(self._first.settings, max_new_tokens=self._left, stop=stops),
            prefix=prefix,
            stop=self._stop() if self._writing is None else None,
            end_ids=(*self._first.end_ids, *ends),
            written=self._written,
            grammar=grammar,
        )

    def _stop(self) -> StopCondition | None:
        """The request's own, told all of the text."""
        stop, before = self._first.stop, self._text
        return None if stop is None else lambda text: stop(before + text)


def _spelling(tokenizer: Tokenizer, prefix: bytes, ids: tuple[int, ...]) -> int:
    """Count the ids that spell the prefix."""
    spelt = accumulate(len(tokenizer.decode_bytes([id_])) for id_ in ids)
    return sum(before < len(prefix) for before in [0, *spelt][: len(ids)])


def generate_with_tools(
    scheduler: Scheduler, request: GenerationRequest, box: ToolBox
) -> Iterator[ToolLoopEvent]:
    """One continuation with its calls, which are answered on the way.

    Args:
        scheduler: writes; nobody else drives it meanwhile.
        request: of one sample.
        box: fresh.

    Raises:
        UserError: the prompt leaves no room in the context.
    """
    loop = ToolLoop(scheduler.tokenizer, request, scheduler.model.config.max_seq_len)
    while loop.finish_reason is None:
        yield from _write(scheduler, loop)
        if loop.call is not None:
            call = loop.call
            yield call
            result = box.call(call)
            loop.add_result(result)
            yield ToolResult(call, result)
    yield Finished(loop.completion())


def _write(scheduler: Scheduler, loop: ToolLoop) -> Iterator[TextDelta]:
    """Work off the loop's request; whoever stops listening cancels it."""
    assert loop.request is not None  # noqa: S101  (neither a call nor the end)
    request_id, in_text = scheduler.submit(loop.request), loop.in_text
    try:
        while not scheduler.idle:
            for event in scheduler.step():
                if in_text and event.text:
                    yield TextDelta(event.text)
                if event.completion is not None:
                    loop.add_completion(event.completion)
    except GeneratorExit:
        scheduler.cancel(request_id)
        raise
