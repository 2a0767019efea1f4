"""Tokens per second of a training step, and seconds until the first one.

    python benchmarks/train_step.py [--depth 4] [--seq_len 512] [--vocab_size 8192] [--threads 2] [--turns 5]
    python benchmarks/train_step.py --backend jax --precision fp32 --threads 1
    python benchmarks/train_step.py --kernel "attention flash3" --depth 12 --head_dim 128 --seq_len 2048

On a CPU each contender has a process of its own and they take turns, a few steps on random tokens each;
compiling is over before the clock of the steps starts. Ours is as `cpplm train` runs it (compiled, bfloat16
where the processor has it), with the preset "seed", which has no tables, so that parameters are equal. It is
compared with ours without torch.compile and with all logits at once; ours with the default preset; and
`LlamaForCausalLM` with as many layers, heads and parameters, untied, the same dtype, torch's fused AdamW, as
it is and compiled. With `--backend jax`, the step in JAX is compared with PyTorch's, compiled and not: the
backend is for TPUs (`cpplm tpu bench` measures those), so this says how long XLA takes over our program.

With `--kernel` there are no contenders: ours with one kernel, or with products of 8 bits, on the device that
is here, a GPU if there is one (benchmarks/gpu.py measures all of them). MFU is the model's operations
(cpplm.model.flops) over the peak of dense bfloat16 products, also for 8 bits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import jax
import torch
from measuring import (
    THREADS,
    Spread,
    command_line,
    make_llama,
    prepare_environment,
    progress,
    publish,
    ratios,
    refusals,
)

from cpplm.core.hardware import (
    choose_device,
    choose_dtype,
    enable_huge_pages,
    peak_memory_bytes,
)
from cpplm.core.mfu import peak_flops_for_mfu
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
from cpplm.model.flops import count_flops, count_parameters
from cpplm.model.quantization import convert_to_fp8
from cpplm.model.settings import KernelSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_optimizer
from cpplm.optim.schedules import LearningRates
from cpplm.train.compile import compiled_losses

Shape = tuple[int, int]
Step = Callable[[torch.Tensor, torch.Tensor], float]
"""One optimizer step on ids and targets, BT; gives the loss."""

KERNELS: dict[str, dict[str, Any]] = {
    "auto": {},
    "fp8 tensorwise": {"fp8": True},
    "attention sdpa": {"attention": "sdpa"},
    "attention flex": {"attention": "flex"},
    "attention flash2": {"attention": "flash2"},
    "attention flash3": {"attention": "flash3"},
    "loss native": {"kernel": "native"},
    "loss chunked, not compiled": {"kernel": "chunked", "compiled": False},
    "loss native, not compiled": {"kernel": "native", "compiled": False},
    "loss cce, not compiled": {"kernel": "cce", "compiled": False},
    "loss liger, not compiled": {"kernel": "liger", "compiled": False},
    "fp8 rowwise": {"fp8": True, "fp8_recipe": "rowwise"},
    "gradient checkpointing": {"gradient_checkpointing": True},
}


# Contenders


def torch_step(
    config: ModelConfig,
    shape: Shape,
    dtype: torch.dtype,
    *,
    compiled: bool,
    kernels: KernelSettings | None = None,
) -> tuple[Step, int]:
    """Ours with PyTorch, on the device that is here, and the number of its parameters."""
    enable_huge_pages()  # as training does
    device = choose_device("" if kernels else "cpu")
    kernels = kernels or (KernelSettings() if compiled else KernelSettings(kernel="native", attention="sdpa"))
    with torch.device("meta"):
        model = Transformer(config, compute_dtype=dtype, kernels=kernels)
    model.to_empty(device=device)
    model.init_weights()
    if kernels.fp8:
        convert_to_fp8(model, kernels.fp8_recipe)
    optimizer = build_optimizer(model, LearningRates(), batch_tokens=shape[0] * shape[1])
    losses = compiled_losses(model, [shape]) if compiled else model.training_losses
    weight = torch.zeros((), device=device)

    def step(ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> float:
        found = losses(ids_BT.to(device), targets_BT.to(device), weight, None, None)
        found.total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return found.next_token.item()

    return step, count_parameters(config)["total"]


def preset_step(config: ModelConfig, shape: Shape, dtype: torch.dtype, *, compiled: bool) -> tuple[Step, int]:
    """Of our default recipe at the same depth: more parameters, in tables that are only looked up."""
    preset = ModelConfig.from_depth(
        config.num_layers,
        vocab_size=config.vocab_size,
        max_seq_len=config.max_seq_len,
        head_dim=config.head_dim,
    )
    return torch_step(preset, shape, dtype, compiled=compiled)


def jax_step(config: ModelConfig, shape: Shape, dtype: torch.dtype, *, compiled: bool) -> tuple[Step, int]:
    """Ours with JAX, on one device of the CPU; it is always compiled."""
    assert compiled
    mesh = make_mesh(mesh_sizes({}, 1), jax.devices("cpu"))
    run = RunSettings(compute_dtype="bfloat16" if dtype == torch.bfloat16 else "float32")
    optimizer = Optimizer.of(
        config,
        LearningRates(),
        batch_tokens=shape[0] * shape[1],
        budget=None,
        product_dtype=run.dtype,
        mesh=mesh,
    )
    module = JaxTrainModule(
        TrainStep(config, run, optimizer, mesh),
        HostBatchSharder.of(mesh),
        init_params(config),
        optimizer.stack_state({}),
    )
    module.compile(*shape, count=1, documents=False)

    def step(ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> float:
        return module.step(iter([Batch(ids_BT, targets_BT, LoaderState())]), 1, NEUTRAL_PLAN).next_token

    return step, count_parameters(config)["total"]


def llama_step(config: ModelConfig, shape: Shape, dtype: torch.dtype, *, compiled: bool) -> tuple[Step, int]:
    """The same of transformers."""
    peer = make_llama(
        config.padded_vocab_size, config.num_layers, config.model_dim, config.num_heads,
        kv_heads=config.num_kv_heads, max_position_embeddings=shape[1], use_cache=False,
    ).train()  # fmt: skip
    optimizer = torch.optim.AdamW(peer.parameters(), lr=3e-4, fused=True)

    def loss(ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = peer(input_ids=ids_BT).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets_BT.flatten())

    run = torch.compile(loss, dynamic=False) if compiled else loss

    def step(ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> float:
        found = run(ids_BT, targets_BT)
        found.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return found.item()

    return step, sum(p.numel() for p in peer.parameters())


CONTENDERS: dict[str, dict[str, tuple[Callable[..., tuple[Step, int]], bool]]] = {
    "torch": {
        "cpplm": (torch_step, True),
        "cpplm, not compiled, all logits": (torch_step, False),
        "cpplm, default preset": (preset_step, True),
        "Llama of transformers, compiled": (llama_step, True),
        "Llama of transformers": (llama_step, False),
    },
    "jax": {
        "cpplm": (jax_step, True),
        "cpplm in PyTorch": (torch_step, True),
        "cpplm in PyTorch, not compiled, all logits": (torch_step, False),
    },
}


# On a CPU, in turn

_step: Step


def _prepare(
    arguments: argparse.Namespace, name: str, config: ModelConfig, shape: Shape
) -> tuple[int, float]:
    """In the contender's process: build, compile and make a step; parameters and the seconds of all that."""
    global _step
    if hasattr(os, "sched_setaffinity"):  # JAX takes all cores that it may
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    build, compiled = CONTENDERS[arguments.backend][name]
    dtype = choose_dtype(arguments.precision, choose_device("cpu"))
    begin = time.perf_counter()
    _step, parameters = build(config, shape, dtype, compiled=compiled)
    _measure(config.vocab_size, shape, 1)
    return parameters, time.perf_counter() - begin


def _measure(vocab_size: int, shape: Shape, steps: int) -> float:
    """Tokens per second of some steps: the median."""
    return shape[0] * shape[1] / statistics.median(_seconds(_step, vocab_size, shape, steps)[0])


def _seconds(step: Step, vocab_size: int, shape: Shape, steps: int) -> tuple[list[float], float]:
    """Of each step, and the last one's loss, which ends it."""
    seconds, loss = [], 0.0
    for _ in range(steps):
        ids_BT, targets_BT = torch.randint(vocab_size, (2, *shape)).unbind()
        begin = time.perf_counter()
        loss = step(ids_BT, targets_BT)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds, loss


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures of all contenders."""
    config = ModelConfig.seed(
        arguments.depth,
        vocab_size=arguments.vocab_size,
        max_seq_len=arguments.seq_len,
        head_dim=arguments.head_dim,
    )
    shape = (arguments.batch_size, arguments.seq_len)
    names = CONTENDERS[arguments.backend]
    rates: dict[str, list[float]] = {name: [] for name in names}
    parameters, first = {}, {}
    with ExitStack() as stack:
        pools = {name: stack.enter_context(worker_pool(1)) for name in names}
        for name, pool in pools.items():
            parameters[name], first[name] = pool.submit(_prepare, arguments, name, config, shape).result()
            progress(f"{name}: {parameters[name]:,} parameters, first step after {first[name]:.0f} s")
        for turn in range(arguments.turns):
            for name, pool in pools.items():
                measured = pool.submit(_measure, arguments.vocab_size, shape, arguments.steps)
                rates[name].append(measured.result())
                progress(f"{turn + 1}/{arguments.turns} {name}: {rates[name][-1]:,.0f} tokens/s")
    faster = {name: ratios(rates["cpplm"], rates[name]) for name in names if name != "cpplm"}
    for name, ratio in faster.items():
        progress(f"cpplm is {ratio} times as fast as {name}")
    return {
        "parameters": parameters,
        "seconds_to_first_step": {name: round(seconds, 2) for name, seconds in first.items()},
        "tokens_per_second": {name: Spread.of(found, 0) for name, found in rates.items()},
        "times_as_fast_as": faster,
    }


# One kernel


def measure_kernel(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures of ours with one kernel, on the device that is here, in this process."""
    device = choose_device("")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    preset = {"default": ModelConfig.from_depth, "seed": ModelConfig.seed}[arguments.preset]
    config = preset(
        arguments.depth, vocab_size=arguments.vocab_size, max_seq_len=arguments.seq_len,
        head_dim=arguments.head_dim,
    )  # fmt: skip
    shape, begin = (arguments.batch_size, arguments.seq_len), time.perf_counter()
    chosen = {"compiled": True, **KERNELS[arguments.kernel]}
    compiled, kernels = chosen.pop("compiled"), KernelSettings(**chosen)
    dtype = choose_dtype(arguments.precision, device)
    step, parameters = torch_step(config, shape, dtype, compiled=compiled, kernels=kernels)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    _seconds(step, config.vocab_size, shape, 3)
    compile_seconds = time.perf_counter() - begin
    seconds, loss = _seconds(step, config.vocab_size, shape, arguments.steps)
    rate = shape[0] * shape[1] / statistics.median(seconds)
    return {
        "tokens_per_second": round(rate),
        "mfu": round(rate * count_flops(config)["total"] / peak_flops_for_mfu(device, dtype)[0], 4),
        "memory_gib": round(peak_memory_bytes(device) / 2**30, 2),
        "compile_seconds": round(compile_seconds, 1),
        "loss": round(loss, 4),
        "parameters": parameters,
    }


def main() -> None:
    """Measure, print."""
    parser = command_line(
        __doc__, depth=4, head_dim=64, seq_len=512, batch_size=8, vocab_size=8192,
        threads=THREADS, turns=5, steps=4,
    )  # fmt: skip
    parser.add_argument("--backend", choices=list(CONTENDERS), default="torch")
    parser.add_argument("--kernel", choices=list(KERNELS))
    parser.add_argument("--preset", choices=("default", "seed"), default="default", help="of --kernel")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="auto")
    arguments = parser.parse_args()
    prepare_environment(threads=arguments.threads)
    os.environ["JAX_PLATFORMS"] = "cpu"
    figures = measure_kernel(arguments) if arguments.kernel else compare(arguments)
    publish("train_step", {"settings": vars(arguments), **figures})


if __name__ == "__main__":
    with refusals("train_step"):
        main()
