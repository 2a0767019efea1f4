import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage, split_step


@pytest.fixture(params=["folder", "bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A local folder, and what obstore offers with the semantics of a bucket."""
    storage = Storage(tmp_path / "root", create=True)
    if request.param == "bucket":
        storage._store = MemoryStore()
    return storage


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("runs/demo", ("runs/demo", None)), ("runs/demo:200", ("runs/demo", 200)), ("a:b", ("a:b", None)),
        (":3", (":3", None)), ("s3://bucket/run", ("s3://bucket/run", None)), ("s3://4", ("s3://4", None)),
        ("s3://bucket/run:7", ("s3://bucket/run", 7)),
    ],
)  # fmt: skip
def test_a_run_and_its_step(run: str, expected: tuple[str, int | None]) -> None:
    assert split_step(run) == expected


# ---- objects ----------------------------------------------------------------------------------------------


def test_write_read_overwrite_delete(storage: Storage) -> None:
    storage.write("a/b.txt", b"first")
    assert storage.exists("a/b.txt")
    assert storage.read("a/b.txt") == b"first"
    storage.write("a/b.txt", b"")
    assert storage.read("a/b.txt") == b""
    for what in ("a", "gone"):  # a folder is no object
        assert not storage.exists(what)
        with pytest.raises(UserError, match=rf"(no such file: |cannot read ).*/{what}"):
            storage.read(what)
    storage.delete(["a/b.txt", "a/b.txt", "gone"])
    assert not storage.exists("a/b.txt")
    assert storage.list_names() == []


def test_listing_is_sorted_and_by_whole_folders(storage: Storage) -> None:
    for name in ("b", "step_10/x", "step_1/y", "step_1/x/z"):
        storage.write(name, b"1")
    assert storage.list_names() == ["b", "step_1/x/z", "step_1/y", "step_10/x"]
    assert storage.list_names("step_1") == ["step_1/x/z", "step_1/y"]
    assert storage.list_names("nothing") == []


@pytest.mark.parametrize(
    "name", ["a b", "x%20y", "ä/ü.json", "[x]*?", "c:d", ".hidden", "t#1.json", "'q\"", "~"]
)
def test_odd_names_are_kept_as_they_are(name: str, storage: Storage, tmp_path: Path) -> None:
    storage.write(name, b"odd")
    assert storage.read(name) == b"odd"
    assert storage.list_names() == [name]
    if not isinstance(storage._store, MemoryStore):
        assert files_below(tmp_path / "root") == [name]


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "a//b", "line\nbreak"])
def test_names_that_cannot_be_are_user_errors(name: str, storage: Storage, tmp_path: Path) -> None:
    for call in (storage.read, storage.exists, storage.list_names):
        with pytest.raises(UserError):
            call(name)
    with pytest.raises(UserError, match="cannot write"):
        storage.write(name, b"1")
    assert files_below(tmp_path) == []


def test_json_round_trip_is_sorted_and_equal_for_equal_values(storage: Storage) -> None:
    storage.write_json("a.json", {"b": [1, 2.5, None], "a": "ä\n"})
    storage.write_json("b.json", {"a": "ä\n", "b": [1, 2.5, None]})
    assert storage.read_json("a.json") == {"a": "ä\n", "b": [1, 2.5, None]}
    assert storage.read("a.json") == storage.read("b.json")


@pytest.mark.parametrize("data", [b"", b'{"a": ', b"\xff\xfe"])
def test_damaged_json_is_named(data: bytes, storage: Storage) -> None:
    storage.write("a.json", data)
    with pytest.raises(UserError, match=r"/a\.json is not valid JSON"):
        storage.read_json("a.json")


# ---- roots ------------------------------------------------------------------------------------------------


def test_a_missing_folder_is_named_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=f"no such folder: {tmp_path / 'gone'}"):
        Storage(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
    monkeypatch.setenv("HOME", str(tmp_path))
    Storage("~/new/folder", create=True).write("x", b"1")
    assert files_below(tmp_path) == ["new/folder/x"]


def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for create in (False, True):
        for location in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(UserError, match="file"):
                Storage(location, create=create)


@pytest.mark.parametrize("url", ["nonsense://x", "s3://", "az://container/without/account"])
def test_unusable_urls_are_refused_in_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(UserError, match=f"cannot use {url}") as caught:
        Storage(url)
    assert "\n" not in str(caught.value)


def test_a_bucket_without_credentials_fails_fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without credentials obstore asks the machine's metadata service; here nothing answers on that port."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    storage = Storage("s3://no-such-bucket/run")
    begin = time.perf_counter()
    calls: dict[str, Any] = {
        "look up": storage.exists,
        "read": storage.read,
        "list": storage.list_names,
        "write": lambda name: storage.write(name, b"1"),
    }
    for action, call in calls.items():
        with pytest.raises(UserError, match=f"cannot {action} s3://no-such-bucket/run/x") as caught:
            call("x")
        assert "\n" not in str(caught.value)
    assert time.perf_counter() - begin < 12


# ---- atomic writes ----------------------------------------------------------------------------------------


def test_a_reader_never_sees_half(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    versions = [bytes([number]) * 3_000_000 for number in range(6)]
    storage.write("object", versions[0])
    done = threading.Event()

    def overwrite() -> None:
        for _ in range(5):
            for version in versions:
                storage.write("object", version)
        done.set()

    writer = threading.Thread(target=overwrite)
    writer.start()
    seen: set[bytes] = set()
    while not done.is_set():
        data = (tmp_path / "object").read_bytes()
        assert len(data) == len(versions[0])
        assert data == bytes([data[0]]) * len(data)
        seen.add(data[:1])
        assert storage.list_names() == ["object"]
    writer.join()
    assert len(seen) > 1  # the reader did run beside the writer
    assert files_below(tmp_path) == ["object"]


FULL_DISK = """
import resource, sys
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage, split_step
storage = Storage(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for name in ("old", "new", "folder/new"):
    try:
        storage.write(name, b"x" * 3_000_000)
    except UserError as error:
        print(error)
"""


def test_a_full_disk_leaves_the_old_object_and_nothing_new(tmp_path: Path) -> None:
    Storage(tmp_path).write("old", b"old")
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"cannot write {tmp_path}/{name} (3,000,000 bytes)" for name in ("old", "new", "folder/new")
    ]
    assert all("Free some space" in line for line in lines)
    assert files_below(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"old"


def test_no_file_in_the_place_of_a_folder_nor_below_a_file(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.write("file", b"1")
    with pytest.raises(UserError, match=r"cannot write .*/file/below .*Not a directory"):
        storage.write("file/below", b"2")
    with pytest.raises(UserError, match="cannot write"):
        storage.write("file/below/that", b"2")
    assert storage.read("file") == b"1"
    storage.write("folder/inside", b"1")
    with pytest.raises(UserError, match="cannot write"):
        storage.write("folder", b"2")
    assert files_below(tmp_path) == ["file", "folder/inside"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match=r"cannot write .*permissions"):
            storage.write("x", b"1")
    finally:
        tmp_path.chmod(0o700)
    assert files_below(tmp_path) == []


def test_what_a_killed_writer_left_is_not_listed(tmp_path: Path) -> None:
    """The store writes to NAME#1 and renames; a kill between the two leaves only that."""
    (tmp_path / "object#1").write_bytes(b"half")
    storage = Storage(tmp_path)
    assert storage.list_names() == []
    assert not storage.exists("object")
    storage.write("object", b"whole")
    assert storage.list_names() == ["object"]
    assert storage.read("object") == b"whole"


def test_a_file_written_piece_by_piece_appears_when_it_is_whole(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    pieces = [bytes([number]) * 3_000_000 for number in range(8)]
    with storage.open_write("folder/large") as file:
        for piece in pieces:
            file.write(piece)
        assert storage.list_names() == []
    assert storage.read("folder/large") == b"".join(pieces)
    assert files_below(tmp_path) == ["folder/large"]


@pytest.mark.parametrize("size", [10, 20_000_000])
def test_nothing_stays_of_a_file_whose_writer_failed(tmp_path: Path, size: int) -> None:
    storage = Storage(tmp_path)
    storage.write("there", b"before")
    with pytest.raises(ZeroDivisionError), storage.open_write("there") as file:
        file.write(b"x" * size)
        raise ZeroDivisionError
    assert files_below(tmp_path) == ["there"]
    assert storage.read("there") == b"before"
    with pytest.raises(UserError, match="cannot write"), storage.open_write("there/below") as file:
        file.write(b"x" * size)


def test_chunks_are_the_object(storage: Storage) -> None:
    data = os.urandom(12_000_000)
    with storage.open_write("large") as file:
        file.write(data)
    assert b"".join(storage.chunks("large")) == data
    with pytest.raises(UserError, match=r"no such file: .*/gone"):
        list(storage.chunks("gone"))


def test_what_is_synced_must_be_there(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.write("folder/file", b"1")
    storage.sync(["folder/file"])
    with pytest.raises(UserError, match=r"cannot write .*/folder/gone: No such file"):
        storage.sync(["folder/file", "folder/gone"])
