"""Work of known size dealt to several workers, each of whom finds its own share without asking the others."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


def partition_by_size(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Names by size: largest first, each to whoever has least so far (Graham 1969, LPT rule).

    Args:
        sizes: per name, in any unit. Every worker has to pass the same ones; their order is of no account.
        count: workers.

    Returns:
        For each worker its names, largest first; none when there are too few.
    """
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [(0, worker) for worker in range(count)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, worker = heapq.heappop(loads)
        heapq.heappush(loads, (load + sizes[name], worker))
        shares[worker].append(name)
    return shares
