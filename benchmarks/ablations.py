"""What each feature of the model brings in the same time: bits per byte of small models, several seeds.

    make demo                                     # or any corpus and tokenizer of your own
    python benchmarks/ablations.py runs/demo/corpus runs/demo/tokenizer.json WORK_FOLDER [--only smear mtp]

All models train on the demo's settings, each on one thread. First the time of a step is measured for all
variants, which take turns; then each trains for as many steps as fit into the same time by that measure, so
that other work on the machine changes no result. A variant differs from the base in the flags below and in
nothing else. Times and results are kept in WORK_FOLDER: run the command again, and it goes on. With 16
variants and three seeds it takes hours; figures that it gave are in LOG.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from measuring import Spread, command_line, prepare_environment, progress, publish, train_queue

from cpplm.core.hardware import choose_dtype
from cpplm.core.settings import from_command_line
from cpplm.core.workers import worker_pool
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_optimizer
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.compile import compiled_losses
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings, model_config

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"
PLAIN = ("--preset", "seed", "--muon_beta2", "0")
NANOCHAT = ("--preset", "nanochat", "--muon_beta2", "0")
VARIANTS: dict[str, tuple[str, ...]] = {
    "seed": PLAIN,
    "nanochat": NANOCHAT,
    "value embeddings": (*PLAIN, "--value_embeddings", "on"),
    "smear": (*PLAIN, "--smear", "on"),
    "backout": (*PLAIN, "--backout", "on"),
    "scale of queries and keys 1.2": (*PLAIN, "--qk_scale", "1.2"),
    "rotary base 100,000": (*PLAIN, "--rope_base", "100000"),
    "quarter windows": (*PLAIN, "--short_window", "quarter"),
    "full attention": (*PLAIN, "--window_pattern", "L"),
    "engram memory": (*PLAIN, "--engram", "memory"),
    "engram local": (*PLAIN, "--engram", "local"),
    "mhc": (*PLAIN, "--mhc"),
    "mtp": (*PLAIN, "--mtp"),
    "dsa": (*PLAIN, "--dsa", "--dsa_start_layer", "2", "--dsa_local_window", "64"),
    "normuon": ("--preset", "seed", "--muon_beta2", "0.9"),
    "nanochat and engram memory": (*NANOCHAT, "--engram", "memory"),
    "nanochat and normuon": ("--preset", "nanochat", "--muon_beta2", "0.9"),
    "induction": (*PLAIN, "--induction", "on"),
    "cpplm": ("--preset", "cpplm"),
    "cpplm without induction": ("--preset", "cpplm", "--induction", "off"),
    "cpplm without engram": ("--preset", "cpplm", "--engram", "off"),
    "cpplm without value embeddings": ("--preset", "cpplm", "--value_embeddings", "off"),
    "cpplm without smear": ("--preset", "cpplm", "--smear", "off"),
    "cpplm without backout": ("--preset", "cpplm", "--backout", "off"),
    "cpplm without quarter windows": ("--preset", "cpplm", "--short_window", "half"),
    "cpplm without normuon": ("--preset", "cpplm", "--muon_beta2", "0"),
    "cpplm and engram local": ("--preset", "cpplm", "--engram", "local"),
    "cpplm and mhc": ("--preset", "cpplm", "--mhc"),
    "cpplm and mtp": ("--preset", "cpplm", "--mtp"),
    "cpplm and dsa": ("--preset", "cpplm", "--dsa", "--dsa_start_layer", "1", "--dsa_local_window", "64"),
    "llama": ("--preset", "llama"),
}


def settings_of(arguments: argparse.Namespace, variant: str, seed: int, steps: int) -> TrainSettings:
    """Of one model."""
    out = Path(arguments.work) / f"{variant.replace(' ', '_')}-{seed}"
    flags = ["--data_dir", arguments.corpus, "--tokenizer", arguments.tokenizer, "--out", str(out),
             *VARIANTS[variant], "--seed", str(seed), "--num_iterations", str(steps),
             "--tokenizer_threads", "1", "--eval_every", "1000000", "--keep_last", "1", "--fim_rate", "0",
             "--eval_tokens", str(arguments.eval_tokens)]  # fmt: skip
    return from_command_line(TrainSettings, flags, program="cpplm train", description="", recipe=RECIPE)


_step: Callable[[], None]


def _prepare(arguments: argparse.Namespace, variant: str) -> None:
    """In a process of the variant's own: build, compile, warm up."""
    global _step  # noqa: PLW0603  (a worker's state)
    torch.set_num_threads(1)
    settings = settings_of(arguments, variant, 0, 1)
    device = torch.device("cpu")
    config = model_config(settings, Tokenizer.load(settings.tokenizer).vocab_size)
    model = Transformer(config, compute_dtype=choose_dtype("auto", device))
    model.init_weights()
    optimizer = build_optimizer(model, settings.rates, batch_tokens=settings.total_batch_size)
    shape = (settings.device_batch_size, settings.max_seq_len)
    losses = compiled_losses(model, [shape])

    def step() -> None:
        # Some tokens are far more frequent than others, as in text: sparse gradients depend on it.
        ids_BT, targets_BT = (config.vocab_size * torch.rand(2, *shape) ** 4).long().unbind()
        losses(ids_BT, targets_BT, torch.tensor(0.3), None, None).total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    _step = step
    _step()


def _measure() -> float:
    """Seconds of the processor for one step."""
    begin = time.process_time()
    _step()
    return time.process_time() - begin


def step_times(arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step of each variant, measured in turns; those that were measured before stay."""
    path = Path(arguments.work) / "step_seconds.json"
    if path.exists():
        times: dict[str, float] = json.loads(path.read_text())
        if set(arguments.only) <= set(times):
            return times
    measured: dict[str, list[float]] = {name: [] for name in arguments.only}
    with ExitStack() as stack:
        pools = {name: stack.enter_context(worker_pool(1)) for name in arguments.only}
        for name, pool in pools.items():
            pool.submit(_prepare, arguments, name).result()
        for _ in range(arguments.turns):
            for name, pool in pools.items():
                measured[name].append(pool.submit(_measure).result())
    times = {name: round(statistics.median(seconds), 4) for name, seconds in measured.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(times, indent=1))
    progress(f"seconds of a step: {times}")
    return times


def train_one(arguments: argparse.Namespace, variant: str, seed: int) -> dict[str, Any]:
    """Train one model in this process."""
    steps = round(60 * arguments.minutes / step_times(arguments)[variant])
    summary = pretrain(settings_of(arguments, variant, seed, steps))
    assert summary.validation is not None
    return {
        "task": [variant, str(seed)],
        "variant": variant,
        "seed": seed,
        "bits_per_byte": summary.validation["bits_per_byte"],
        "steps": summary.step,
        "parameters": summary.parameters,
    }


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train what is not there yet, one seed of all variants after the other."""
    step_times(arguments)
    tasks = [(variant, str(seed)) for seed in range(arguments.seeds) for variant in arguments.only]
    return train_queue(__file__, tasks, Path(arguments.work) / "results.jsonl", arguments.jobs)


def table(done: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Bits per byte and their difference from the base, seed by seed."""
    by_variant = {
        name: {result["seed"]: result for result in done if result["variant"] == name} for name in names
    }
    base = by_variant.get("seed", {})
    figures: dict[str, Any] = {}
    for name, results in by_variant.items():
        if not results:
            continue
        change = [
            results[seed]["bits_per_byte"] - base[seed]["bits_per_byte"]
            for seed in sorted(results)
            if seed in base
        ]
        figures[name] = {
            "bits_per_byte": Spread.of([result["bits_per_byte"] for result in results.values()], 4),
            "change": Spread.of(change, 4) if change else None,
            "steps": Spread.of([result["steps"] for result in results.values()], 0),
            "parameters": next(iter(results.values()))["parameters"],
        }
        progress(f"{name:32} {figures[name]['bits_per_byte']!s:28} {figures[name]['change']!s:30} "
                 f"{figures[name]['steps']} steps")  # fmt: skip
    return figures


def main() -> None:
    """Parse, train, print."""
    parser = command_line(__doc__, seeds=3, eval_tokens=131_072)
    for name in ("corpus", "tokenizer", "work"):
        parser.add_argument(name)
    parser.add_argument("--minutes", type=float, default=3.0, help="of training, each")
    parser.add_argument("--turns", type=int, default=15, help="steps measured of each variant")
    parser.add_argument("--jobs", type=int, default=2, help="models trained at once, one thread each")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(train_one(arguments, arguments.one[0], int(arguments.one[1]))) + "\n")
        return
    prepare_environment(threads=1)
    done = run(arguments)
    publish("ablations", {"minutes": arguments.minutes, "variants": table(done, arguments.only)})


if __name__ == "__main__":
    main()
