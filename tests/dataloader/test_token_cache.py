"""The cache changes nothing but the time; damage is named and mended; several processes share it."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpplm.core.shards import Shard, ShardReader, read_shard
from cpplm.core.storage import Storage
from cpplm.dataloader import token_cache
from cpplm.dataloader.encoding import PlainEncoder
from cpplm.dataloader.loader import TrainLoader
from cpplm.dataloader.mixture import Mixture
from cpplm.dataloader.token_cache import cached_tokens
from cpplm.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def plain(tokenizer: Tokenizer, tokenizer_path: Path) -> PlainEncoder:
    return PlainEncoder(str(tokenizer_path), tokenizer.hash, 64)


def shards(corpus: Path) -> tuple[list[Shard], Callable[[Shard], object]]:
    """Shards to train on, with a function that reads them."""
    return ShardReader(corpus).shards("train"), lambda shard: read_shard(Storage(corpus), shard, ["text"])


def batches(corpus: Path, encoder: PlainEncoder, **options) -> list[torch.Tensor]:
    options |= {"mixture": Mixture([1.0]), "batch_size": 4, "seq_len": 32}
    with closing(TrainLoader([ShardReader(corpus)], encoder, **options)) as loader:
        return [next(loader).inputs for _ in range(60)]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_batches_with_and_without(
    corpus: Path, plain: PlainEncoder, tmp_path: Path, workers: int
) -> None:
    expected = batches(corpus, plain)
    assert same(batches(corpus, plain, token_cache=tmp_path, workers=workers), expected)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.arrow")}
    assert len(files) == len(ShardReader(corpus).shards("train"))
    cached_tokens.cache_clear()
    assert same(batches(corpus, plain, token_cache=tmp_path), expected)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.arrow")} == files


@pytest.mark.parametrize(
    "damage", ["flip at the start", "flip in the middle", "flip at the end", "cut", "empty"]
)
def test_a_damaged_file_is_named_and_made_again(
    corpus: Path, plain: PlainEncoder, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [shard, *_], read = shards(corpus)
    expected = cached_tokens(tmp_path, shard, plain, read)
    [path] = tmp_path.glob("*.arrow")
    good = path.read_bytes()
    at = {"flip at the start": 0, "flip in the middle": len(good) // 2, "flip at the end": -1}.get(damage)
    bad = bytearray(good[: {"cut": 1000, "empty": 0}.get(damage)])
    if at is not None:
        bad[at] ^= 1
    path.unlink()  # the old one is still mapped
    path.write_bytes(bad)
    token_cache.cached_tokens.cache_clear()
    assert cached_tokens(tmp_path, shard, plain, read).ids.equals(expected.ids)
    assert f"{path} is damaged" in capsys.readouterr().err
    assert path.read_bytes() == good


def test_ids_above_16_bits_are_kept(corpus: Path, plain: PlainEncoder, tmp_path: Path) -> None:
    class Large(PlainEncoder):
        def encode(self, documents):
            return [[ids + 2**16 for ids in pieces] for pieces in super().encode(documents)]

    [_, shard, _], read = shards(corpus)
    large = Large(plain.tokenizer, plain.tokenizer_hash, plain.seq_len)
    small = cached_tokens(tmp_path / "small", shard, plain, read).ids
    found = cached_tokens(tmp_path / "large", shard, large, read).ids
    assert found.values.to_numpy().tolist() == [id_ + 2**16 for id_ in small.values.to_numpy().tolist()]
    assert small.values.to_numpy().dtype == "uint16"


def test_another_tokenizer_has_a_file_of_its_own(corpus: Path, plain: PlainEncoder, tmp_path: Path) -> None:
    [_, shard, _], read = shards(corpus)
    cached_tokens(tmp_path, shard, plain, read)
    with pytest.raises(Exception, match="replaced by another tokenizer"):
        cached_tokens(tmp_path, shard, replace(plain, tokenizer_hash="f" * 64), read)


def test_a_closed_loader_keeps_no_shards(corpus: Path, plain: PlainEncoder, tmp_path: Path) -> None:
    batches(corpus, plain, token_cache=tmp_path)
    assert cached_tokens.cache_info().currsize == 0
