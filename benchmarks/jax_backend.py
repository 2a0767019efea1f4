"""The JAX backend on this CPU: seconds to the first step, step time against PyTorch, recompilations.

    python benchmarks/jax_backend.py [--layers 16 32] [--dim 256] [--seq_len 512] [--threads 1] [--turns 5]

The backend is for TPUs, and none was used: these figures say how long XLA takes over our program, and that
the program is compiled once. Compiling: each model in a process of its own, with the layers that repeat in a
loop, and each on its own. Step time: PyTorch's trainer (compiled, and not) and ours take turns, each in a
process that stays; a step is a whole optimizer step through the trainer's own interface. Recompilations:
XLA's own count over 200 steps of which each has another learning rate, momentum and weight decay. All
processes are kept on `--threads` cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import jax
import torch
from measuring import (
    Spread,
    describe_machine,
    prepare_environment,
    progress,
    publish,
    ratios,
    run_alone,
    take_turns,
)

from cpplm.core.workers import worker_pool
from cpplm.dataloader.loader import Batch
from cpplm.dataloader.loader_state import LoaderState
from cpplm.jax.mesh import HostBatchSharder, make_mesh, mesh_sizes
from cpplm.jax.optimizer import Optimizer
from cpplm.jax.param_stacking import init_params
from cpplm.jax.settings import RunSettings
from cpplm.jax.step import NEUTRAL_PLAN, TrainStep
from cpplm.jax.train_module import JaxTrainModule
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_optimizer
from cpplm.optim.schedules import LearningRates
from cpplm.train.backend import TrainModule
from cpplm.train.compile import compiled_losses
from cpplm.train.distributed import SINGLE_PROCESS
from cpplm.train.torch_backend import TorchTrainModule

STEPS_WITHOUT_COMPILING = 200
COMPILED = "/jax/core/compile/backend_compile_duration"  # XLA's own event

Shape = tuple[int, int]


def jax_module(
    config: ModelConfig, shape: Shape, dtype: str, *, scan: bool = True
) -> tuple[JaxTrainModule, TrainStep]:
    """A train_module on one CPU device, not yet compiled."""
    mesh = make_mesh(mesh_sizes({}, 1), jax.devices("cpu"))
    run = RunSettings(compute_dtype="bfloat16" if dtype == "bf16" else "float32", scan=scan)
    optimizer = Optimizer.of(
        config,
        LearningRates(),
        batch_tokens=shape[0] * shape[1],
        budget=None,
        product_dtype=run.dtype,
        mesh=mesh,
    )
    step = TrainStep(config, run, optimizer, mesh)
    return JaxTrainModule(
        step, HostBatchSharder.of(mesh), init_params(config), optimizer.stack_state({})
    ), step


def torch_module(config: ModelConfig, shape: Shape, dtype: str, *, compiled: bool) -> TorchTrainModule:
    """The same model with PyTorch."""
    model = Transformer(config, compute_dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    model.init_weights()
    optimizer = build_optimizer(model, LearningRates(), batch_tokens=shape[0] * shape[1])
    losses = compiled_losses(model, [shape]) if compiled else model.training_losses
    return TorchTrainModule(model, optimizer, losses, SINGLE_PROCESS)


def make_batch(config: ModelConfig, shape: Shape) -> Batch:
    """Random tokens."""
    inputs, targets = torch.randint(config.vocab_size, (2, *shape)).unbind()
    return Batch(inputs, targets, LoaderState())


def first_step(config: ModelConfig, shape: Shape, scan: bool, threads: int) -> dict[str, float]:
    """Seconds of tracing, compiling and the first step; lines of the program; XLA's temporary memory."""
    _keep_to(threads)
    train_module, step = jax_module(config, shape, "fp32", scan=scan)
    begin = time.perf_counter()
    lowered = step.lower(*shape)
    traced = time.perf_counter()
    lines = lowered.as_text().count("\n")
    compiling = time.perf_counter()
    train_module.compiled[shape] = program = lowered.compile()
    compiled = time.perf_counter()
    train_module.step(iter([make_batch(config, shape)]), 1, NEUTRAL_PLAN)
    done = time.perf_counter()
    return {
        "trace": traced - begin,
        "compile": compiled - compiling,
        "first_step": done - compiled,
        "to_first_step": traced - begin + done - compiling,
        "lines": lines,
        "temporary_mib": program.memory_analysis().temp_size_in_bytes / 2**20,
    }


def recompilations(config: ModelConfig, shape: Shape, threads: int) -> dict[str, int]:
    """Programs that XLA compiled for the step, and during the steps after it was compiled."""
    _keep_to(threads)
    train_module, _ = jax_module(config, shape, "fp32")
    batch = make_batch(config, shape)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: compiled.append(event) if event == COMPILED else None
    )
    train_module.compile(*shape, count=1, documents=False)
    for_step = len(compiled)
    for number in range(STEPS_WITHOUT_COMPILING):
        done = number / STEPS_WITHOUT_COMPILING
        plan = replace(
            NEUTRAL_PLAN, learning_rate=1 - done, momentum=0.85 + 0.1 * done, weight_decay=1 - done
        )
        train_module.step(iter([batch]), 1, plan)
    return {"for_the_step": for_step, "during_200_steps": len(compiled) - for_step}


_ready: dict[str, TrainModule] = {}


def _prepare(name: str, config: ModelConfig, shape: Shape, dtype: str, threads: int) -> float:
    """In the contender's process: build, compile and warm up; seconds of that."""
    _keep_to(threads)
    begin = time.perf_counter()
    if name == "JAX":
        train_module, _ = jax_module(config, shape, dtype)
        train_module.compile(*shape, count=1, documents=False)
        _ready["train_module"] = train_module
    else:
        _ready["train_module"] = torch_module(config, shape, dtype, compiled=name == "PyTorch, compiled")
    _measure(config, shape, 2)
    return time.perf_counter() - begin


def _measure(config: ModelConfig, shape: Shape, steps: int) -> float:
    """Seconds per step: the median."""
    seconds = []
    for _ in range(steps):
        batch = make_batch(config, shape)
        begin = time.perf_counter()
        _ready["train_module"].step(iter([batch]), 1, NEUTRAL_PLAN)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def _keep_to(threads: int) -> None:
    """XLA's threads heed no variable: this process and what it starts run on so many cores."""
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def compare_steps(arguments: argparse.Namespace, config: ModelConfig, shape: Shape) -> dict[str, Any]:
    """Seconds per step of each contender, in turn."""
    names = ("JAX", "PyTorch, compiled", "PyTorch")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        pools = {name: stack.enter_context(worker_pool(1)) for name in names}
        for name, pool in pools.items():
            ready = pool.submit(
                _prepare, name, config, shape, arguments.precision, arguments.threads
            ).result()
            progress(f"{name}: ready after {ready:.0f} s")
        for turn in range(arguments.turns):
            for name, pool in pools.items():
                seconds[name].append(pool.submit(_measure, config, shape, arguments.steps).result())
                progress(f"{turn + 1}/{arguments.turns} {name}: {seconds[name][-1]:.3f} s a step")
    return {
        "seconds": {name: Spread.of(found) for name, found in seconds.items()},
        "times_as_fast_as": {name: ratios(seconds[name], seconds["JAX"]) for name in names[1:]},
    }


def main() -> None:
    """Take turns, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="*", default=[16, 32])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--seq_len", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--vocab_size", type=int, default=8192)
    parser.add_argument("--step_layers", type=int, default=4, help="of the models whose steps are compared")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--compilations", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    prepare_environment(threads=arguments.threads)
    os.environ["JAX_PLATFORMS"] = "cpu"

    def config(layers: int) -> ModelConfig:
        made = ModelConfig.seed(
            layers, vocab_size=arguments.vocab_size, head_dim=64, max_seq_len=arguments.seq_len
        )
        heads = arguments.dim // 64
        return replace(made, model_dim=arguments.dim, num_heads=heads, num_kv_heads=heads)

    shape = (arguments.batch_size, arguments.seq_len)
    small = (1, min(64, arguments.seq_len))
    counted = run_alone(recompilations, config(arguments.step_layers), small, arguments.threads).result
    progress(f"programs compiled: {counted}")
    compilations = take_turns(
        {
            f"{layers} layers, {'loop' if scan else 'unrolled'}": (
                lambda layers=layers, scan=scan: run_alone(
                    first_step, config(layers), shape, scan, arguments.threads
                )
            )
            for layers in arguments.layers
            for scan in (True, False)
        },
        arguments.compilations,
    )
    first = {
        name: {key: Spread.of([cost.result[key] for cost in costs], 2) for key in costs[0].result}
        for name, costs in compilations.items()
    }
    steps = compare_steps(arguments, config(arguments.step_layers), shape)
    publish({"benchmark": "jax_backend", "machine": {**describe_machine(), "jax": version("jax")},
             "settings": vars(arguments), "seconds_to_first_step": first, "step": steps,
             "compiled_programs": counted})  # fmt: skip


if __name__ == "__main__":
    main()
