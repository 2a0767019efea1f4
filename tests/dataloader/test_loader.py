"""No token lost, exact resume with any ranks and workers, honest errors."""

import json
import multiprocessing
import os
import signal
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.dataloader import sampler
from cpplm.dataloader.encoding import PlainEncoder
from cpplm.dataloader.loader import Batch, TrainLoader, reshape_to_seq_len, validation_batches
from cpplm.dataloader.loader_state import NUM_STREAMS, LoaderState
from cpplm.dataloader.mixture import Mixture
from cpplm.dataloader.prefetch import Prefetcher
from cpplm.dataloader.sampler import GROUP_BYTES
from cpplm.tokenizer.special_tokens import BOS, IGNORE_INDEX
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.conftest import write_corpus
from tests.dataloader.numbered import NumberedEncoder, token_id, where, write_numbered

LENGTHS = [[5, 31, 90, 2, 17], [44, 8, 8, 61, 23, 70, 12], [1, 150]]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group holds two or three of the numbered documents."""
    monkeypatch.setattr(sampler, "GROUP_BYTES", 12)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("numbered"), LENGTHS)


def train_loader(*corpora: Path, **options) -> TrainLoader:
    even = Mixture([1.0] * len(corpora))
    defaults = {"batch_size": 3, "seq_len": 16, "encoder": NumberedEncoder(), "mixture": even}
    return TrainLoader([ShardReader(corpus) for corpus in corpora], **(defaults | options))


def take(loader: TrainLoader, batches: int) -> list[Batch]:
    with closing(loader):
        return [next(loader) for _ in range(batches)]


def stored(state: LoaderState) -> LoaderState:
    """As a checkpoint keeps it."""
    return LoaderState.from_json(json.loads(json.dumps(state.to_json())))


def assert_equal(found: list[Batch], expected: list[Batch]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
        assert one.state == other.state


lengths = st.lists(st.lists(st.integers(1, 70), max_size=8), min_size=1, max_size=3).filter(any)


@settings(max_examples=20)
@given(lengths, st.integers(2, 40), st.booleans(), st.integers(0, 3))
def test_each_token_is_an_input_once_and_followed_by_its_target(
    shards: list[list[int]], seq_len: int, halves: bool, seed: int
) -> None:
    """Of epoch 0: what the loader has passed is either seen or still carried along."""
    lengths = dict(enumerate(length for shard in shards for length in shard))
    ends = {(number, length - 1) for number, length in lengths.items()}
    if halves:
        ends |= {(number, (length + 1) // 2 - 1) for number, length in lengths.items()}
    seen: Counter[tuple[int, int, int]] = Counter()
    with TemporaryDirectory() as folder:
        corpus = write_numbered(Path(folder), shards)
        options = {"encoder": NumberedEncoder(halves), "seq_len": seq_len, "seed": seed}
        with closing(train_loader(corpus, batch_size=1, **options)) as loader:
            past_first_epoch = False
            while not past_first_epoch:
                batch = next(loader)
                for input_id, target in zip(batch.inputs[0].tolist(), batch.targets[0].tolist(), strict=True):
                    seen[where(input_id)] += 1
                    epoch, number, token = where(input_id)
                    assert target == (BOS if (number, token) in ends else token_id(epoch, number, token + 1))
                states = [state for [state] in batch.state.streams.values()]
                past_first_epoch = all(state is not None and state.cursor.epoch > 0 for state in states)
    assert set(seen.values()) == {1}
    missing = {(0, n, i) for n, length in lengths.items() for i in range(length)} - set(seen)
    firsts = [sum(map(len, shards[:number])) for number in range(len(shards))]
    carried = {(r.epoch, firsts[r.shard] + r.document) for state in states for r in state.carry}
    assert {place[:2] for place in missing} <= carried


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("seq_len", [5, 16, 64])
def test_resume_at_any_row_gives_the_very_batches_that_would_have_followed(
    numbered: Path, seq_len: int, halves: bool
) -> None:
    options = {"batch_size": 1, "seq_len": seq_len, "encoder": NumberedEncoder(halves), "seed": 3}
    whole = take(train_loader(numbered, **options), 90)
    for stop in (*range(1, 60, 11), *range(16, 19)):
        state = stored(whole[stop - 1].state)
        assert_equal(take(train_loader(numbered, state=state, **options), 30), whole[stop : stop + 30])


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 16, 32])
def test_any_number_of_ranks_reads_the_same_rows(numbered: Path, num_ranks: int) -> None:
    """Also when the number changes in between."""
    expected = take(train_loader(numbered, batch_size=96), 4)
    state = LoaderState()
    for step, ranks in enumerate([num_ranks, num_ranks, 2, num_ranks]):
        parts = []
        for rank in range(ranks):
            options = {"batch_size": 96 // ranks, "rank": rank, "num_ranks": ranks, "state": stored(state)}
            parts += take(train_loader(numbered, **options), 1)
        inputs = torch.stack([part.inputs for part in parts], dim=1).flatten(0, 1)
        assert torch.equal(inputs, expected[step].inputs)
        state = LoaderState.merge(part.state for part in parts)
        assert state == expected[step].state


def test_a_rank_reads_only_the_streams_of_its_rows(numbered: Path) -> None:
    [batch] = take(train_loader(numbered, rank=3, num_ranks=8), 1)
    assert sorted(batch.state.streams) == [3, 11]
    with pytest.raises(UserError, match="2 of 16 streams"):
        train_loader(numbered, state=batch.state)


# The start of worker processes takes most of the time of the tests with workers.
@pytest.mark.parametrize(
    ("workers", "begin"), [(1, 20), *(pytest.param(3, begin, marks=pytest.mark.slow) for begin in (0, 40))]
)
def test_workers_change_nothing(numbered: Path, workers: int, begin: int) -> None:
    """Behind a saved position, too."""
    expected = take(train_loader(numbered, document_mask=True), 60)
    state = stored(expected[begin - 1].state) if begin else LoaderState()
    loader = train_loader(numbered, document_mask=True, workers=workers, state=state)
    assert_equal(take(loader, 60 - begin), expected[begin:])


def test_a_killed_worker_is_an_error_not_a_hang(numbered: Path) -> None:
    with closing(train_loader(numbered, workers=1)) as loader:
        next(loader)
        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(UserError, match="was killed"):
            for _ in range(10_000):
                next(loader)


def test_an_error_in_a_thread_reaches_the_step(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, {"train": [3], "val": [1]})  # real text: no numbers in it
    loader = train_loader(corpus)
    with closing(loader), closing(Prefetcher(loader)) as batches, pytest.raises(ValueError, match="invalid"):
        next(batches)


def test_closing_ends_threads_and_processes(numbered: Path) -> None:
    """Which have given the batches of a run from its beginning."""
    before = set(psutil.Process().children(recursive=True))
    expected = take(train_loader(numbered), 5)
    for workers in (0, 1):
        loader = train_loader(numbered, workers=workers)
        batches = Prefetcher(loader)
        assert_equal([next(batches) for _ in range(5)], expected)
        loader.close()
        batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("packing", "prefetch"))]
    now = set(psutil.Process().children(recursive=True)) - before
    assert not [child for child in now if "spawn_main" in " ".join(child.cmdline())]


def test_seeds_differ(numbered: Path) -> None:
    one, two, again = (take(train_loader(numbered, seed=seed), 1)[0].inputs for seed in (1, 2, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)


def test_documents_of_a_row_are_numbered(numbered: Path) -> None:
    for batch in take(train_loader(numbered, document_mask=True, seq_len=64), 40):
        assert batch.documents is not None and batch.documents.dtype == torch.int64
        for inputs, documents in zip(batch.inputs.tolist(), batch.documents.tolist(), strict=True):
            assert documents[0] == 0
            for i in range(1, 64):
                epoch, number, token = where(inputs[i])
                follows = where(inputs[i - 1]) == (epoch, number, token - 1)
                assert documents[i] - documents[i - 1] == (not follows)


def test_shorter_rows_have_the_same_tokens(numbered: Path) -> None:
    batch = take(train_loader(numbered, document_mask=True, seq_len=64), 1)[0]
    short = reshape_to_seq_len(batch, 16)
    assert short.inputs.shape == (12, 16)
    assert torch.equal(short.inputs.flatten(), batch.inputs.flatten())
    assert torch.equal(short.targets.flatten(), batch.targets.flatten())
    assert short.documents is not None and batch.documents is not None
    assert short.documents[:, 0].tolist() == [0] * 12
    assert torch.equal(short.documents.diff(), batch.documents.reshape(12, 16).diff())
    assert short.state == batch.state
    with pytest.raises(ValueError, match="rows of 64 tokens"):
        reshape_to_seq_len(batch, 24)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_batches_are_the_same(numbered: Path) -> None:
    found = take(train_loader(numbered, document_mask=True, pin=True), 3)
    for batch in found:
        assert batch.inputs.is_pinned() and batch.targets.is_pinned() and batch.documents.is_pinned()
    assert_equal(found, take(train_loader(numbered, document_mask=True), 3))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Documents below 50 in one data set, from 50 on in the other."""
    folder = tmp_path_factory.mktemp("two")
    return [write_numbered(folder / "a", LENGTHS), write_numbered(folder / "b", LENGTHS, first=50)]


def test_mixtures_keep_their_weights_and_resume(two: list[Path]) -> None:
    sources = [ShardReader(corpus) for corpus in two]
    options = {"batch_size": 8, "seq_len": 8, "mixture": Mixture([3, 1], [1, 3], late_from_row=8 * 40)}
    whole = take(TrainLoader(sources, NumberedEncoder(), **options), 80)
    shares = [
        sum(where(id_)[1] >= 50 for batch in half for id_ in batch.inputs[:, 0].tolist()) / 320
        for half in (whole[:40], whole[40:])
    ]
    assert shares == pytest.approx([0.25, 0.75], abs=0.03)
    for stop in (1, 39, 40, 57):
        again = TrainLoader(sources, NumberedEncoder(), state=stored(whole[stop - 1].state), **options)
        assert_equal(take(again, 20), whole[stop : stop + 20])


def test_the_parts_of_a_mixture_are_what_each_is_alone(two: list[Path]) -> None:
    """Per stream, the rows of a data set are those of a run on it alone."""
    mixed: dict[tuple[int, bool], list[list[int]]] = {}
    loader = train_loader(*two, mixture=Mixture([2, 1]), batch_size=NUM_STREAMS, seq_len=8)
    for batch in take(loader, 60):
        for stream, row in enumerate(batch.inputs.tolist()):
            mixed.setdefault((stream, where(row[0])[1] >= 50), []).append(row)
    for second, corpus in enumerate(two):
        alone = take(train_loader(corpus, batch_size=NUM_STREAMS, seq_len=8), 60)
        for stream in range(NUM_STREAMS):
            found = mixed[stream, bool(second)]
            assert found == [batch.inputs[stream].tolist() for batch in alone][: len(found)]


def test_settings_that_do_not_fit_are_refused(numbered: Path) -> None:
    state = take(train_loader(numbered), 1)[0].state
    for options in ({"seq_len": 32}, {"seed": 9}):
        with pytest.raises(UserError, match="saved position is of rows of 16 tokens, seed 0"):
            train_loader(numbered, state=state, **options)
    with pytest.raises(UserError, match="1 data sets; asked for are 16, 0 and 2"):
        train_loader(numbered, numbered, state=state)
    with pytest.raises(UserError, match="token cache"):
        train_loader(numbered, token_cache=numbered / "cache")


def test_no_documents(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no train documents"):
        train_loader(write_numbered(tmp_path, [[], []]))


@pytest.fixture
def plain(tokenizer: Tokenizer, tokenizer_path: Path) -> PlainEncoder:
    return PlainEncoder(str(tokenizer_path), tokenizer.hash, 64)


def test_rows_of_real_text_are_pieces_of_documents_most_of_them_whole(
    corpus: Path, tokenizer: Tokenizer, plain: PlainEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "GROUP_BYTES", GROUP_BYTES)
    texts = {text for _, text in ShardReader(corpus).texts("train")}
    found: set[str] = set()
    for batch in take(train_loader(corpus, encoder=plain, seq_len=800, document_mask=True), 100):
        for ids, documents in zip(batch.inputs, batch.documents, strict=True):
            for number in documents.unique():
                piece = ids[documents == number].tolist()
                found.add(tokenizer.decode(piece[piece[0] == BOS :]))
    assert len(texts & found) > 0.95 * len(texts)
    assert all(any(piece in text for text in texts) for piece in found)


def test_damaged_shard_is_named(tmp_path: Path, plain: PlainEncoder) -> None:
    """By the process that has read it, behind the thread that is ahead of the step."""
    corpus = write_corpus(tmp_path / "c", {"train": [4], "val": [2]})
    shard = corpus / "train_00000.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    for workers in (0, 1):
        loader = train_loader(corpus, encoder=plain, workers=workers)
        error = pytest.raises(UserError, match=r"train_00000\.parquet is damaged")
        with closing(loader), closing(Prefetcher(loader)) as batches, error:
            next(batches)


@pytest.mark.parametrize("max_tokens", [None, 100, 10_000_000])
def test_validation_covers_each_token_once(
    corpus: Path, tokenizer: Tokenizer, max_tokens: int | None
) -> None:
    reader = ShardReader(corpus)
    stream = [id_ for _, text in reader.texts("val") for id_ in tokenizer.encode(text, prepend=BOS)]
    batches = list(validation_batches(reader, tokenizer, batch_size=2, seq_len=16, max_tokens=max_tokens))
    targets = torch.cat([targets.flatten() for _, targets in batches])
    assert targets[targets != IGNORE_INDEX].tolist() == stream[1:][:max_tokens]
    assert {inputs.shape for inputs, _ in batches} == {(2, 16)}
