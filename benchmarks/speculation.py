"""What drafts save: tokens per second of one completion at a time, against the same without drafts.

    python benchmarks/speculation.py --run RUN --data CORPUS [--drafts lookup:4 heads:1 heads:2]
        [--prompts 20] [--prompt_tokens 256] [--tokens 128] [--temperature 0] [--threads 2] [--turns 3]

The model is the newest checkpoint of a run folder. Prompts are the beginnings of documents that it was not
trained on: the validation documents of a corpus, chosen by their hashes. Whatever follows the first line
break behind half of the document, or `prompt_tokens`, is left to the model. All contenders write behind the
same prompt in turn, in one process; the time of reading the prompt does not count.

A contender is "lookup" or "heads", and how many tokens are drafted at a time. Beside the rates stand tokens
per step, the share of drafted tokens that were kept, and the share of texts that are the same as without
drafts: in bfloat16 rounding can decide between two tokens that are nearly as likely.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from measuring import Spread, describe_machine, prepare_environment, progress, publish, ratios

from cpplm.core.errors import UserError
from cpplm.evaluate.texts import read_texts
from cpplm.generate.engine import Engine
from cpplm.generate.load import load_engine
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import DraftSettings, ModelSource, SamplingSettings, SchedulerLimits

PLAIN = "off"


@dataclasses.dataclass
class Tally:
    """Of one contender, one turn."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    texts: list[str] = dataclasses.field(default_factory=list)


def write(engine: Engine, request: GenerationRequest, draft: DraftSettings, tally: Tally) -> None:
    """One completion; what follows its first token counts."""
    scheduler = engine.scheduler(SchedulerLimits(max_batch=1, prefix_cache_tokens=0, draft=draft))
    scheduler.submit(request)
    events = []
    while not events:  # until the prompt is read; that step may write more than one token
        events = scheduler.step()
    drafted, accepted = scheduler.num_drafted, scheduler.num_accepted
    wall, cpu = time.perf_counter(), time.process_time()
    while not scheduler.idle:
        new = scheduler.step()
        events += new
        tally.steps += 1
        tally.tokens += len(new)
    tally.seconds += time.perf_counter() - wall
    tally.processor_seconds += time.process_time() - cpu
    tally.drafted += scheduler.num_drafted - drafted
    tally.accepted += scheduler.num_accepted - accepted
    tally.texts.append("".join(event.text for event in events))


def prompts(engine: Engine, arguments: argparse.Namespace) -> list[str]:
    """Beginnings of held-out documents, each cut behind a line.

    Raises:
        UserError: the corpus cannot be read, or no document is long enough.
    """
    texts = sorted(read_texts(arguments.data), key=lambda text: text.digest)
    room = engine.model.config.max_seq_len - arguments.tokens
    most = min(arguments.prompt_tokens, room)
    found = []
    for text in texts:
        lines = text.text.splitlines(keepends=True)
        begun: list[str] = []
        for line in lines[: len(lines) // 2]:
            if len(engine.tokenizer.encode("".join([*begun, line]))) > most:
                break
            begun.append(line)
        if begun:
            found.append("".join(begun))
        if len(found) == arguments.prompts:
            return found
    if not found:
        raise UserError(f"{arguments.data} has no document with a line of less than {most} tokens")
    return found


def contender(text: str) -> DraftSettings:
    """Of "lookup:4".

    Raises:
        UserError: it is no such thing.
    """
    kind, _, tokens = text.partition(":")
    if kind not in ("lookup", "heads") or not tokens.isdigit():
        raise UserError(f"--drafts {text}", fix="Use for example lookup:4 or heads:1.")
    return DraftSettings(kind, tokens=int(tokens))  # type: ignore[arg-type]


def measure(
    engine: Engine, requests: Sequence[GenerationRequest], drafts: dict[str, DraftSettings], turns: int
) -> dict[str, list[Tally]]:
    """Every contender behind every prompt, again and again."""
    for draft in drafts.values():
        write(engine, requests[0], draft, Tally())  # warm
    tallies: dict[str, list[Tally]] = {name: [] for name in drafts}
    for turn in range(turns):
        for of in tallies.values():
            of.append(Tally())
        for request in requests:
            for name, draft in drafts.items():
                write(engine, request, draft, tallies[name][-1])
        for name, of in tallies.items():
            last = of[-1]
            progress(
                f"{turn + 1}/{turns} {name}: {last.tokens / last.seconds:.1f} tokens/s, "
                f"{last.tokens / last.steps:.2f} per step"
            )
    return tallies


def figures(tallies: dict[str, list[Tally]]) -> dict[str, Any]:
    """Rates, and ratios to no drafts."""
    found = {}
    for name, of in tallies.items():
        last, plain = of[-1], tallies[PLAIN]
        found[name] = {
            "tokens_per_second": Spread.of((t.tokens / t.seconds for t in of), 1),
            "times_as_fast": ratios(
                [t.tokens / t.seconds for t in of], [t.tokens / t.seconds for t in plain]
            ),
            "times_as_fast_by_processor_time": ratios(
                [t.tokens / t.processor_seconds for t in of],
                [t.tokens / t.processor_seconds for t in plain],
            ),
            "tokens_per_step": round(last.tokens / last.steps, 3),
            "kept": round(last.accepted / last.drafted, 3) if last.drafted else None,
            "same_texts": sum(map(str.__eq__, last.texts, plain[-1].texts)) / len(last.texts),
        }
        progress(
            f"{name:9} {found[name]['tokens_per_second']} tokens/s, "
            f"{found[name]['times_as_fast']} times as fast, "
            f"{found[name]['tokens_per_step']} per step, kept {found[name]['kept']}"
        )
    return found


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--drafts", nargs="+", default=["lookup:4"])
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--prompt_tokens", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--turns", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Take turns, print."""
    arguments = parsed()
    prepare_environment(threads=arguments.threads)
    try:
        drafts = {PLAIN: DraftSettings(), **{text: contender(text) for text in arguments.drafts}}
        engine, checkpoint = load_engine(ModelSource(arguments.run, device_type="cpu"))
        settings = SamplingSettings(arguments.tokens, arguments.temperature)
        requests = [engine.request(text, settings=settings) for text in prompts(engine, arguments)]
        tallies = measure(engine, requests, drafts, arguments.turns)
    except UserError as error:
        progress(f"benchmarks/speculation.py: {error}")
        sys.exit(2)
    publish(
        {
            "benchmark": "speculation",
            "machine": describe_machine(),
            "settings": vars(arguments),
            "step": checkpoint.step,
            "model": dataclasses.asdict(engine.model.config),
            "dtype": str(engine.model.compute_dtype),
            "prompts": len(requests),
            "drafts": figures(tallies),
        }
    )


if __name__ == "__main__":
    main()
