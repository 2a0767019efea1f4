"""Tokens per second and MFU of training steps on the GPU that is here, kernel by kernel, in under eight
minutes.

    python benchmarks/gpu_train.py [--minutes 8] [--out FILE.json]

Depth 12 and 20, context 2,048, vocabulary 32,768, random tokens, forward, backward and optimizer, compiled.
First what `auto` chooses, then each attention and each loss kernel that works here, then 8-bit products. Each
line is a process of its own, so that one that runs out of memory or fails costs its own line only; what the
time does not suffice for is named as not measured. MFU is the model's operations (cpplm.model.flops) over
the peak of dense bfloat16 products, also for 8 bits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measuring import describe_machine, progress, publish

from cpplm.core.hardware import peak_flops
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops, count_parameters
from cpplm.model.quantization import convert_to_fp8
from cpplm.model.settings import KernelSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_optimizer
from cpplm.optim.schedules import LearningRates
from cpplm.train.compile import compiled_losses

SEQ_LEN, VOCABULARY = 2048, 32_768
VARIANTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "fp8 tensorwise": {"fp8": True},
    "attention sdpa": {"attention": "sdpa"},
    "attention flex": {"attention": "flex"},
    "attention flash2": {"attention": "flash2"},
    "attention flash3": {"attention": "flash3"},
    "loss native": {"kernel": "native"},
    "loss chunked": {"kernel": "chunked"},
    "loss cce": {"kernel": "cce"},
    "loss liger": {"kernel": "liger"},
    "fp8 rowwise": {"fp8": True, "fp8_recipe": "rowwise"},
    "gradient checkpointing": {"gradient_checkpointing": True},
}


def measure(depth: int, variant: str, batch_size: int, steps: int) -> dict[str, Any]:
    """One line of the table, in this process."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    kernels = KernelSettings(**VARIANTS[variant])
    config = ModelConfig.from_depth(depth, vocab_size=VOCABULARY, max_seq_len=SEQ_LEN)
    with torch.device("meta"):
        model = Transformer(config, compute_dtype=torch.bfloat16, kernels=kernels)
    model.to_empty(device=device)
    model.init_weights()
    if kernels.fp8:
        convert_to_fp8(model, kernels.fp8_recipe)
    shape = (batch_size, SEQ_LEN)
    optimizer = build_optimizer(model, LearningRates(), batch_tokens=batch_size * SEQ_LEN)
    begin = time.perf_counter()
    losses = compiled_losses(model, [shape])
    weight = torch.zeros((), device=device)
    torch.cuda.reset_peak_memory_stats()
    seconds, loss = [], 0.0
    for step in range(steps + 3):
        ids_BT, targets_BT = torch.randint(VOCABULARY, (2, *shape), device=device).unbind()
        torch.cuda.synchronize()
        at = time.perf_counter()
        result = losses(ids_BT, targets_BT, weight)
        result.total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = float(result.next_token)
        torch.cuda.synchronize()
        if step == 2:
            compile_seconds = time.perf_counter() - begin
        if step >= 3:
            seconds.append(time.perf_counter() - at)
    rate = batch_size * SEQ_LEN / statistics.median(seconds)
    return {
        "tokens_per_second": round(rate),
        "mfu": round(rate * count_flops(config)["total"] / peak_flops(device), 4),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "compile_seconds": round(compile_seconds, 1),
        "loss": round(loss, 4),
        "parameters": count_parameters(config)["total"],
    }


def main() -> None:
    """Run line by line while there is time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--depths", type=int, nargs="+", default=[12, 20])
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        found = measure(int(arguments.one[0]), arguments.one[1], arguments.batch_size, arguments.steps)
        sys.stdout.write(json.dumps(found) + "\n")
        return
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu_train.py needs a CUDA GPU, and there is none here")
    end = time.monotonic() + 60 * arguments.minutes
    lines: list[dict[str, Any]] = []
    figures = {
        "benchmark": "gpu_train",
        "machine": describe_machine(),
        "settings": vars(arguments),
        "lines": lines,
    }
    for variant in VARIANTS:
        for depth in arguments.depths:
            line: dict[str, Any] = {"depth": depth, "variant": variant}
            left = end - time.monotonic()
            if left < 30:
                line["not_measured"] = "the time was over"
            else:
                line |= _run(depth, variant, left)
            lines.append(line)
            progress(json.dumps(line))
            if arguments.out:
                arguments.out.write_text(json.dumps(figures, indent=1, default=str) + "\n")
    publish(json.loads(json.dumps(figures, default=str)))


def _run(depth: int, variant: str, left: float) -> dict[str, Any]:
    command = [sys.executable, __file__, *sys.argv[1:], "--one", str(depth), variant]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        return {"not_measured": "the time was over"}
    if finished.returncode:
        return {"not_measured": finished.stderr.strip().splitlines()[-1][:300]}
    return json.loads(finished.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
