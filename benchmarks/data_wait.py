"""How long a training step waits for its batch, and how many rows per second the loader makes alone.

    python benchmarks/data_wait.py --data_dir runs/demo/corpus --tokenizer runs/demo/tokenizer.json \
        [--depth 4] [--seq_len 512] [--batch_size 8] [--steps 40] [--workers 0 1 2] [--threads 2]

Each number of workers has a fresh process. First the loader alone, as fast as it can; then real training
steps (the default recipe, compiled as `cpplm train` compiles it, with its optimizer) that take their batches
from the loader through a prefetcher. Loading competes with the step for the same cores, as it does in a run.
Compiling and the first steps are over before the clock starts. The share is waiting over waiting and step.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import closing
from typing import Any

import torch
from measuring import Spread, describe_machine, prepare_environment, progress, publish, run_alone

from cpplm.core.hardware import choose_device, choose_dtype
from cpplm.core.shards import ShardReader
from cpplm.dataloader.encoding import PlainEncoder
from cpplm.dataloader.loader import DataSource, TrainLoader
from cpplm.dataloader.prefetch import Prefetcher
from cpplm.model.config import ModelConfig
from cpplm.model.settings import KernelSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_optimizer
from cpplm.optim.schedules import LearningRates
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.compile import compiled_losses

_WARM_STEPS = 3


def make_loader(settings: dict[str, Any], workers: int) -> tuple[TrainLoader, Tokenizer]:
    """As `cpplm train` has it: without workers the encoder has threads of its own."""
    tokenizer = Tokenizer.load(settings["tokenizer"])
    encoder = PlainEncoder(settings["tokenizer"], tokenizer.hash, threads=1 if workers else 2)
    loader = TrainLoader(
        [DataSource(ShardReader(settings["data_dir"]))],
        encoder,
        batch_size=settings["batch_size"],
        seq_len=settings["seq_len"],
        workers=workers,
    )
    return loader, tokenizer


def measure_loader(settings: dict[str, Any], workers: int) -> dict[str, float]:
    """Seconds until the first batch, and rows per second after it."""
    begin = time.perf_counter()
    loader, _ = make_loader(settings, workers)
    with closing(loader):
        next(loader)
        first = time.perf_counter() - begin
        rows, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < settings["seconds"]:
            next(loader)
            rows += settings["batch_size"]
        return {"first_batch": first, "rows_per_second": rows / (time.perf_counter() - begin)}


def measure_steps(settings: dict[str, Any], workers: int) -> dict[str, list[float]]:
    """Seconds that each step waited and took."""
    torch.set_num_threads(settings["threads"])
    loader, tokenizer = make_loader(settings, workers)
    config = ModelConfig.from_depth(
        settings["depth"],
        vocab_size=tokenizer.vocab_size,
        max_seq_len=settings["seq_len"],
        head_dim=settings["head_dim"],
    )
    shape = (settings["batch_size"], settings["seq_len"])
    dtype = choose_dtype("auto", choose_device("cpu"))
    model = Transformer(config, compute_dtype=dtype, kernels=KernelSettings())
    model.init_weights()
    optimizer = build_optimizer(model, LearningRates(), batch_tokens=shape[0] * shape[1])
    losses = compiled_losses(model, [shape])
    waits, steps = [], []
    with closing(Prefetcher(loader)) as batches, closing(loader):
        for _ in range(_WARM_STEPS + settings["steps"]):
            begin = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter()
            losses(batch.inputs, batch.targets, torch.zeros(())).total.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            waits.append(waited - begin)
            steps.append(time.perf_counter() - waited)
    return {"waits": waits[_WARM_STEPS:], "steps": steps[_WARM_STEPS:]}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--head_dim", type=int, default=64)
    parser.add_argument("--seq_len", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the loader alone")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    prepare_environment(threads=arguments.threads)
    settings, figures = vars(arguments), {}
    for workers in arguments.workers:
        alone = run_alone(measure_loader, settings, workers).result
        found = run_alone(measure_steps, settings, workers).result
        share = sum(found["waits"]) / (sum(found["waits"]) + sum(found["steps"]))
        figures[workers] = {
            **{name: round(value, 2) for name, value in alone.items()},
            "share_of_step_waiting": round(share, 5),
            "longest_wait": round(max(found["waits"]), 5),
            "step": Spread.of(found["steps"]),
        }
        progress(
            f"{workers} workers: {alone['rows_per_second']:,.0f} rows/s, waiting {share:.2%} of the step"
        )
    publish({"benchmark": "data_wait", "machine": describe_machine(), "settings": settings,
             "seconds_by_workers": figures})  # fmt: skip


if __name__ == "__main__":
    main()
