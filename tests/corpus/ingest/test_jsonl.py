"""JSON lines become files of projects: safe names, counted losses, the same again, one line in memory."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.corpus.build import build
from cpplm.corpus.ingest import jsonl
from cpplm.corpus.ingest.jsonl import guess_suffix, safe_path, unpack
from cpplm.corpus.reports.stats import format_summary
from cpplm.corpus.settings import CorpusSettings
from tests.corpus.killing import build_with_kills, contents


def write_lines(path: Path, *records: object) -> Path:
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def files_of(folder: Path, *paths: Path) -> dict[str, dict[str, str]]:
    """Project name to file name to text."""
    projects, _ = unpack(paths, folder)
    return {
        project.name: {
            path.relative_to(project.roots[0]).as_posix(): path.read_text()
            for path in sorted(project.roots[0].rglob("*"))
            if path.is_file()
        }
        for project in projects
    }


def test_records_become_files_of_projects(tmp_path):
    path = write_lines(
        tmp_path / "code.jsonl",
        {"text": "int a;", "path": "src/a.c", "project": "one", "license": "MIT"},
        {"text": "int b;", "file": "b.hpp", "repo": "owner/two", "license": "Apache-2.0 OR MIT"},
        {"text": "int c;", "filepath": "x/c"},
        {"text": "class D {};"},
        {"text": "int e;", "path": None, "project": 7, "license": "none\nof that"},
    )
    assert files_of(tmp_path / "u", path) == {
        "one": {"src/a.c": "int a;", "src/a.c.license": "SPDX-License-Identifier: MIT\n"},
        "owner/two": {"b.hpp": "int b;", "b.hpp.license": "SPDX-License-Identifier: Apache-2.0 OR MIT\n"},
        "code": {"x/c.c": "int c;", "000000/000000004.cpp": "class D {};", "000000/000000005.c": "int e;"},
    }


@pytest.mark.parametrize(
    "damage",
    [b"{", b"nonsense", b"\xff\xfe", b"[1, 2]", b"7", b"null", b'{"text": 3}', b'{"txt": "int a;"}',
     b'{"text": "\\ud800"}', b"[" * 100_000, b'{"text": ' + b"9" * 5_000 + b"}"],
)  # fmt: skip
def test_a_bad_line_is_counted_and_named(tmp_path, damage):
    path = write_lines(tmp_path / "code.jsonl", {"text": "int a;"}, b"  ", damage, {"text": "int b;"})
    _, (report,) = unpack((path,), tmp_path / "u")
    assert report["file"] == "code.jsonl"
    assert report["records"] == 2
    ((reason, entry),) = report["left_out"].items()
    assert reason in ("not JSON", "no text", "no Unicode text")
    assert entry["files"] == 1 and entry["examples"] == ["code.jsonl:3"]


def test_a_file_without_a_usable_line_is_an_error_and_leaves_nothing(tmp_path):
    good = write_lines(tmp_path / "good.jsonl", {"text": "int a;"})
    for records in ([], [b"{"], [{"text": "pass", "path": "a.py"}]):
        bad = write_lines(tmp_path / "bad.jsonl", *records)
        with pytest.raises(UserError, match=r"bad\.jsonl has no usable line .*Each line is a JSON object"):
            build(CorpusSettings(out=str(tmp_path / "out"), jsonl=(good, bad)))
        assert not (tmp_path / "out").exists()


def test_a_line_longer_than_memory_allows_is_skipped_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "LONGEST_LINE", 100)
    exact = json.dumps({"text": "x" * 87}).encode()
    assert len(exact) == 99
    path = write_lines(
        tmp_path / "a.jsonl", exact, exact[:-2] + b'x"}', {"text": "y" * 500}, {"text": "int a;"}
    )
    _, (report,) = unpack((path,), tmp_path / "u")
    assert report["records"] == 2
    assert report["left_out"]["longer than 64 MB"]["examples"] == ["a.jsonl:2", "a.jsonl:3"]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_files(tmp_path, ending):
    plain = write_lines(tmp_path / "a.jsonl", *({"text": f"int a{n};"} for n in range(1_000))).read_bytes()
    half = plain.index(b"\n", len(plain) // 2) + 1
    pack = gzip.compress if ending == ".gz" else lambda data: pa.compress(data, codec="zstd", asbytes=True)
    path = tmp_path / f"b.jsonl{ending}"
    path.write_bytes(pack(plain[:half]) + pack(plain[half:]))  # as tools write that compress in parallel
    (names,) = files_of(tmp_path / "u", path).values()
    assert len(names) == 1_000
    path.write_bytes(pack(plain)[:-9])
    with pytest.raises(UserError, match=rf"cannot read --jsonl .*b\.jsonl{ending}: Truncated"):
        unpack((path,), tmp_path / "v")


def test_wrong_paths(tmp_path):
    write_lines(tmp_path / "a.json", {"text": "int a;"})
    (tmp_path / "b").mkdir()
    for name in ("a.jsonl", "b/a.jsonl"):
        write_lines(tmp_path / name, {"text": "int a;"})
    for given_paths, message in (
        (["no.jsonl"], "does not exist"),
        (["b"], "is not a file"),
        (["a.json"], r"ends in none of \.jsonl, \.jsonl\.gz, \.jsonl\.zst"),
        (["a.jsonl", "b/a.jsonl"], "2 --jsonl files are named a"),
    ):
        with pytest.raises(UserError, match=message):
            unpack(tuple(tmp_path / name for name in given_paths), tmp_path / "u")


HOSTILE = ["/etc/passwd.h", "../../../../up.h", "a/../../b.h", "C:\\Windows\\x.cpp", "..", "nul\0.h",
           "a\nb.h", "~/x.h", ".git/hooks/x.h", "//x.h", "a/./b.h", "x" * 5_000 + ".cc", "\udcff.h", "",
           "d/" * 4_000 + "x.cc", "con.h ", "%2e%2e/x.h", "*?.h", ".", " ", "a.h/", "\xfcn.h"]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_no_path_leaves_its_project(tmp_path, path):
    folder = tmp_path / "u"
    unpack((write_lines(tmp_path / "a.jsonl", {"text": "int a;", "path": path, "project": path}),), folder)
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file.read_bytes() == b"int a;"]
    assert len(written) == 1
    assert folder in written[0].parents
    assert not any(part.startswith(".") for part in written[0].relative_to(folder).parts)


@given(st.text(max_size=300))
def test_safe_path_is_safe_for_any_text(text):
    path = safe_path(text)
    if path is not None:
        assert not path.is_absolute()
        assert len(path.parts) <= 12
        for part in path.parts:
            assert part.isascii() and part.isprintable() and 0 < len(part) <= 120
            assert not part.startswith((".", "$"))
            assert not set(part) & set('/\\:*?"<>|%~')


def test_names_that_are_taken_get_another(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl",
        {"text": "int a;", "path": "x.c"},
        {"text": "int b;", "path": "x.c"},
        {"text": "int c;", "path": "x.c/y.c"},  # a folder where a file is
        {"text": "int d;", "path": "d.h/y.c"},
        {"text": "int e;", "path": "d.h"},  # a file where a folder is
    )
    assert files_of(tmp_path / "u", path)["a"] == {
        "x.c": "int a;",
        "$again/000000/000000002_x.c": "int b;",
        "$again/000000/000000003_y.c": "int c;",
        "d.h/y.c": "int d;",
        "$again/000000/000000005_d.h": "int e;",
    }


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".h", "// x\n#ifndef A_H\n#define A_H\nint a;\n#endif  // A_H\n"),
        (".h", "#pragma once\nclass A;\n"),
        (".cpp", "#include <vector>\nint main() {}\n"),
        (".cpp", "int main() { std::puts(0); }\n"),
        (".cpp", "template <typename T> T f(T);\n"),
        (".cpp", "#ifndef DEBUG\n#define DEBUG 0\n#endif\nnamespace a {}\nint b;\n" + "int c;\n" * 40),
        (".c", '#include <stdio.h>\nint main(void) { puts("namespace"); return 0; }\n'),
        (".c", "struct class_of { int template; };\n"),
        (".c", ""),
    ],
)
def test_the_language_is_guessed(suffix, text):
    assert guess_suffix(text) == suffix


def test_the_same_files_are_unpacked_once(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", {"text": "int a;"}, b"{")
    first = unpack((path,), tmp_path / "u")
    monkeypatch.setattr(jsonl._Unpacker, "unpack", lambda *_: pytest.fail("unpacked again"))
    assert unpack((path,), tmp_path / "u") == first
    monkeypatch.undo()
    write_lines(path, {"text": "int b;"})
    assert unpack((path,), tmp_path / "u") != first


def licensed(folder: Path) -> Path:
    """Four records of which two are under MIT."""
    names = ("MIT", "GPL-3.0-only", None, "Apache-2.0 OR MIT")
    records = [
        {"text": f"int l{n}() {{ return {n}; }}", "license": name, "path": f"{n}.c"}
        for n, name in enumerate(names)
    ]
    return write_lines(folder / "licensed.jsonl", *records)


def test_a_corpus_from_json_lines(tmp_path):
    code = [f"int f{n}(int a) {{\n  return a * {n};\n}}\n" for n in range(40)]
    path = write_lines(
        tmp_path / "code.jsonl",
        *({"text": text, "path": f"src/f{n}.cc", "project": f"p{n % 4}"} for n, text in enumerate(code)),
        b"{",
        {"text": "\n", "path": "empty.cc", "project": "nothing"},
    )
    out = tmp_path / "out"
    settings = CorpusSettings(out=str(out), jsonl=(path,), workers=1)
    result = build(settings)
    assert result["projects"].keys() == {"nothing", "p0", "p1", "p2", "p3"}
    assert result["projects"]["nothing"]["skipped"]["empty"]["files"] == 1
    reader = ShardReader(out)
    texts = "".join(text for split in ("train", "val") for _, text in reader.texts(split))
    assert all(f"int f{n}(int a)" in texts for n in range(40))
    assert {name.split(".")[0] for name in contents(out)} == {
        "_COMPLETE", "fingerprints_00000", "manifest", "train_00000", "val_00000",
    }  # fmt: skip
    shown = format_summary(result, "out")
    assert "records    41 from 1 JSONL file" in shown
    wanted = CorpusSettings(
        out=str(tmp_path / "mit"), jsonl=(licensed(tmp_path),), licenses=("MIT",), workers=1
    )
    left_out = build(wanted)["projects"]["licensed"]
    assert left_out["files"] == 2 and sum(entry["files"] for entry in left_out["skipped"].values()) == 2
    assert "records    1 not JSON, such as 'code.jsonl:41'" in shown
    assert build(settings)["already_complete"]
    assert sorted(name.split(".")[0] for name in contents(out)) == [
        "_COMPLETE", "fingerprints_00000", "manifest", "train_00000", "val_00000",
    ]  # fmt: skip
    more = write_lines(tmp_path / "more.jsonl", {"text": "int more() { return 1; }"})
    grown = build(CorpusSettings(out=str(out), jsonl=(more,), append=True, workers=1))
    assert [entry["file"] for entry in grown["records"]] == ["code.jsonl", "more.jsonl"]
    with pytest.raises(UserError, match="2 projects are named more"):
        (tmp_path / "more").mkdir()
        (tmp_path / "more" / "a.c").write_text("int a;\n")
        build(CorpusSettings(out=str(tmp_path / "x"), jsonl=(more,), projects=(tmp_path / "more",)))


@pytest.mark.slow
def test_a_killed_build_from_json_lines_ends_the_same(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl",
        *({"text": f"int f{n}() {{ return {n}; }}\n" * 3, "project": f"p{n % 7}"} for n in range(400)),
    )
    build(CorpusSettings(out=str(tmp_path / "whole"), jsonl=(path,), workers=1))
    settings = CorpusSettings(out=str(tmp_path / "out"), jsonl=(path,), workers=1)
    assert build_with_kills(settings, kills=4, within=1.0, seed=1) > 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


MEMORY = """
import re, sys
from pathlib import Path
from cpplm.corpus.ingest.jsonl import unpack
unpack((Path(sys.argv[1]),), Path(sys.argv[2]))
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    peaks = []
    for megabytes in (1, 65):
        path = tmp_path / f"m{megabytes}.jsonl"
        line = json.dumps({"text": "int a;\n" * 70_000}).encode() + b"\n"
        path.write_bytes(line * (megabytes * 2))
        command = [sys.executable, "-c", MEMORY, str(path), str(tmp_path / "u")]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        peaks.append(int(ran.stdout))
    assert peaks[1] < peaks[0] + 16_000  # kB
    assert path.stat().st_size > 60_000_000
