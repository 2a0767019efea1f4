"""What parts of the default preset are worth as compute grows: bits per byte over operations, by power laws.

    python benchmarks/scaling.py CORPUS TOKENIZER WORK [--levels 2x64:1 2x128:4 3x192:12] [--seeds 3]

A level is DEPTHxWIDTH:MILLIONS of tokens. Every variant of `ablations.py` that is named trains at each level,
with the demo's rates, and is measured on the corpus's validation documents, which are of projects of their
own. For each a law L = a C^-b is fitted to bits per byte L and operations of training C
(`cpplm.model.flops`), by least squares of the logarithms.

`gain` is the compute-equivalent gain of the default over a variant: by which factor C may be smaller for the
loss that the variant has at C (Davidson et al. 2023, arXiv 2312.07413). Its interval (90 %) is of 2,000 fits
to seeds drawn anew at each level. At C beyond the last level, as at `--extrapolate_to`, it is an
extrapolation of laws that know no floor.

`llama, AdamW` is the plain Llama with AdamW for its matrices, too, at `--adamw_lr`; all others learn them by
Muon. Flags that the benchmark does not know, such as `--engram off`, go to `cpplm train` before the variant's
own. Results are kept in WORK: run the command again, and it goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ablations import RECIPE, VARIANTS
from measuring import command_line, prepare_environment, progress, publish, train_queue

from cpplm.core.settings import from_command_line
from cpplm.model.flops import count_flops
from cpplm.optim import groups
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings, model_config

BASE = "cpplm"
ADAMW = "llama, AdamW"
CONTENDERS = (BASE, "cpplm without induction", "cpplm without engram", "nanochat", "llama", ADAMW)
DRAWS, INTERVAL = 2000, (5, 95)
Points = Mapping[str, Sequence[tuple[float, float]]]
"""By level: operations and bits per byte, a pair for each seed."""


def settings_of(arguments: argparse.Namespace, variant: str, level: str, seed: int) -> TrainSettings:
    """Of one model."""
    shape, millions = level.split(":")
    depth, width = map(int, shape.split("x"))
    out = Path(arguments.work) / f"{variant}-{level}-{seed}".replace(" ", "_").replace(",", "")
    flags = ["--data_dir", arguments.corpus, "--tokenizer", arguments.tokenizer, "--out", str(out),
             *arguments.flags, *VARIANTS[variant.removesuffix(", AdamW")], "--depth", str(depth),
             "--seed", str(seed), "--aspect_ratio", str(width // depth), "--head_dim", "32",
             "--tokenizer_threads", "1",
             "--num_iterations", str(round(float(millions) * 1e6 / arguments.batch)), "--fim_rate", "0",
             "--total_batch_size", str(arguments.batch), "--eval_every", "1000000", "--keep_last", "1",
             "--save_minutes", "-1", "--eval_tokens", str(arguments.eval_tokens)]  # fmt: skip
    return from_command_line(TrainSettings, flags, program="cpplm train", description="", recipe=RECIPE)


def train_one(arguments: argparse.Namespace, variant: str, level: str, seed: str) -> dict[str, Any]:
    """Train one model in this process."""
    torch.set_num_threads(1)
    settings = settings_of(arguments, variant, level, int(seed))
    if variant == ADAMW:
        use_adamw(arguments.adamw_lr)
    summary = pretrain(settings)
    assert summary.validation is not None
    config = model_config(settings, Tokenizer.load(settings.tokenizer).vocab_size)
    return {
        "task": [variant, level, seed],
        "bits_per_byte": summary.validation["bits_per_byte"],
        "flops": count_flops(config)["total"] * summary.tokens,
        "seconds": round(summary.seconds, 1),
        "parameters": summary.parameters,
    }


def use_adamw(learning_rate: float) -> None:
    """Matrices learn by AdamW in this process, at this rate, with the usual betas and decay."""
    with_muon = groups.param_groups

    def param_groups(*args: Any, **more: Any) -> list[groups.ParamGroup]:
        usual = {"learning_rate": learning_rate, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1}
        return [
            replace(group, muon=False, **usual) if group.muon else group for group in with_muon(*args, **more)
        ]

    groups.param_groups = param_groups


def fit(points: Points) -> tuple[float, float]:
    """Intercept and slope of log bits per byte over log operations."""
    pairs = np.log([pair for level in points.values() for pair in level])
    slope, intercept = np.polyfit(pairs[:, 0], pairs[:, 1], 1)
    return float(intercept), float(slope)


def gain(base: tuple[float, float], other: tuple[float, float], flops: float) -> float:
    """Operations of `other` over those that the base needs for the same loss."""
    loss = other[0] + other[1] * math.log(flops)
    return flops / math.exp((loss - base[0]) / base[1])


def gains(base: Points, other: Points, flops: Sequence[float]) -> dict[str, list[float]]:
    """Compute-equivalent gain at some numbers of operations: the fit's, and the ends of the interval."""
    generator = np.random.default_rng(0)

    def drawn(points: Points) -> Points:
        return {
            level: [pairs[number] for number in generator.integers(len(pairs), size=len(pairs))]
            for level, pairs in points.items()
        }

    draws = [(fit(drawn(base)), fit(drawn(other))) for _ in range(DRAWS)]
    found = {}
    for each in flops:
        several = [gain(ours, theirs, each) for ours, theirs in draws]
        ends = np.percentile(several, INTERVAL)
        found[f"{each:.2g}"] = [
            round(float(value), 3) for value in (gain(fit(base), fit(other), each), *ends)
        ]
    return found


def table(arguments: argparse.Namespace, done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bits per byte of each variant, its law, and the default's gain over it."""
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for result in sorted(done, key=lambda each: each["task"]):
        variant, level, _ = result["task"]
        if variant in arguments.only and level in arguments.levels:
            point = (result["flops"], result["bits_per_byte"])
            points.setdefault(variant, {}).setdefault(level, []).append(point)
    complete = {name: found for name, found in points.items() if len(found) == len(arguments.levels)}
    figures: dict[str, Any] = {}
    for name, found in complete.items():
        losses = {level: [round(loss, 4) for _, loss in found[level]] for level in arguments.levels}
        flops = [found[level][0][0] for level in arguments.levels] + [arguments.extrapolate_to]
        figures[name] = {
            "bits_per_byte": losses,
            "flops": {level: found[level][0][0] for level in arguments.levels},
            "law": [round(value, 4) for value in fit(found)],
        }
        if BASE in complete and name != BASE:
            figures[name]["gain"] = gains(complete[BASE], found, flops)
        progress(f"{name}: {figures[name]}")
    return figures


def main() -> None:
    """Parse, train, fit, print."""
    parser = command_line(__doc__, seeds=3, jobs=2, batch=4096, eval_tokens=262_144, adamw_lr=2e-3,
                          levels=["2x64:1", "2x128:4", "3x192:12"], extrapolate_to=1e19)  # fmt: skip
    for name in ("corpus", "tokenizer", "work"):
        parser.add_argument(name)
    parser.add_argument("--only", nargs="+", choices=(*VARIANTS, ADAMW), default=list(CONTENDERS))
    parser.add_argument("--one", nargs=3, metavar=("VARIANT", "LEVEL", "SEED"), help=argparse.SUPPRESS)
    arguments, arguments.flags = parser.parse_known_args()
    if arguments.one:
        sys.stdout.write(json.dumps(train_one(arguments, *arguments.one)) + "\n")
        return
    prepare_environment(threads=1)
    tasks = [
        (variant, level, str(seed))
        for seed in range(arguments.seeds)
        for level in arguments.levels
        for variant in arguments.only
    ]
    done = train_queue(__file__, tasks, Path(arguments.work) / "results.jsonl", arguments.jobs)
    publish("scaling", {"levels": arguments.levels, "variants": table(arguments, done)})


if __name__ == "__main__":
    main()
