"""No token lost, exact resume, honest errors."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch

from cpplm.batches.loader import LoaderState, TrainLoader, validation_batches
from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.tokenizer.special import BOS, IGNORED
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.conftest import write_corpus


def train_loader(corpus: Path, tokenizer: Tokenizer, **options) -> TrainLoader:
    return TrainLoader(ShardReader(corpus), tokenizer, **({"batch_size": 3, "seq_len": 37} | options))


def test_every_token_of_an_epoch_appears_exactly_once(corpus: Path, tokenizer: Tokenizer) -> None:
    texts = [text for _, text in ShardReader(corpus).texts("train")]
    expected = Counter(id_ for text in texts for id_ in tokenizer.encode(text, prepend=BOS))
    total = sum(expected.values())
    stream, inputs_then_targets = [], None
    loader = train_loader(corpus, tokenizer)
    while len(stream) < 2 * total:
        batch = next(loader)
        flat = batch.inputs.flatten().tolist()
        if inputs_then_targets is not None:
            assert inputs_then_targets == flat[0]  # the last target is the next input
        assert batch.targets.flatten().tolist()[:-1] == flat[1:]
        inputs_then_targets = int(batch.targets[-1, -1])
        stream += flat
    for epoch in range(2):
        part = stream[epoch * total : (epoch + 1) * total]
        assert Counter(part) == expected
    assert stream[:total] != stream[total : 2 * total]


def test_documents_arrive_whole_and_in_shuffled_order(corpus: Path, tokenizer: Tokenizer) -> None:
    texts = [text for _, text in ShardReader(corpus).texts("train")]
    total = sum(len(tokenizer.encode(text, prepend=BOS)) for text in texts)
    loader = train_loader(corpus, tokenizer, seed=5)
    stream = torch.cat([next(loader).inputs.flatten() for _ in range(total // 111 + 1)])[:total].tolist()
    starts = [i for i, id_ in enumerate(stream) if id_ == BOS] + [total]
    seen = [tokenizer.decode(stream[a + 1 : b]) for a, b in itertools.pairwise(starts)]
    assert sorted(seen) == sorted(texts)
    assert seen != texts


@pytest.mark.parametrize("stop", [1, 2, 7, 40, 90])
def test_resume_gives_the_very_batches_that_would_have_followed(
    corpus: Path, tokenizer: Tokenizer, stop: int
) -> None:
    whole = train_loader(corpus, tokenizer, seed=3)
    for _ in range(stop):
        state = next(whole).state
    again = train_loader(corpus, tokenizer, seed=3, state=LoaderState(**state.to_json()), threads=1)
    for _ in range(60):
        expected, found = next(whole), next(again)
        assert torch.equal(expected.inputs, found.inputs)
        assert torch.equal(expected.targets, found.targets)
        assert expected.state == found.state


def test_seeds_differ(corpus: Path, tokenizer: Tokenizer) -> None:
    batches = [next(train_loader(corpus, tokenizer, seed=seed)).inputs for seed in (1, 2, 1)]
    assert torch.equal(batches[0], batches[2])
    assert not torch.equal(batches[0], batches[1])


@pytest.mark.parametrize("max_tokens", [None, 100, 10_000_000])
def test_validation_covers_each_token_once(
    corpus: Path, tokenizer: Tokenizer, max_tokens: int | None
) -> None:
    reader = ShardReader(corpus)
    stream = [id_ for _, text in reader.texts("val") for id_ in tokenizer.encode(text, prepend=BOS)]
    batches = list(validation_batches(reader, tokenizer, batch_size=2, seq_len=16, max_tokens=max_tokens))
    targets = torch.cat([targets.flatten() for _, targets in batches])
    assert targets[targets != IGNORED].tolist() == stream[1:][:max_tokens]
    assert {inputs.shape for inputs, _ in batches} == {(2, 16)}


def test_no_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus = write_corpus(tmp_path / "c", {"val": [2]})
    with pytest.raises(UserError, match="no train documents"):
        next(train_loader(corpus, tokenizer))


def test_damaged_shard_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus = write_corpus(tmp_path / "c", {"train": [4], "val": [2]})
    shard = corpus / "train_00000.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(UserError, match=r"train_00000\.parquet is damaged"):
        next(train_loader(corpus, tokenizer))
