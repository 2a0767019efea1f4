"""Sequences of different lengths in one cache: each as if it were alone, no block is lost."""

import dataclasses
import itertools
import random
from dataclasses import dataclass
from typing import get_args

import pytest
import torch

from cpplm.model.config import ModelConfig
from cpplm.model.kv_cache.block_pool import BLOCK_SIZE, BlockPool, CachedSequence
from cpplm.model.kv_cache.cache import KVCache
from cpplm.model.kv_cache.paged_view import CacheReadMode
from cpplm.model.transformer import Transformer
from tests.model.caches import Rows
from tests.model.features import CONFIGS, DECODED_MIXED, PLAIN, random_ids, random_model

CASES = pytest.mark.parametrize(
    ("config", "read_mode"),
    [*itertools.product((DECODED_MIXED["plain"], DECODED_MIXED["all"]), get_args(CacheReadMode)),
     *zip(list(DECODED_MIXED.values())[2:], itertools.cycle(get_args(CacheReadMode)), strict=False)],
)  # fmt: skip


@dataclass(eq=False)  # a fork is another text
class Text:
    """A sequence and all that it has read."""

    sequence: CachedSequence
    ids: list[int]


class Session:
    """Texts that come and go at random; every logit is compared with the whole pass without a cache."""

    def __init__(self, model: Transformer, *, read_mode: CacheReadMode, seed: int) -> None:
        self.model, self.random = model, random.Random(seed)
        self.cache = KVCache(
            model.cache_specs(), device=model.device, dtype=model.compute_dtype, read_mode=read_mode,
            prefix_cache_tokens=64,
        )  # fmt: skip
        self.texts: list[Text] = []
        self.reused = 0
        self.headers = [self.ids(40), self.ids(21)]

    def ids(self, count: int) -> list[int]:
        return [self.random.randrange(self.model.config.vocab_size) for _ in range(count)]

    def read(self, texts: list[Text], new: list[list[int]]) -> None:
        counts = [len(ids) for ids in new]
        view = self.cache.view([text.sequence for text in texts], counts)
        padded = torch.tensor([ids + [0] * (max(counts) - len(ids)) for ids in new])
        logits = self.model(padded, view)
        for text, ids, row in zip(texts, new, logits, strict=True):
            self.cache.advance(text.sequence, ids)
            text.ids += ids
            whole = self.model(torch.tensor([text.ids]))[0, -len(ids) :]
            torch.testing.assert_close(row[: len(ids)], whole, atol=2e-4, rtol=2e-4)

    def begin(self) -> None:
        ids = self.random.choice(self.headers) + self.ids(self.random.randrange(1, 30))
        text = Text(self.cache.begin(ids), [])
        known = text.sequence.length
        self.reused += known
        text.ids = ids[:known]
        self.texts.append(text)
        self.read([text], [ids[known:]])

    def fork(self) -> None:
        text = self.random.choice(self.texts)
        self.texts.append(Text(self.cache.fork(text.sequence), text.ids.copy()))

    def release(self, text: Text) -> None:
        self.texts.remove(text)
        self.cache.release(text.sequence)

    def draft(self) -> None:
        """Tokens that are read and then forgotten."""
        text = self.random.choice(self.texts)
        view = self.cache.view([text.sequence], 5)
        self.model(torch.tensor([self.ids(5)]), view)

    def step(self) -> None:
        texts = self.random.sample(self.texts, self.random.randrange(1, len(self.texts) + 1))
        if self.random.random() < 0.7:
            new = [self.ids(1) for _ in texts]
        else:
            new = [self.ids(self.random.randrange(1, 20)) for _ in texts]
        self.read(texts, new)


@CASES
@torch.no_grad()
def test_every_row_is_as_if_it_were_alone(config: ModelConfig, read_mode: CacheReadMode) -> None:
    session = Session(random_model(config), read_mode=read_mode, seed=len(str(config)))
    for _ in range(3):
        session.begin()
    for _ in range(20):
        action = session.random.choice(["begin", "fork", "release", "draft", "step", "step", "step"])
        if action == "release" and len(session.texts) > 1:
            session.release(session.random.choice(session.texts))
        elif action in ("begin", "fork") and len(session.texts) < 8:
            getattr(session, action)()
        elif action == "draft":
            session.draft()
        else:
            session.step()
    assert session.reused > 0
    for text in session.texts.copy():
        session.release(text)
    assert session.cache.num_used_blocks == 0


@torch.no_grad()
def test_memory_is_that_of_key_value_heads_and_windows() -> None:
    """Layers with a window hold on to it alone, others to everything; heads that share keys count once."""
    model = random_model(dataclasses.replace(PLAIN, max_seq_len=64))  # windows of 32 in three of four layers
    rows = Rows(model, 1)
    for _ in range(20):
        rows(random_ids(1, 8))
    everything, window = 160 // BLOCK_SIZE, 32 // BLOCK_SIZE
    assert rows.cache.num_used_blocks == everything + window
    per_block = 2 * BLOCK_SIZE * PLAIN.num_kv_heads * PLAIN.head_dim * 4
    assert rows.cache.bytes <= 2 * per_block * (everything + 2 + 3 * (window + 1 + 2))


@torch.no_grad()
def test_what_begins_alike_is_read_once() -> None:
    model, ids = random_model(CONFIGS["all"]), random_ids(1, 50)[0].tolist()
    cache = KVCache(model.cache_specs(), device=model.device, dtype=torch.float32, prefix_cache_tokens=48)

    def read(ids: list[int]) -> tuple[int, CachedSequence]:
        sequence = cache.begin(ids)
        known, rest = sequence.length, ids[sequence.length :]
        model(torch.tensor([rest]), cache.view([sequence], len(rest)))
        cache.advance(sequence, rest)
        return known, sequence

    known, sequence = read(ids)
    assert known == 0
    cache.release(sequence)
    assert (cache.num_used_blocks, cache.num_cached_blocks > 0) == (0, True)
    assert read([*ids[:40], 1, 2, 3])[0] == 32
    assert read(ids[:32])[0] == 16  # at least one token is left to read
    assert read([ids[0] ^ 1, *ids[1:]])[0] == 0


def test_cached_blocks_have_a_bound_and_the_least_recently_used_is_evicted() -> None:
    pool = BlockPool(max_cached=2)
    blocks = [pool.allocate() for _ in range(4)]
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=False):
        pool.register(block, name)
    for block in blocks:
        pool.release(block)
    assert (pool.num_used, pool.num_cached, pool.size) == (0, 2, 4)
    assert [name in pool for name in (b"a", b"b", b"c")] == [False, True, True]
    assert pool.reuse(b"b") == blocks[1]
    assert (pool.num_used, pool.num_cached) == (1, 1)
    assert sorted(pool.allocate() for _ in range(3)) == [0, 3, 4]  # what is kept is not handed out
