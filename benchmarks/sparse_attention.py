"""Memory and time of sparse attention against full attention, forward and backward, at one length.

    python benchmarks/sparse_attention.py [--seq_len 16384] [--top_k 2048] [--heads 4] [--threads 2]

Each contender runs in a process of its own, which starts the clock and the memory watch after its inputs are
there. "plain" builds all scores, as attention is defined; "fused" is torch's kernel, which never holds them;
"sparse" is ours, with the indexer and its training. Memory is the growth of the process's peak.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
import torch.nn.functional as F
from measuring import Spread, describe_machine, prepare_environment, progress, publish, run_alone

from cpplm.model.kernels.sparse import SparseSpec, sparse_attention

HEAD_DIM, INDEXER_HEADS, INDEXER_DIM = 64, 16, 32


def measure(name: str, seq_len: int, heads: int, top_k: int, threads: int) -> tuple[float, int]:
    """Seconds, and bytes of memory beyond the inputs and outputs."""
    torch.set_num_threads(threads)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, requires_grad=True)

    query, key, value = (random(1, heads, seq_len, HEAD_DIM) for _ in range(3))
    index = (
        random(1, INDEXER_HEADS, seq_len, INDEXER_DIM),
        random(1, seq_len, INDEXER_DIM),
        random(1, seq_len, INDEXER_HEADS),
    )
    for tensor in (query, key, value, *index):
        tensor.grad = torch.zeros_like(tensor)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    if name == "plain":
        scores = (query @ key.mT * HEAD_DIM**-0.5).masked_fill_(
            torch.ones(seq_len, seq_len, dtype=torch.bool).triu(1), -torch.inf
        )
        (scores.softmax(-1) @ value).square().sum().backward()
    elif name == "fused":
        F.scaled_dot_product_attention(query, key, value, is_causal=True).square().sum().backward()
    else:
        mixed, divergence = sparse_attention(query, key, value, *index, SparseSpec(top_k, 128, dense=False))
        (mixed.square().sum() + divergence.sum()).backward()
    seconds = time.perf_counter() - begin
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seq_len", type=int, default=16_384)
    parser.add_argument("--top_k", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=["plain", "fused", "sparse"])
    arguments = parser.parse_args()
    prepare_environment(threads=arguments.threads)
    figures = {}
    for name in arguments.only:
        runs = [
            run_alone(
                measure, name, arguments.seq_len, arguments.heads, arguments.top_k, arguments.threads
            ).result
            for _ in range(arguments.turns)
        ]
        figures[name] = {
            "seconds": Spread.of([seconds for seconds, _ in runs], 2),
            "mebibytes": Spread.of([memory / 2**20 for _, memory in runs], 0),
        }
        progress(f"{name:8} {figures[name]['seconds']} s, {figures[name]['mebibytes']} MiB")
    publish(
        {
            "benchmark": "sparse_attention",
            "machine": describe_machine(),
            "settings": vars(arguments),
            **figures,
        }
    )


if __name__ == "__main__":
    main()
