"""Shards that arrive late change nothing but the time; what is not whole is named, and waited for."""

import shutil
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import COMPLETE, MANIFEST, ShardReader
from cpplm.dataloader import sampler, streaming
from cpplm.dataloader.loader import Batch, TrainLoader
from cpplm.dataloader.loader_state import LoaderState
from cpplm.dataloader.mixture import Mixture
from cpplm.dataloader.prefetch import Prefetcher
from cpplm.dataloader.streaming import StreamingReader
from tests.dataloader.numbered import NumberedEncoder, write_numbered
from tests.dataloader.test_loader import assert_equal, small_groups  # noqa: F401  (for every test here)

LENGTHS = [[45, 31, 90, 22, 37] * 4, [44, 8, 8, 61, 23, 70, 12], [1, 150], [30] * 9]
TRAIN = [f"train_{number:05d}.parquet" for number in range(len(LENGTHS))]
VAL = "val_00000.parquet"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("finished"), LENGTHS)


def open_stream(folder: Path) -> StreamingReader:
    return StreamingReader(folder, poll_seconds=0.02)


def bring(source: Path, folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(source / name, folder / f"{name}#1")
        (folder / f"{name}#1").rename(folder / name)


def train_loader(reader: ShardReader, state: LoaderState | None = None) -> TrainLoader:
    mixture = Mixture([1.0])
    return TrainLoader([reader], NumberedEncoder(), mixture=mixture, batch_size=4, seq_len=16, state=state)


def take(loader: TrainLoader, batches: int = 60) -> list[Batch]:
    with closing(loader):
        return [next(loader) for _ in range(batches)]


@pytest.mark.parametrize("manifest", [True, False])
def test_batches_do_not_depend_on_when_shards_come(finished: Path, tmp_path: Path, manifest: bool) -> None:
    """Nor on whether a manifest describes them."""
    expected = take(train_loader(open_stream(finished)))
    assert expected[-1].state.streams[0][0].cursor.epoch > 0
    last = [MANIFEST, COMPLETE] if manifest else [COMPLETE]
    bring(finished, tmp_path, VAL, TRAIN[0])
    with closing(train_loader(open_stream(tmp_path))) as loader:
        found = [next(loader)]
        arrivals = [[TRAIN[2]], [TRAIN[1]], [TRAIN[3]], last]

        def deliver() -> None:
            for names in arrivals:
                time.sleep(0.1)
                bring(finished, tmp_path, *names)

        thread = threading.Thread(target=deliver)
        thread.start()
        found += [next(loader) for _ in range(59)]
        thread.join()
    assert_equal(found, expected)
    state = found[9].state
    assert_equal(take(train_loader(open_stream(tmp_path), state), 50), expected[10:])


def test_the_first_epoch_is_in_the_order_of_numbers_and_later_ones_are_not(finished: Path) -> None:
    stream = sampler.EpochShuffler(open_stream(finished), 2)
    numbers: dict[int, list[int]] = {}
    for step in range(150):
        group = stream.group_at(stream.advance(sampler.StreamCursor(), step))
        numbers.setdefault(group.epoch, []).append(group.number)
    assert numbers[0] == sorted(numbers[0])
    assert set(numbers[0]) == set(range(len(LENGTHS)))
    assert any(later != sorted(later) for later in list(numbers.values())[1:-1])


@pytest.mark.parametrize("damage", ["half", "hole", "empty"])
def test_what_is_not_whole_is_named_and_waited_for(
    finished: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`hole`: the end is there, something before it is not yet, as in a download of several parts."""
    bring(finished, tmp_path, VAL, TRAIN[0], *TRAIN[2:])
    data = (finished / TRAIN[1]).read_bytes()
    hole = data[:4] + bytes(80) + data[84:]
    (tmp_path / TRAIN[1]).write_bytes({"half": data[: len(data) // 2], "hole": hole, "empty": b""}[damage])
    loader = train_loader(open_stream(tmp_path))
    with closing(Prefetcher(loader, depth=100)) as batches, closing(loader):
        deadline = time.monotonic() + 20
        while "waiting for" not in (said := capsys.readouterr().err):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert f"{tmp_path / TRAIN[1]}, which cannot be read" in said
        time.sleep(0.1)
        assert "waiting for" not in capsys.readouterr().err  # said once
        bring(finished, tmp_path, TRAIN[1], COMPLETE)
        found = [next(batches) for _ in range(60)]
    assert_equal(found, take(train_loader(open_stream(finished))))


def test_the_reminder_comes_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streaming, "_REMIND_SECONDS", 0.01)
    bring(finished, tmp_path, VAL, TRAIN[0])
    stream = open_stream(tmp_path)
    assert stream.train_shard(1) is None
    for _ in range(2):
        stream.wait(threading.Event())
    assert capsys.readouterr().err.count(f"{TRAIN[1]}, which is missing") == 2


@pytest.mark.parametrize("problem", [TRAIN[1], VAL, "damage"])
@pytest.mark.parametrize("manifest", [True, False])
def test_missing_or_damaged_for_good_is_an_error(
    finished: Path, tmp_path: Path, problem: str, manifest: bool
) -> None:
    bring(finished, tmp_path, *({VAL, *TRAIN} - {problem}), COMPLETE, *([MANIFEST] if manifest else []))
    if problem == "damage":
        (tmp_path / TRAIN[1]).write_bytes((finished / TRAIN[1]).read_bytes()[:200])
    with pytest.raises(UserError, match=VAL if problem == VAL else TRAIN[1]):
        take(train_loader(open_stream(tmp_path)))


def test_a_shard_that_the_manifest_does_not_describe_is_an_error(finished: Path, tmp_path: Path) -> None:
    other = write_numbered(tmp_path / "other", [[3, 4], *LENGTHS[1:]])
    bring(finished, tmp_path / "in", VAL, TRAIN[0])
    stream = open_stream(tmp_path / "in")
    bring(other, tmp_path / "in", MANIFEST, *TRAIN[1:], COMPLETE)
    time.sleep(0.03)
    with pytest.raises(UserError, match=r"train_00000\.parquet is not the file that manifest"):
        stream.num_train_shards()


def test_closing_ends_the_waiting(finished: Path, tmp_path: Path) -> None:
    bring(finished, tmp_path, VAL, TRAIN[0])
    loader = train_loader(StreamingReader(tmp_path, poll_seconds=60))
    batches = Prefetcher(loader, depth=100)
    next(batches)
    begin = time.monotonic()
    loader.close()
    batches.close()
    assert time.monotonic() - begin < 4
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_the_fingerprint_does_not_change_while_shards_come(finished: Path, tmp_path: Path) -> None:
    bring(finished, tmp_path, VAL, TRAIN[0])
    early = open_stream(tmp_path).fingerprint()
    bring(finished, tmp_path, *TRAIN, MANIFEST, COMPLETE)
    assert open_stream(tmp_path).fingerprint() == early != ShardReader(tmp_path).fingerprint()
