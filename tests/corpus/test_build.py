import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.corpus import build as builder
from cpplm.corpus import finish, parts
from cpplm.corpus.build import build
from cpplm.corpus.inspect import InspectSettings, inspect
from cpplm.corpus.settings import CorpusSettings
from cpplm.corpus.summary import build_figures, describe, summary
from tests.corpus.cpp import TINYLIB, utf8_bytes, write_files


def projects(folder: Path, count: int = 3) -> tuple[Path, ...]:
    """Projects of clearly different sizes: headers, sources, functions that call each other."""
    for number in range(count):
        calls = "".join(
            f"int f{number}_{i}(int a) {{ return {f'f{number}_{i - 1}(a)' if i else 'a'} + {i}; }}\n"
            for i in range(20)
        )
        files: dict[str, str | bytes] = {}
        for part in range(4 ** (number + 1)):
            files[f"p{part}.h"] = f"#pragma once\nint g{number}_{part}();\n"
            files[f"p{part}.cc"] = (
                f'#include "p{part}.h"\n{calls}int g{number}_{part}() {{ return f{number}_3({part}); }}\n'
            )
        write_files(folder / f"project{number}", files)
    return tuple(folder / f"project{number}" for number in range(count))


def contents(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()
    }


def test_a_build_ends_with_readable_shards_and_a_manifest(tmp_path):
    result = build(CorpusSettings(out=str(tmp_path / "out"), projects=projects(tmp_path), workers=1))
    assert sorted(contents(tmp_path / "out")) == [
        "_COMPLETE",
        "manifest.json",
        "train_00000.parquet",
        "val_00000.parquet",
    ]
    assert not (tmp_path / "out" / "_parts").exists()
    reader = ShardReader(tmp_path / "out")
    train, val = ({p for p, _ in reader.texts(split)} for split in ("train", "val"))
    assert result["split_by"] == "project"
    assert train and val and not train & val
    assert val == {"project0"}  # the smallest: nothing fits into 5 %
    table = reader.table(reader.shards("train")[0])
    assert table.column_names == ["text", "id", "project", "files", "kind", "num_tokens", "num_functions"]
    assert table["id"].to_pylist() == sorted(table["id"].to_pylist())
    assert set(table["num_tokens"].to_pylist()) == {-1}
    figures = build_figures(result)
    assert figures["functions"] == (4 + 16 + 64) * 21
    assert figures["documents"] == figures["train_documents"] + figures["val_documents"] == 84


def test_a_single_project_is_split_by_unit(tmp_path):
    result = build(
        CorpusSettings(out=str(tmp_path / "out"), projects=(TINYLIB,), workers=1, val_fraction=0.3)
    )
    reader = ShardReader(tmp_path / "out")
    assert result["split_by"] == "unit"
    assert sum(1 for _ in reader.texts("train")) >= 3
    assert 1 <= sum(1 for _ in reader.texts("val")) <= 3


def test_the_same_bytes_for_any_number_of_workers_and_any_hash_seed(tmp_path):
    given = projects(tmp_path)
    build(CorpusSettings(out=str(tmp_path / "one"), projects=given, workers=1, max_bytes=600))
    script = (
        "import sys\nfrom pathlib import Path\nfrom cpplm.corpus import build as b, parts, project\n"
        "from cpplm.corpus.settings import CorpusSettings\n"
        "if __name__ == '__main__':\n"
        # some projects go to a worker whole, some in batches
        "    parts._SMALL_PROJECT = 30_000\n    project.BATCH_BYTES = 7_000\n"
        "    paths = tuple(map(Path, sys.argv[2:]))\n"
        "    b.build(CorpusSettings(out=sys.argv[1], projects=paths, workers=2, max_bytes=600))\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "two"), *map(str, reversed(given))],
        check=True, timeout=120, env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("where", ["write_parts", "write_splits", "write_manifest"])
def test_a_killed_build_continues_and_ends_the_same(tmp_path, monkeypatch, where):
    given = projects(tmp_path)
    expected = CorpusSettings(out=str(tmp_path / "whole"), projects=given, workers=1)
    build(expected)
    broken = CorpusSettings(out=str(tmp_path / "broken"), projects=given, workers=1)
    module = parts if where == "write_parts" else builder
    original = getattr(module, where)
    calls = []

    def stop_at_the_last(*arguments, **options):
        calls.append(arguments)
        if where != "write_parts" or len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(module, where, stop_at_the_last)
    with pytest.raises(KeyboardInterrupt):
        build(broken)
    assert not (tmp_path / "broken" / "_COMPLETE").exists()
    with pytest.raises(UserError, match="no finished documents"):
        ShardReader(tmp_path / "broken")
    rebuilt = []
    monkeypatch.undo()
    write_parts = parts.write_parts
    monkeypatch.setattr(
        parts, "write_parts", lambda *a, **o: (rebuilt.append(a[0].item.project.name), write_parts(*a, **o))
    )
    (tmp_path / "broken" / "train_00009.parquet").write_bytes(b"half")
    build(broken)
    assert rebuilt == (["project2"] if where == "write_parts" else [])
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_running_again_does_nothing_and_another_corpus_is_refused(tmp_path):
    given = projects(tmp_path, 2)
    out = str(tmp_path / "out")
    build(CorpusSettings(out=out, projects=given, workers=1))
    before = contents(tmp_path / "out")
    again = build(CorpusSettings(out=out, projects=given, workers=2))
    assert again["already_complete"]
    assert "nothing to do" in summary(again, out)
    with pytest.raises(UserError, match=r"max_bytes was 49152, now 1000.*Choose another --out"):
        build(CorpusSettings(out=out, projects=given, max_bytes=1000))
    with pytest.raises(UserError, match="project project1 is no longer given"):
        build(CorpusSettings(out=out, projects=given[:1]))
    (given[0] / "p0.cc").write_text("int changed;\n")
    with pytest.raises(UserError, match="the files of project project0 changed"):
        build(CorpusSettings(out=out, projects=given))
    assert contents(tmp_path / "out") == before


def test_a_folder_with_other_files_is_refused(tmp_path):
    write_files(tmp_path / "out", {"thesis.tex": "years of work"})
    with pytest.raises(UserError, match=r"holds other files, such as thesis\.tex"):
        build(CorpusSettings(out=str(tmp_path / "out"), projects=(TINYLIB,), workers=1))
    assert sorted(contents(tmp_path / "out")) == ["thesis.tex"]


def test_too_little_code_and_no_code(tmp_path):
    write_files(tmp_path / "tiny", {"a.cc": "int a;\n"})
    write_files(tmp_path / "none", {"a.py": "pass\n", "b.cc": ""})
    with pytest.raises(UserError, match="too little code"):
        build(CorpusSettings(out=str(tmp_path / "out"), projects=(tmp_path / "tiny",), workers=1))
    with pytest.raises(UserError, match=r"project none .* has no C or C\+\+ files .*1 empty"):
        build(CorpusSettings(out=str(tmp_path / "out2"), projects=(tmp_path / "none",), workers=1))


def test_a_full_disk_is_one_message_and_nothing_counts(tmp_path, monkeypatch):
    original = builder.Storage.write

    def full(self, name, data):
        if "_parts/" in name and name.endswith(".parquet"):
            raise UserError("no space left", fix="Free some.")
        original(self, name, data)

    monkeypatch.setattr(builder.Storage, "write", full)
    with pytest.raises(UserError, match="no space left"):
        build(CorpusSettings(out=str(tmp_path / "out"), projects=(TINYLIB,), workers=1))
    assert contents(tmp_path / "out") == {}


def test_the_tokenizer_counts_the_budget(tmp_path, tokenizer, tokenizer_path):
    common = {"projects": projects(tmp_path, 2), "max_tokens": 256, "workers": 1}
    settings = CorpusSettings(out=str(tmp_path / "out"), tokenizer=tokenizer_path, **common)
    result = build(settings)
    reader = ShardReader(tmp_path / "out")
    table = reader.table(reader.shards("train")[0])
    for text, tokens in zip(table["text"].to_pylist(), table["num_tokens"].to_pylist(), strict=True):
        assert len(tokenizer.encode(text)) == tokens <= 256
    assert result["identity"]["tokenizer_hash"] == tokenizer.hash
    shutil.copy(tokenizer_path, tmp_path / "moved.json")  # the same tokenizer elsewhere is the same corpus
    moved = CorpusSettings(out=settings.out, tokenizer=tmp_path / "moved.json", **common)
    assert build(moved)["already_complete"]


def test_many_shards_hold_every_document_once(tmp_path, monkeypatch):
    given = projects(tmp_path)
    build(CorpusSettings(out=str(tmp_path / "one"), projects=given, workers=1))
    monkeypatch.setattr(finish, "SHARD_BYTES", 20_000)
    monkeypatch.setattr(parts, "PART_BYTES", 10_000)
    build(CorpusSettings(out=str(tmp_path / "many"), projects=given, workers=1))
    one, many = ShardReader(tmp_path / "one"), ShardReader(tmp_path / "many")
    assert len(many.shards("train")) > 3
    assert list(one.texts("train")) == list(many.texts("train"))
    assert all(shard.bytes < 25_000 for shard in many.shards("train"))


def test_choose_val_never_takes_all_and_is_close_to_the_fraction():
    groups = {(f"p{i}", ""): 100 for i in range(100)}
    val = finish.choose_val(groups, 0.05)
    assert len(val) == 5
    assert len(finish.choose_val({("a", ""): 1, ("b", ""): 1_000}, 0.5)) == 1
    assert finish.choose_val({("a", ""): 900, ("b", ""): 1_000}, 0.05) == {("a", "")}
    assert len(finish.choose_val(groups, 0.999)) < 100


def test_inspect_shows_what_was_asked_for(tmp_path):
    out = str(tmp_path / "out")
    write_files(tmp_path / "broken", {"b.cc": "#if X\nint f() { return 1; }\n", "c.cc": "int c;\n"})
    build(CorpusSettings(out=out, projects=(TINYLIB, tmp_path / "broken"), workers=1))
    manifest, documents = inspect(InspectSettings(out, kind="file", num=5))
    assert [document["files"] for document in documents] == [["b.cc"]]
    assert "broken | file |" in describe(documents[0])
    assert describe(documents[0]).endswith(documents[0]["text"])
    assert "2 projects" in summary(manifest, out)
    first = inspect(InspectSettings(out, project="tinylib", num=3, seed=1))[1]
    assert {document["project"] for document in first} == {"tinylib"}
    assert first == inspect(InspectSettings(out, project="tinylib", num=3, seed=1))[1]
    assert all(utf8_bytes(document["text"]) > 0 for document in first)
    with pytest.raises(UserError, match="no project 'nope'"):
        inspect(InspectSettings(out, project="nope"))
    with pytest.raises(UserError, match="no such document"):
        inspect(InspectSettings(out, project="tinylib", kind="chunk"))
