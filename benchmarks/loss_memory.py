"""Memory of the loss: all logits at once against a chunk of rows at a time.

    python benchmarks/loss_memory.py

Forward and backward of `linear_cross_entropy`, each kernel in a process of its own. Memory is the most that
the process held resident minus what it held when the inputs were there; it includes both gradients. The
gradients of the two are compared: the largest difference over the largest entry. The target is an eighth of
the memory with the same gradients.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import psutil
import torch
from measuring import describe_machine, prepare_environment, progress, publish, run_alone

from cpplm.core.hardware import peak_memory_bytes
from cpplm.model.kernels.loss import linear_cross_entropy

KERNELS = ("native", "chunked")
MOST_SHARE = 1 / 8
MOST_DIFFERENCE = 1e-4


def measure(kernel: str, rows: int, vocab_size: int, width: int, dtype: str) -> dict[str, Any]:
    """One forward and one backward pass; runs in its own process."""
    generator = torch.Generator().manual_seed(0)
    hidden_NC = torch.randn(rows, width, generator=generator).to(getattr(torch, dtype)).requires_grad_()
    weight_VC = (0.05 * torch.randn(vocab_size, width, generator=generator)).requires_grad_()
    targets_N = torch.randint(0, vocab_size, (rows,), generator=generator)
    # The first product starts the threads and their buffers, which are no part of the loss.
    linear_cross_entropy(hidden_NC[:8], weight_VC[:64], targets_N[:8] % 64, vocab_size=64, softcap=15.0)
    before, begin = psutil.Process().memory_info().rss, time.perf_counter()
    loss = linear_cross_entropy(
        hidden_NC, weight_VC, targets_N, vocab_size=vocab_size, softcap=15.0, backend=kernel
    )
    loss.backward()
    seconds = time.perf_counter() - begin
    assert hidden_NC.grad is not None
    assert weight_VC.grad is not None
    return {
        "bytes": peak_memory_bytes(torch.device("cpu")) - before,
        "seconds": seconds,
        "loss": loss.item(),
        "gradients": [hidden_NC.grad.float().numpy(), weight_VC.grad.numpy()],
    }


def difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest difference of any gradient over that gradient's largest entry."""
    return max(
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(ours, theirs, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--vocab_size", type=int, default=65_536)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    prepare_environment(options.threads)
    found: dict[str, dict[str, Any]] = {}
    progress(f"{'kernel':10} {'MiB':>8} {'seconds':>8} {'loss':>10}")
    for kernel in KERNELS:
        arguments = (kernel, options.rows, options.vocab_size, options.width, options.dtype)
        one = found[kernel] = run_alone(measure, *arguments).result
        progress(f"{kernel:10} {one['bytes'] / 2**20:8.0f} {one['seconds']:8.2f} {one['loss']:10.6f}")
    share = found["chunked"]["bytes"] / found["native"]["bytes"]
    apart = difference(*(found[kernel].pop("gradients") for kernel in reversed(KERNELS)))
    passed = share <= MOST_SHARE and (apart <= MOST_DIFFERENCE or options.dtype != "float32")
    progress(f"chunked holds 1/{1 / share:.1f} of native; gradients differ by {apart:.1e} of the largest")
    publish({
        "machine": describe_machine(), **vars(options), "kernels": found, "share": share,
        "gradient_difference": apart, "passed": passed,
    })  # fmt: skip
    sys.exit(not passed)


if __name__ == "__main__":
    main()
