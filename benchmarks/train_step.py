"""Tokens per second of a training step, against a Llama of the same size in transformers with AdamW.

    python benchmarks/train_step.py [--depth 4] [--seq_len 512] [--vocab_size 8192] [--threads 2] [--turns 5]

Each contender has a process of its own and takes turns: ours as `cpplm train` runs it (compiled, bfloat16
where the processor has it), with the preset "seed", which has no tables, so that parameters are equal; ours
without torch.compile and with all logits at once; ours with the default preset; and `LlamaForCausalLM` with
as many layers, heads and parameters, untied, the same dtype, torch's fused AdamW, as it is and compiled. A
turn takes a few steps on random tokens; compiling is over before the clock starts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from measuring import Spread, describe_machine, prepare_environment, progress, publish, ratios

from cpplm.core.hardware import choose_device, choose_dtype, enable_huge_pages
from cpplm.core.workers import worker_pool
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_parameters
from cpplm.model.settings import KernelSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_optimizer
from cpplm.optim.schedules import LearningRates
from cpplm.train.compile import compiled_losses

Step = Callable[[torch.Tensor, torch.Tensor], None]


def our_step(config: ModelConfig, shape: tuple[int, int], *, compiled: bool) -> tuple[Step, int]:
    """One optimizer step of ours, and the number of parameters."""
    enable_huge_pages()  # as training does
    device = choose_device("cpu")
    kernels = KernelSettings() if compiled else KernelSettings(kernel="native", attention="sdpa")
    model = Transformer(config, compute_dtype=choose_dtype("auto", device), kernels=kernels)
    model.init_weights()
    optimizer = build_optimizer(model, LearningRates(), batch_tokens=shape[0] * shape[1])
    losses = compiled_losses(model, [shape]) if compiled else model.training_losses
    weight = torch.zeros(())

    def step(ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> None:
        losses(ids_BT, targets_BT, weight).total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, count_parameters(config)["total"]


def llama_step(config: ModelConfig, shape: tuple[int, int], *, compiled: bool) -> tuple[Step, int]:
    """The same of transformers: its gated MLP has 8/3 of the width, as many weights as ours of 4."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  (slow to import, one contender's)

    peer = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.padded_vocab_size,
            hidden_size=config.model_dim,
            intermediate_size=round(config.model_dim * config.mlp_ratio * 2 / 3),
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=shape[1],
            tie_word_embeddings=False,
            use_cache=False,
        )
    ).train()
    optimizer = torch.optim.AdamW(peer.parameters(), lr=3e-4, fused=True)
    dtype = choose_dtype("auto", choose_device("cpu"))

    def loss(ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = peer(input_ids=ids_BT).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets_BT.flatten())

    run = torch.compile(loss, dynamic=False) if compiled else loss

    def step(ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> None:
        run(ids_BT, targets_BT).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, sum(p.numel() for p in peer.parameters())


def preset_step(config: ModelConfig, shape: tuple[int, int], *, compiled: bool) -> tuple[Step, int]:
    """Of our default recipe at the same depth: more parameters, in tables that are only looked up."""
    preset = ModelConfig.from_depth(
        config.num_layers,
        vocab_size=config.vocab_size,
        max_seq_len=config.max_seq_len,
        head_dim=config.head_dim,
    )
    return our_step(preset, shape, compiled=compiled)


CONTENDERS: dict[str, tuple[Callable[..., tuple[Step, int]], bool]] = {
    "cpplm": (our_step, True),
    "cpplm, not compiled, all logits": (our_step, False),
    "cpplm, default preset": (preset_step, True),
    "Llama of transformers, compiled": (llama_step, True),
    "Llama of transformers": (llama_step, False),
}

_step: Step
_parameters = 0


def _prepare(name: str, config: ModelConfig, shape: tuple[int, int], threads: int) -> int:
    """In the contender's process: build, compile and warm up."""
    global _step
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    build, compiled = CONTENDERS[name]
    _step, parameters = build(config, shape, compiled=compiled)
    _measure(config.vocab_size, shape, 2)
    return parameters


def _measure(vocab_size: int, shape: tuple[int, int], steps: int) -> float:
    """Tokens per second of some steps: the median."""
    seconds = []
    for _ in range(steps):
        ids_BT, targets_BT = torch.randint(vocab_size, (2, *shape)).unbind()
        begin = time.perf_counter()
        _step(ids_BT, targets_BT)
        seconds.append(time.perf_counter() - begin)
    return shape[0] * shape[1] / statistics.median(seconds)


def main() -> None:
    """Take turns, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--head_dim", type=int, default=64)
    parser.add_argument("--seq_len", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--vocab_size", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    prepare_environment(threads=arguments.threads)
    config = ModelConfig.seed(
        arguments.depth,
        vocab_size=arguments.vocab_size,
        max_seq_len=arguments.seq_len,
        head_dim=arguments.head_dim,
    )
    shape = (arguments.batch_size, arguments.seq_len)
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    parameters: dict[str, Any] = {}
    with ExitStack() as stack:
        pools = {name: stack.enter_context(worker_pool(1)) for name in CONTENDERS}
        for name, pool in pools.items():
            parameters[name] = pool.submit(_prepare, name, config, shape, arguments.threads).result()
            progress(f"{name}: {parameters[name]:,} parameters, ready")
        for turn in range(arguments.turns):
            for name, pool in pools.items():
                measured = pool.submit(_measure, arguments.vocab_size, shape, arguments.steps)
                rates[name].append(measured.result())
                progress(f"{turn + 1}/{arguments.turns} {name}: {rates[name][-1]:,.0f} tokens/s")
    others = [name for name in CONTENDERS if name != "cpplm"]
    faster = {name: ratios(rates["cpplm"], rates[name]) for name in others}
    for name, ratio in faster.items():
        progress(f"cpplm is {ratio} times as fast as {name}")
    publish({"benchmark": "train_step", "machine": describe_machine(), "settings": vars(arguments),
             "parameters": parameters, "tokens_per_second": {n: Spread.of(r, 0) for n, r in rates.items()},
             "times_as_fast_as": faster})  # fmt: skip


if __name__ == "__main__":
    main()
