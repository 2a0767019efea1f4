"""Memory and time of one step of sparse distillation: all logits, gathered rows of the head, and ours.

    python benchmarks/kd_memory.py [--rows 1024] [--vocab_size 151936] [--dim 1024] [--topk 128]

The loss is the same for the first three: the divergence within the teacher's likeliest tokens, plus sampled
cross-entropy. `all logits` makes [N, V] and picks the candidates from it, `gathered rows` makes
[N, K+R+1, C], the usual way to few logits. Then our losses over the whole vocabulary: the likeliest with all
others as one, and the divergence from a teacher of the same width that runs beside.

Each runs in a process of its own: random states and head, one step of a few rows so that all code is loaded,
then the step that counts. Extra memory is the resident peak of the step less what was resident before it, as
Linux counts it (VmHWM, reset through /proc/self/clear_refs). Of a head that learns, its gradient is part of
it. Forward and backward are counted, the model below the head is not.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring
import torch
from torch import Tensor

from cpplm.compress.kd.losses import CandidateLogits, distillation_loss, sampled_ce, topk_kl
from cpplm.compress.kd.settings import KDLossSettings
from cpplm.compress.kd.sparse_head import OutputHead
from cpplm.compress.kd.targets import TeacherTargets

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_SPARSE = KDLossSettings(no_full_logits=True, sampled_ce_weight="1")
METHODS = ("all logits", "gathered rows", "ours", "ours, topk_tail", "ours, full")


def resident(field: str) -> int:
    """Bytes of VmRSS, what is resident now, or VmHWM, the most that was."""
    match = re.search(rf"{field}:\s+(\d+) kB", _STATUS.read_text())
    assert match
    return int(match[1]) << 10


def targets_of(rows: int, vocab_size: int, topk: int, negatives: int) -> TeacherTargets:
    """Random ones."""
    logprobs_NK = torch.randn(rows, topk).log_softmax(1) - 0.1
    first_N1, step = torch.randint(vocab_size, (rows, 1)), vocab_size // topk
    return TeacherTargets(
        (first_N1 + step * torch.arange(topk)) % vocab_size,  # all different
        logprobs_NK.sort(1, descending=True).values,
        torch.full((rows,), -0.1).exp().neg().log1p(),
        torch.randint(vocab_size, (rows, negatives)),
    )


def all_logits(hidden_NC: Tensor, head_VC: Tensor, ids_NM: Tensor) -> Tensor:
    """Candidates out of [N, V]."""
    return (hidden_NC @ head_VC.T).gather(1, ids_NM)


def gathered_rows(hidden_NC: Tensor, head_VC: Tensor, ids_NM: Tensor) -> Tensor:
    """Candidates by [N, M, C]."""
    return torch.einsum("nc,nmc->nm", hidden_NC, head_VC[ids_NM])


def plain_loss(
    candidates: Callable[[Tensor, Tensor, Tensor], Tensor],
    hidden_NC: Tensor, head_VC: Tensor, labels_N: Tensor, targets: TeacherTargets,
) -> Tensor:  # fmt: skip
    """The loss of `_SPARSE` from logits of candidates that something else gives."""
    assert targets.negative_ids_NR is not None
    vocab_size = len(head_VC)
    topk = targets.topk_ids_NK.size(1)
    ids_NM = torch.cat([targets.topk_ids_NK, targets.negative_ids_NR, labels_N[:, None]], 1)
    logits_NM = candidates(hidden_NC, head_VC, ids_NM)
    logits = CandidateLogits(logits_NM[:, :topk], logits_NM[:, topk:-1], logits_NM[:, -1])
    sampled_N = sampled_ce(vocab_size, logits, targets, labels_N, logits.label_N)
    return (topk_kl(logits.topk_NK, targets) + sampled_N).mean()


def loss_of(method: str, hidden_NC: Tensor, head_VC: Tensor, labels_N: Tensor, targets: Any) -> Tensor:
    """One forward pass."""
    if method in ("all logits", "gathered rows"):
        candidates = all_logits if method == "all logits" else gathered_rows
        return plain_loss(candidates, hidden_NC, head_VC, labels_N, targets)
    settings = {
        "ours": _SPARSE,
        "ours, topk_tail": KDLossSettings(kd_loss="topk_tail"),
        "ours, full": KDLossSettings(kd_loss="full"),
    }[method]
    head = OutputHead(hidden_NC, head_VC, len(head_VC))
    return distillation_loss(head, labels_N, targets, settings, progress=0.0).total


def measure(method: str, trains_head: bool, sizes: dict[str, int]) -> dict[str, float]:
    """One step, in this process."""
    torch.manual_seed(0)
    rows, vocab_size, dim = sizes["rows"], sizes["vocab_size"], sizes["dim"]

    def step(count: int, head_VC: Tensor) -> Tensor:
        hidden_NC, labels_N = states_NC[:count].detach().requires_grad_(), all_labels_N[:count]
        teacher = OutputHead(teacher_NC[:count], teacher_head_VC, len(head_VC))
        targets = TeacherTargets(
            *(each[:count] if isinstance(each, Tensor) else each for each in all_targets)
        )
        loss = loss_of(method, hidden_NC, head_VC, labels_N, teacher if method.endswith("full") else targets)
        loss.backward()
        head_VC.grad = None
        assert hidden_NC.grad is not None
        return torch.stack([loss.detach(), hidden_NC.grad.norm()])

    states_NC = torch.randn(rows, dim)
    head_VC = (torch.randn(vocab_size, dim) / dim**0.5).requires_grad_(trains_head)
    all_labels_N = torch.randint(vocab_size, (rows,))
    all_targets = targets_of(rows, vocab_size, sizes["topk"], sizes["negatives"])
    teacher_NC, teacher_head_VC = torch.randn(rows, dim), head_VC.detach()
    step(2, head_VC)  # loads code
    before = resident("VmRSS")
    _CLEAR.write_text("5")
    begin = time.process_time()
    values = step(rows, head_VC)
    return {
        "extra_mib": (resident("VmHWM") - before) / 2**20,
        "cpu_seconds": time.process_time() - begin,
        "loss": values[0].item(),
        "gradient_norm": values[1].item(),
    }


def main() -> None:
    """Measure all in turn, each in a process of its own."""
    parser: argparse.ArgumentParser = measuring.command_line(
        __doc__, rows=1024, vocab_size=151_936, dim=1024, topk=128, negatives=64, threads=1
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments = parser.parse_args()
    if not _CLEAR.exists():
        sys.exit("benchmarks/kd_memory.py needs Linux: /proc/self/clear_refs resets the peak")
    measuring.prepare_environment(arguments.threads)
    sizes = {name: getattr(arguments, name) for name in ("rows", "vocab_size", "dim", "topk", "negatives")}
    results: list[dict[str, Any]] = []
    for trains_head in (False, True):
        for method in arguments.methods:
            found = measuring.run_alone(measure, method, trains_head, sizes).result
            results.append({"method": method, "head": "learns" if trains_head else "frozen", **found})
            measuring.progress(
                f"{method:16} head {results[-1]['head']}: {found['extra_mib']:8.1f} MiB, "
                f"{found['cpu_seconds']:6.2f} s, loss {found['loss']:.5f}"
            )
    measuring.publish("kd_memory", {"sizes": sizes, "results": results})


if __name__ == "__main__":
    main()
