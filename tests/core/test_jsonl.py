"""Files that only grow: what kill -9, a full disk and other writers leave of them."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.jsonl import JsonlFile, ResumableJsonl, read_jsonl

ODD = {"text": "ä\u2028\n\udcff", "number": 1.5, "none": None}


def add(path: Path, *records: object) -> None:
    file = JsonlFile(path)
    for record in records:
        file.append(record)
    file.close()


def test_records_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.jsonl"
    assert list(read_jsonl(path)) == []
    add(path, ODD, 2)
    add(path, [3])
    assert list(read_jsonl(path)) == [ODD, 2, [3]]
    assert path.read_text(encoding="ascii").count("\n") == 3


def test_each_record_is_there_at_once(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\nfrom cpplm.core.jsonl import JsonlFile\n"
        "file = JsonlFile(pathlib.Path(sys.argv[1]))\n"
        "for number in range(50):\n    file.append(number)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(read_jsonl(tmp_path / "f")) == list(range(50))


def test_killed_at_any_byte_the_last_record_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    add(path, ODD, {"a": 1})
    whole = path.read_bytes()
    last = whole.index(b"\n") + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        assert list(read_jsonl(path)) == [ODD]
        with ResumableJsonl(path, ODD) as file:  # replaces the file
            assert file.records == []
            file.append(1)
        assert list(read_jsonl(path)) == [ODD, 1]
        path.write_bytes(whole[:cut])
        add(path, 1)  # ends the torn line, which may lack nothing but its end
        complete = [{"a": 1}] if cut == len(whole) - 1 else []
        assert list(read_jsonl(path, damaged="skip")) == [ODD, *complete, 1]


def test_a_damaged_line_is_named_ends_the_records_or_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    for damage in (b"{broken", b"", b'{"text": "\xff"}'):
        path.write_bytes(b"1\n" + damage + b"\n3\n")
        assert list(read_jsonl(path, damaged="skip")) == [1, 3]
        assert list(read_jsonl(path, damaged="stop")) == [1]
        with pytest.raises(UserError, match=r"file\.jsonl:2 .*Remove that line\."):
            ResumableJsonl(path, 1, damaged="refuse")
        assert path.read_bytes() == b"1\n" + damage + b"\n3\n"


def test_another_header_begins_anew(tmp_path: Path) -> None:
    for header, found in (({"a": (1,)}, []), ({"a": [1]}, [5]), ({"a": [2]}, [])):
        with ResumableJsonl(tmp_path / "f", header) as file:
            assert file.records == found
            file.append(5)
    with ResumableJsonl(None, {}) as file:
        file.append(5)
        assert file.records == [5]


def test_several_writers_write_whole_lines(tmp_path: Path) -> None:
    files = [JsonlFile(tmp_path / "f"), JsonlFile(tmp_path / "f")]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: files[number % 2].append([number] * 50), range(400)))
    assert sorted(record[0] for record in read_jsonl(tmp_path / "f")) == list(range(400))


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """A write beyond it fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    file = JsonlFile(path)
    with file_limit(1000):
        for number in range(1000):
            try:
                file.append({"number": number})
            except UserError as error:
                assert "cannot write" in str(error)
                assert "Free some space" in str(error)
                break
        with pytest.raises(UserError, match="cannot write"):
            JsonlFile(path, ["x" * 2000])
    assert list(read_jsonl(path)) == [{"number": each} for each in range(number)]
    file.append("goes on")
    file.close()
    assert list(read_jsonl(path))[-1] == "goes on"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.jsonl"]


def test_a_file_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "f.jsonl", tmp_path / "folder"):
        for records in (None, [1]):
            with pytest.raises(UserError, match=r"file|folder"):
                JsonlFile(path, records)
