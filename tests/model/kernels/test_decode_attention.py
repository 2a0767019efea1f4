"""Attention over blocks that lie anywhere: what float64 gives, whatever the shape."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from cpplm.model.kernels.decode_attention import PagedSequences, decode_attention, supports
from cpplm.model.kv_cache.block_pool import BLOCK_SIZE, BlockTable
from tests.model.kernels.test_attention import reference

SHAPES = {  # heads, groups, head width, window, new tokens of each sequence, tokens before them
    "one row": (4, 4, 64, None, [1], [37]),
    "at the start": (2, 2, 64, None, [1, 1], [0, 1]),
    "many rows": (3, 3, 64, None, [1] * 7, [5, 16, 300, 31, 32, 33, 90]),
    "shared heads": (6, 2, 128, None, [1, 1, 1], [40, 3, 100]),
    "window": (4, 2, 64, 20, [1, 1, 1, 1], [10, 19, 20, 150]),
    "odd width": (2, 1, 22, 33, [1, 1], [65, 34]),
    "several tokens": (4, 2, 32, None, [3, 1, 8], [7, 50, 0]),
    "several tokens, window": (4, 2, 64, 4, [8, 5, 1], [3, 70, 33]),
}


class Pool:
    """Keys and values of sequences in blocks that are scattered, NaN everywhere else."""

    def __init__(self, shape, dtype: torch.dtype) -> None:
        heads, groups, dim, self.window, self.counts, self.starts = shape
        rows, generator = len(self.counts), random.Random(0)
        ends = [start + count for start, count in zip(self.starts, self.counts, strict=True)]
        numbers = list(range(sum(-(-end // BLOCK_SIZE) for end in ends) + 5))
        generator.shuffle(numbers)
        self.tables = [BlockTable(0, [numbers.pop() for _ in range(-(-end // BLOCK_SIZE))]) for end in ends]
        slots = (max(max(table.blocks) for table in self.tables) + 3) * BLOCK_SIZE
        torch.manual_seed(0)
        self.pools = [torch.full((slots, groups, dim), float("nan"), dtype=dtype) for _ in range(2)]
        self.query = torch.randn(rows, max(self.counts), heads, dim).to(dtype)
        for table, end in zip(self.tables, ends, strict=True):
            for pool in self.pools:
                pool[table.slots(0, end)] = torch.randn(end, groups, dim).to(dtype)
        if self.window is not None:  # what is out of reach was given back
            for table, start in zip(self.tables, self.starts, strict=True):
                while table.first < (start - self.window) // BLOCK_SIZE:
                    block = table.blocks.pop(0)
                    table.first += 1
                    for pool in self.pools:
                        pool[block * BLOCK_SIZE :][:BLOCK_SIZE] = float("nan")

    def mixed(self) -> Tensor:
        most = max(len(table.blocks) for table in self.tables)
        numbers = np.zeros((len(self.tables), most), dtype=np.int64)
        for row, table in zip(numbers, self.tables, strict=True):
            row[: len(table.blocks)] = table.blocks
        firsts = [table.first for table in self.tables]
        places = np.array([self.starts, self.counts, firsts]).T.copy()
        return decode_attention(
            self.query, *self.pools, PagedSequences(numbers, places, BLOCK_SIZE), window=self.window
        )

    def expected(self, row: int) -> Tensor:
        """In float64, shape THD."""
        table, start, count = self.tables[row], self.starts[row], self.counts[row]
        first = table.first * BLOCK_SIZE
        keys, values = (
            pool[table.slots(first, start + count)].double().transpose(0, 1)[None] for pool in self.pools
        )
        query = self.query[row, :count].double().transpose(0, 1)[None]
        return reference(query, keys, values, self.window)[0].transpose(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_is_what_float64_gives(shape, dtype: torch.dtype) -> None:
    pool = Pool(shape, dtype)
    mixed = pool.mixed()
    assert mixed.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for row, count in enumerate(pool.counts):
        torch.testing.assert_close(
            mixed[row, :count].double(), pool.expected(row), atol=tolerance, rtol=tolerance
        )
        assert not mixed[row, count:].any()  # padding


def test_threads_change_no_bit() -> None:
    pool = Pool(SHAPES["many rows"], torch.bfloat16)
    alone, before = pool.mixed(), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(pool.mixed(), alone)
    finally:
        torch.set_num_threads(before)


def test_large_scores_and_no_numbers() -> None:
    """Scores far apart end in one key; what is no number is not lost."""
    pool = Pool(SHAPES["many rows"], torch.float32)
    pool.query *= 1e4
    torch.testing.assert_close(pool.mixed()[2].double(), pool.expected(2), atol=1e-4, rtol=1e-4)
    keys, table = pool.pools[0], pool.tables[2]
    keys[table.slots(150, 151), 1, 3] = float("nan")
    mixed = pool.mixed()
    assert mixed[2, 0, 1].isnan().all()
    mixed[2, 0, 1] = 0
    assert mixed.isfinite().all()


def test_only_what_it_can_do() -> None:
    assert supports(torch.device("cpu"), torch.bfloat16)
    assert not supports(torch.device("cpu"), torch.float16)
    assert not supports(torch.device("cuda"), torch.bfloat16)
