"""No token lost, exact resume, honest errors."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from cpplm.batches.loader import LANES, LoaderState, TrainLoader, validation_batches
from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.tokenizer.special import BOS, IGNORED
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.conftest import write_corpus


def train_loader(corpus: Path, tokenizer: Tokenizer, **options) -> TrainLoader:
    return TrainLoader(ShardReader(corpus), tokenizer, **({"batch_size": 3, "seq_len": 37} | options))


def lane_documents(loader: TrainLoader, batches: int) -> list[list[list[int]]]:
    """Per lane, the documents that it has read to the end, as token ids without <BOS>."""
    streams: list[list[int]] = [[] for _ in range(LANES)]
    last_target: list[int | None] = [None] * LANES
    row = 0
    for _ in range(batches):
        batch = next(loader)
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            lane = row % LANES
            assert targets[:-1] == inputs[1:]
            assert last_target[lane] in (None, inputs[0])  # the last target is the lane's next input
            last_target[lane] = targets[-1]
            streams[lane] += inputs
            row += 1
    result = []
    for stream in streams:
        starts = [i for i, id_ in enumerate(stream) if id_ == BOS]
        assert starts[0] == 0
        result.append([stream[a + 1 : b] for a, b in itertools.pairwise(starts)])
    return result


def test_every_document_once_per_epoch_whole_and_shuffled(corpus: Path, tokenizer: Tokenizer) -> None:
    texts = [text for _, text in ShardReader(corpus).texts("train")]
    lanes = lane_documents(train_loader(corpus, tokenizer, seed=5), 1500)
    counts = Counter(tokenizer.decode(ids) for lane in lanes for ids in lane)
    epochs = sum(counts.values()) / len(texts)
    assert set(counts) == set(texts)
    # Open documents are in no count yet, and while a long one keeps its lane the others go on.
    lengths = [len(tokenizer.encode(text)) for text in texts]
    assert epochs > 3
    longest = max(lengths) / (sum(lengths) / len(lengths))
    assert max(counts.values()) - min(counts.values()) <= 2 + LANES / len(texts) * longest
    first = [tokenizer.decode(lane[0]) for lane in lanes]
    assert len(set(first)) == LANES  # all lanes began with different documents
    assert first != texts[:LANES]


def test_no_token_is_lost_between_rows_and_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """With exactly one document per lane, the first epoch can be followed token by token."""
    reader = ShardReader(write_corpus(tmp_path / "c", {"train": [LANES], "val": [1]}))
    expected = Counter(tokenizer.encode(text, prepend=BOS).__len__() for _, text in reader.texts("train"))
    lanes = lane_documents(TrainLoader(reader, tokenizer, batch_size=LANES, seq_len=64), 60)
    assert Counter(len(lane[0]) + 1 for lane in lanes) == expected


def test_neighbouring_rows_come_from_different_documents(corpus: Path, tokenizer: Tokenizer) -> None:
    loader = train_loader(corpus, tokenizer, batch_size=16, seq_len=24)
    for _ in range(30):
        state = next(loader).state
    assert len({position for position, _ in state.lanes}) == LANES


@pytest.mark.parametrize("stop", [1, 2, 7, 40, 90])
def test_resume_gives_the_very_batches_that_would_have_followed(
    corpus: Path, tokenizer: Tokenizer, stop: int
) -> None:
    whole = train_loader(corpus, tokenizer, seed=3)
    for _ in range(stop):
        state = next(whole).state
    again = train_loader(
        corpus,
        tokenizer,
        seed=3,
        state=LoaderState.from_json(json.loads(json.dumps(state.to_json()))),
        threads=1,
    )
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
