"""The hash functions of the n-gram memory, from the configuration alone: no torch, any backend has the
same."""

from __future__ import annotations

import random

from cpplm.model.config import EngramConfig

HASH_BITS = 32  # ids are hashed in 32-bit arithmetic, which every backend has


def table_rows(config: EngramConfig, layer: int) -> list[int]:
    """Rows of each table: distinct primes from `table_size` up, other ones for each layer, orders first.

    Tables of coprime sizes do not collide in the same pairs of n-grams (section 2.2).
    """
    count = len(config.ngram_orders) * config.num_heads
    primes: list[int] = []
    candidate = config.table_size
    while len(primes) < count * (config.layers.index(layer) + 1):
        if candidate > 1 and all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            primes.append(candidate)
        candidate += 1
    return primes[-count:]


def hash_multipliers(config: EngramConfig, layer: int) -> list[list[int]]:
    """Per table, an odd 32-bit multiplier for each of the last N ids; 0 for ids that its order leaves out."""
    longest = max(config.ngram_orders)
    return [
        [
            random.Random(f"{layer}/{order}/{head}/{back}").getrandbits(HASH_BITS) | 1  # noqa: S311
            if back < order
            else 0
            for back in range(longest)
        ]
        for order in config.ngram_orders
        for head in range(config.num_heads)
    ]
