"""What is written is what was given; all of it or nothing; old ones go by the rules."""

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import safetensors.torch
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.train.checkpoint.format import Checkpoint, committed_steps, open_checkpoint
from cpplm.train.checkpoint.save import (
    RankShard,
    RetentionPolicy,
    copy_checkpoint,
    count_files,
    prune,
    write_checkpoint,
)
from cpplm.train.checkpoint.weights import load_tensors
from tests.object_store import object_store
from tests.train.checkpoints import FILES, assert_all_whole, assert_whole, files_below, save, tensors

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


# ---- contents ---------------------------------------------------------------------------------------------


def test_every_dtype_and_shape_as_the_library_reads_it(storage: Storage) -> None:
    given_tensors = {
        f"{dtype}/{shape}": torch.randint(0, 2, shape).to(dtype)
        for dtype in DTYPES
        for shape in ((), (1,), (0,), (3, 5), (2, 0, 4))
    }
    given_tensors["transposed"] = torch.arange(6.0).view(2, 3).t()
    given_tensors['ä " \\ name'] = torch.arange(3.0)
    write_checkpoint(storage, 1, {"model.safetensors": given_tensors}, {})
    path = Path(storage.location, "step_000001", "model.safetensors")
    for read in (
        load_tensors(open_checkpoint(storage), "model.safetensors"),
        safetensors.torch.load_file(path),
    ):
        assert set(read) == set(given_tensors)
        for name, tensor in given_tensors.items():
            assert read[name].dtype == tensor.dtype
            assert read[name].shape == tensor.shape
            assert torch.equal(read[name].double(), tensor.double()), name


MEMORY = """
import resource, sys, torch
from cpplm.core.storage import Storage
from cpplm.train.checkpoint.save import write_checkpoint
tensors = {str(i): torch.ones(25_000_000) for i in range(4)}
storage = Storage(sys.argv[1], create=True)
write_checkpoint(storage, 1, {"model.safetensors": {"0": torch.ones(1)}}, {})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_checkpoint(storage, 2, {"model.safetensors": tensors}, {})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_writing_takes_no_second_copy(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert Storage(tmp_path).exists("step_000002/manifest.json")
    assert int(result.stdout) * 1024 < 200e6  # of 400 MB


# ---- all or nothing ---------------------------------------------------------------------------------------


class Stopped(BaseException):
    """As a kill: nothing catches it, and what is done on the way out fails as well."""


@contextlib.contextmanager
def stopped_after(storage: Storage, changes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """From the next change to this storage on, all of them fail."""
    left = changes

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(this: Storage, *arguments: object) -> object:
            nonlocal left
            left -= this is storage
            if left < 0:
                raise Stopped
            return real(this, *arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("open_write", "write", "delete", "sync"):
            patch.setattr(Storage, name, counted(getattr(Storage, name)))
        yield


@pytest.mark.parametrize("copied", [False, True])
def test_stopped_before_any_change_what_is_there_is_whole(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    source = Storage(tmp_path / "source", create=True)
    save(source, 2)
    seen = set()
    for changes in itertools.count():
        storage.delete(storage.list_names())
        save(storage, 1)
        with contextlib.suppress(Stopped), stopped_after(storage, changes, monkeypatch):
            if copied:
                copy_checkpoint(open_checkpoint(source), storage)
            else:
                save(storage, 2)
            prune(storage, RetentionPolicy(1))
            break
        assert_all_whole(storage)
        seen.add(tuple(committed_steps(storage)))
    assert committed_steps(storage) == [2]
    assert seen == {(1,), (1, 2)}
    assert changes > len(FILES) + 4


def test_a_failed_write_leaves_nothing_of_its_step(storage: Storage, tmp_path: Path) -> None:
    save(storage, 1)
    before = files_below(tmp_path)
    Path(storage.location, "step_000002").mkdir()
    Path(storage.location, "step_000002", "config.json").mkdir()  # cannot be replaced by a file
    with pytest.raises(UserError, match=r"cannot write .*config\.json"):
        save(storage, 2)
    assert files_below(tmp_path) == before
    assert_whole(open_checkpoint(storage))


def test_through_a_bucket_and_back(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a file of several parts on the way."""
    large = tensors(4, size=6_000_000)
    write_checkpoint(storage, 4, large, FILES)
    with object_store(monkeypatch) as store:
        bucket = Storage("s3://bucket/run")
        copy_checkpoint(open_checkpoint(storage), bucket)
        assert store.completed[-1] == "run/step_000004/manifest.json"
        back = Storage(tmp_path / "back", create=True)
        copy_checkpoint(open_checkpoint(bucket), back)
        prune(bucket, RetentionPolicy(1))
        assert_all_whole(bucket)
        assert committed_steps(bucket) == [4]
    assert_all_whole(back)
    for name in storage.list_names():
        assert back.read(name) == storage.read(name)


# ---- what stays -------------------------------------------------------------------------------------------


def test_what_no_rule_keeps_goes(storage: Storage, tmp_path: Path) -> None:
    save(storage, 10, 200, 30, 1_000_000, 300)
    storage.write("step_000250/model.safetensors", b"never finished")
    (tmp_path / "checkpoints" / "step_000200" / "model.safetensors#1").write_bytes(b"half of one")
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    prune(storage, RetentionPolicy(1, every=100), also=[10])
    assert committed_steps(storage) == [10, 200, 300, 1_000_000]
    folders = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert folders == ["notes.txt", "step_000010", "step_000200", "step_000300", "step_1000000"]
    assert not any("#" in name for name in files_below(tmp_path))
    assert_all_whole(storage)


# ---- by several processes ---------------------------------------------------------------------------------


def write_together(
    storage: Storage, step: int, shares: list[dict[str, Tensor]], *, most: int = 100, token: str = "one"
) -> list[Future[Checkpoint]]:
    """Each share by a thread, the first one last, all begun at once."""
    groups: list[dict[str, dict[str, Tensor]]] = [{"model.safetensors": shard} for shard in shares]
    limited = mock.patch("cpplm.train.checkpoint.save.MAX_FILE_BYTES", most)
    with limited, ThreadPoolExecutor(len(shares)) as threads:
        counts = [count_files(group) for group in groups]
        return [
            threads.submit(
                write_checkpoint,
                storage,
                step,
                groups[process],
                FILES if process == 0 else {},
                shard=RankShard(process, counts, token),
            )
            for process in reversed(range(len(shares)))
        ][::-1]


@example(sizes=[[]], most=1)
@given(
    sizes=st.lists(st.lists(st.integers(0, 40), max_size=8), min_size=1, max_size=4), most=st.integers(1, 50)
)
def test_shares_are_one_checkpoint_in_files_that_stay_small(sizes: list[list[int]], most: int) -> None:
    storage = Storage("memory://")
    shares = [
        {
            f"t{process}/{index}": torch.full((size,), index, dtype=torch.uint8)
            for index, size in enumerate(own)
        }
        for process, own in enumerate(sizes)
    ]
    first, *others = write_together(storage, 1, shares, most=most)
    checkpoint = open_checkpoint(storage)
    assert first.result() == checkpoint
    assert all(future.result().files.items() <= checkpoint.files.items() for future in others)
    read = load_tensors(checkpoint, "model.safetensors")
    assert read.keys() == {name for shard in shares for name in shard}
    assert all(torch.equal(read[name], tensor) for shard in shares for name, tensor in shard.items())
    parts = sorted(name for name in checkpoint.files if name.endswith(".safetensors"))
    assert parts in (
        ["model.safetensors"],
        [f"model-{n:05d}-of-{len(parts):05d}.safetensors" for n in range(1, len(parts) + 1)],
    )
    for part in parts:
        inside = safetensors.torch.load(checkpoint.read(part)).values()
        assert sum(tensor.nbytes for tensor in inside) <= most or len(inside) == 1
    assert len(storage.list_names()) == len(checkpoint.files) + 1  # and the manifest: no reports


def test_nothing_is_committed_when_one_share_fails(storage: Storage) -> None:
    save(storage, 1)
    folder = Path(storage.location, "step_000002")
    (folder / "model-00002-of-00003.safetensors").mkdir(parents=True)
    shares = [{f"w{process}": torch.zeros(4)} for process in range(3)]
    first, second, third = write_together(storage, 2, shares)
    with pytest.raises(UserError, match=r"process 1: cannot write .*model-00002"):
        first.result()
    with pytest.raises(UserError, match=r"cannot write .*model-00002"):
        second.result()
    assert list(third.result().files) == ["model-00003-of-00003.safetensors"]
    assert committed_steps(storage) == [1]
    assert_all_whole(storage)


def test_reports_of_an_earlier_attempt_are_not_believed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpplm.train.checkpoint.save.PATIENCE", 0.3)
    shares = [{f"w{process}": torch.zeros(4)} for process in range(2)]
    counts = [count_files({"model.safetensors": shard}) for shard in shares]
    write_checkpoint(storage, 1, {"model.safetensors": shares[1]}, {}, shard=RankShard(1, counts, "earlier"))
    with pytest.raises(UserError, match="process 1 has not written its share"):
        write_checkpoint(
            storage, 1, {"model.safetensors": shares[0]}, FILES, shard=RankShard(0, counts, "later")
        )
    assert committed_steps(storage) == []
    prune(storage, RetentionPolicy(1))
    assert storage.list_names() == []
