"""A model with its tokenizer, for inference: text in, text out.

    engine = Engine(model, tokenizer)
    for completion in engine.complete("int main() {", num_samples=2):
        print(completion.text)
    requests = (engine.request(prompt, settings=settings) for prompt in prompts)
    for answer in engine.complete_many(requests):  # many at once, each as soon as it is done
        print(answer.number, answer.completions)

A prompt may end anywhere, also inside a token: its end is taken back and written again by the model, which
has to spell it (see `cpplm.tokenizer.healing`). With a suffix the model fills in what belongs between the
two. There nothing is taken back at either cut: in training both sides of a hole were encoded each on its own
(see `cpplm.dataloader.fim`), so a prompt cut inside a token is what the model has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from cpplm.core.errors import UserError
from cpplm.dataloader.fim import render_fim_prompt
from cpplm.generate.grammar import Grammar, GrammarCompiler
from cpplm.generate.ngram_mixture import NgramMixture
from cpplm.generate.scheduler import Scheduler
from cpplm.generate.sequence import CompletionOutput, GenerationRequest, StopCondition
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.generate.valid_cpp import cpp_context
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.healing import heal
from cpplm.tokenizer.special_tokens import BOS
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class RequestResult:
    """All samples of one request of many, or why there are none."""

    number: int
    """Number of the request, from 0."""
    completions: tuple[CompletionOutput, ...]
    failed: str = ""
    staleness: int = 0
    """Updates of the trainer's weights since those that wrote it, where an engine elsewhere did."""
    refused: int = 0
    """Answers that came before and could not be used."""


class Engine:
    """A model with its tokenizer."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiler of what completions may have to match."""
        return GrammarCompiler(self.tokenizer)

    def request(
        self,
        prefix: str | bytes,
        suffix: str | bytes | None = None,
        *,
        settings: SamplingSettings | None = None,
        num_samples: int = 1,
        stop: StopCondition | None = None,
        logprobs: int | None = None,
        spm: bool = True,
        grammar: Grammar | None = None,
        valid: bool = False,
        ngrams: NgramMixture | None = None,
    ) -> GenerationRequest:
        """Make a request for what follows `prefix`, the beginning of a document.

        Args:
            prefix: what stands before.
            suffix: what stands behind, for a model that was trained to fill in.
            settings: how tokens are chosen.
            num_samples: continuations.
            stop: whether the text so far is enough.
            logprobs: see `GenerationRequest`.
            spm: the suffix comes first: the prefix is gone on from, as in any text, which models that have
                seen little text can do best, and what was read of the suffix stays known while it grows.
            grammar: what the continuations match.
            valid: draw tokens again that break the syntax of C++.
            ngrams: of a project, beside the model.
        """
        settings = settings or SamplingSettings()
        if suffix is not None:
            ids = render_fim_prompt(self.tokenizer, prefix, suffix, spm=spm)
            removed = b""
        else:
            healed = heal(self.tokenizer, prefix)
            ids, removed = [BOS, *healed.ids], healed.removed
        context = cpp_context(prefix, suffix) if valid else None
        return GenerationRequest(
            tuple(ids),
            settings,
            num_samples,
            removed,
            stop,
            logprobs,
            grammar=grammar,
            valid=context,
            ngrams=ngrams,
        )

    def num_prompt_tokens(self, request: GenerationRequest) -> int:
        """Tokens of a prompt as it was sent, <BOS> too: also those of its end, which is spelt anew."""
        return len(request.ids) + len(self.tokenizer.encode(request.prefix))

    def scheduler(self, limits: SchedulerLimits | None = None) -> Scheduler:
        """For requests that come and go, see `Scheduler`."""
        return Scheduler(self.model, self.tokenizer, limits)

    def complete(
        self, prompt: str, settings: SamplingSettings | None = None, num_samples: int = 1
    ) -> list[CompletionOutput]:
        """Samples that follow `prompt`, which is taken as the beginning of a document.

        Raises:
            UserError: the prompt leaves no room in the context.
        """
        request = self.request(prompt, settings=settings, num_samples=num_samples)
        limits = SchedulerLimits(max_batch=num_samples, prefix_cache_tokens=0)
        (answer,) = self.complete_many([request], limits)
        if answer.failed:
            raise UserError(answer.failed)
        return list(answer.completions)

    def complete_many(
        self, requests: Iterable[GenerationRequest], limits: SchedulerLimits | None = None
    ) -> Iterator[RequestResult]:
        """Many requests at once, each answered as soon as it is done, in any order.

        Requests are taken from the iterable as there is room, so it may be long. One that cannot be served is
        answered with the reason; the others go on. Samples of a request do not depend on the others, but for
        rounding (see `cpplm.generate.sampling`).

        Args:
            requests: what to write.
            limits: how many samples are written at a time, and with how much memory.
        """
        scheduler, source = self.scheduler(limits), enumerate(requests)
        numbers: dict[int, int] = {}
        done: dict[int, dict[int, CompletionOutput]] = {}
        while True:
            batch = list(islice(source, scheduler.limits.max_batch - scheduler.num_waiting))
            for number, request in batch:
                try:
                    request_id = scheduler.submit(request)
                except UserError as error:
                    yield RequestResult(number, (), str(error))
                    continue
                numbers[request_id], done[request_id] = number, {}
            if not batch and scheduler.idle:
                return
            for event in scheduler.step():
                if event.completion is not None:
                    done[event.request_id][event.sample] = event.completion
                if event.last:
                    samples = done.pop(event.request_id)
                    completions = tuple(samples[number] for number in range(len(samples)))
                    yield RequestResult(numbers.pop(event.request_id), completions)
