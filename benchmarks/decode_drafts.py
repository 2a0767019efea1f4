"""What drafts save in decoding: `decode.py --drafts`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice, takewhile
from typing import Any

from measuring import Spread, progress, ratios

from cpplm.core.errors import UserError
from cpplm.evaluate.texts import read_texts
from cpplm.generate.engine import Engine
from cpplm.generate.load import load_engine
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import DraftSettings, ModelSource, SamplingSettings, SchedulerLimits


@dataclass
class DraftFigures:
    """One contender, one turn: what was generated behind the first token of each prompt."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    texts: list[str] = field(default_factory=list)

    def write(self, engine: Engine, request: GenerationRequest, draft: DraftSettings) -> None:
        """Complete one prompt."""
        scheduler = engine.scheduler(SchedulerLimits(max_batch=1, prefix_cache_tokens=0, draft=draft))
        scheduler.submit(request)
        events = []
        while not events:  # until the prompt is read; that step may write more than one token
            events = scheduler.step()
        first, drafted, accepted = len(events), scheduler.num_drafted, scheduler.num_accepted
        begin = time.perf_counter()
        while not scheduler.idle:
            events += scheduler.step()
            self.steps += 1
        self.seconds += time.perf_counter() - begin
        self.tokens += len(events) - first
        self.drafted += scheduler.num_drafted - drafted
        self.accepted += scheduler.num_accepted - accepted
        self.texts.append("".join(event.text for event in events))


def held_out_prompts(engine: Engine, arguments: argparse.Namespace) -> Iterator[str]:
    """Beginnings of held-out documents, in the order of their hashes, each cut behind a line."""
    most = min(arguments.prompt, engine.model.config.max_seq_len - arguments.tokens)
    for text in sorted(read_texts(arguments.data), key=lambda text: text.digest):
        lines = text.text.splitlines(keepends=True)
        starts = accumulate(lines[: len(lines) // 2])
        fitting = list(takewhile(lambda start: len(engine.tokenizer.encode(start)) <= most, starts))
        yield from fitting[-1:]


def draft_settings(text: str) -> DraftSettings:
    """Parse "lookup:4"."""
    kind, _, tokens = text.partition(":")
    if kind not in ("lookup", "heads") or not tokens.isdigit():
        raise argparse.ArgumentTypeError(f"{text}: use for example lookup:4 or heads:1")
    return DraftSettings(kind, tokens=int(tokens))  # type: ignore[arg-type]


def measure_drafts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rates of every contender, tokens per step, share of drafts kept, and share of texts that are equal."""
    engine, checkpoint = load_engine(ModelSource(arguments.run, device_type="cpu"))
    settings = SamplingSettings(arguments.tokens, temperature=0)
    prompts = islice(held_out_prompts(engine, arguments), arguments.prompts)
    requests = [engine.request(text, settings=settings) for text in prompts]
    if not requests:
        raise UserError(f"{arguments.data} has no document whose first line fits into {arguments.prompt}")
    contenders = [DraftSettings(), *arguments.drafts]
    for draft in contenders:
        DraftFigures().write(engine, requests[0], draft)  # warm
    turns = [[DraftFigures() for _ in contenders] for _ in range(arguments.turns)]
    for turn in turns:
        for request in requests:
            for draft, figures in zip(contenders, turn, strict=True):
                figures.write(engine, request, draft)
    rates = [[figures.tokens / figures.seconds for figures in column] for column in zip(*turns, strict=True)]
    results = {}
    for draft, rate, last in zip(contenders, rates, turns[-1], strict=True):
        name = draft.kind if draft.kind == "off" else f"{draft.kind}:{draft.tokens}"
        results[name] = {
            "tokens_per_second": Spread.of(rate, 1),
            "times_as_fast": ratios(rate, rates[0]),
            "tokens_per_step": round(last.tokens / last.steps, 3),
            "accepted": round(last.accepted / last.drafted, 3) if last.drafted else None,
            "same_texts": sum(map(str.__eq__, last.texts, turns[-1][0].texts)) / len(last.texts),
        }
        progress(f"{name:9} {results[name]}")
    return {"step": checkpoint.step, "dtype": str(engine.model.compute_dtype), "prompts": len(requests),
            "drafts": results}  # fmt: skip
