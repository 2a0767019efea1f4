"""Figures of a cache: how much of the teacher it holds, and how sure the teacher is."""

from __future__ import annotations

from typing import Any

import torch

from cpplm.compress.kd.cache import KDCache, unpack
from cpplm.core.progress import progress_bar
from cpplm.tokenizer.special_tokens import IGNORE_INDEX


def cache_figures(cache: KDCache) -> dict[str, Any]:
    """Sizes, and means over the tokens that count.

    Returns:
        "rows", "tokens", "counted_tokens", "bytes", "bytes_per_token", "topk", "negatives", "topk_mass" (of
        the teacher's distribution), "topk_entropy" (nats, renormalised within), "target_in_topk" (a share).

    Raises:
        UserError: a shard is damaged.
    """
    manifest = cache.manifest
    sums, counted = torch.zeros(3, dtype=torch.float64), 0
    with progress_bar(len(manifest.shards), "shards", "shard") as bar:
        for number in range(len(manifest.shards)):
            rows = {name: unpack(name, tensor) for name, tensor in cache.shard(number).items()}
            counts = rows["targets"] != IGNORE_INDEX
            logprobs = rows["topk_logprobs"][counts].log_softmax(1)
            found = rows["topk_ids"][counts] == rows["targets"][counts].unsqueeze(1)
            mass = 1 - rows["tail_logprob"][counts].exp()
            entropy = -(logprobs.exp() * logprobs).sum(1)
            sums += torch.stack([mass.sum(), entropy.sum(), found.any(1).sum()]).double()
            counted += int(counts.sum())
            bar.update(1)
    size = sum(shard.bytes for shard in manifest.shards)
    mass, entropy, share = (sums / max(1, counted)).tolist()
    return {
        "rows": manifest.rows, "tokens": manifest.tokens, "counted_tokens": counted, "bytes": size,
        "bytes_per_token": size / manifest.tokens, "topk": manifest.topk, "negatives": manifest.negatives,
        "topk_mass": mass, "topk_entropy": entropy, "target_in_topk": share,
    }  # fmt: skip
