import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.corpus import project_cache, shard_writer
from cpplm.corpus.build import build
from cpplm.corpus.reports.inspect_corpus import InspectSettings, inspect_corpus
from cpplm.corpus.reports.stats import build_figures, describe, format_summary
from tests.corpus.cpp import TINYLIB, utf8_bytes, write_files
from tests.corpus.killing import build_killed_at_change, build_with_kills, contents
from tests.corpus.settings import compilable


def projects(folder: Path, count: int = 3) -> tuple[Path, ...]:
    """Projects of clearly different sizes: headers, sources, functions that call each other."""
    for number in range(count):
        files: dict[str, str | bytes] = {}
        for part in range(4 ** (number + 1)):
            name = f"{number}_{part}"
            calls = "".join(
                f"int f{name}_{i}(int a) {{ return {f'f{name}_{i - 1}(a)' if i else 'a'} + {i}; }}\n"
                for i in range(20)
            )
            files[f"p{part}.h"] = f"#pragma once\nint g{name}();\n"
            files[f"p{part}.cc"] = (
                f'#include "p{part}.h"\n{calls}int g{name}() {{ return f{name}_3({part}); }}\n'
            )
        write_files(folder / f"project{number}", files)
    return tuple(folder / f"project{number}" for number in range(count))


def test_units_of_each_project_are_held_out(tmp_path):
    result = build(
        compilable(out=str(tmp_path / "out"), projects=projects(tmp_path), val_fraction=0.3, val_split="unit")
    )
    reader = ShardReader(tmp_path / "out")
    train, val = ({p for p, _ in reader.texts(split)} for split in ("train", "val"))
    assert result["split_by"] == "unit"
    assert train == {"project0", "project1", "project2"}
    assert len(val) > 1


def test_a_build_ends_with_readable_shards_and_a_manifest(tmp_path):
    result = build(compilable(out=str(tmp_path / "out"), projects=projects(tmp_path), workers=1))
    assert sorted(contents(tmp_path / "out")) == [
        "_COMPLETE",
        "fingerprints_00000.parquet",
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
    assert table.column_names == [name for name in project_cache.PART_SCHEMA.names if name != "unit"]
    assert table["id"].to_pylist() == sorted(table["id"].to_pylist())
    assert set(table["num_tokens"].to_pylist()) == {-1}
    figures = build_figures(result)
    assert figures["functions"] == (4 + 16 + 64) * 21
    assert figures["documents"] == figures["train_documents"] + figures["val_documents"] == 84


def test_the_same_bytes_for_any_number_of_workers_and_any_hash_seed(tmp_path):
    given = projects(tmp_path)
    build(compilable(out=str(tmp_path / "one"), projects=given, workers=1, max_bytes=600))
    script = (
        "import sys\nfrom pathlib import Path\nfrom cpplm.corpus import build as b, project, project_cache\n"
        "from cpplm.corpus.settings import CorpusSettings\n"
        "if __name__ == '__main__':\n"
        # some projects go to a worker whole, some in batches
        "    project_cache._SMALL_PROJECT = 30_000\n    project.BATCH_BYTES = 7_000\n"
        "    paths = tuple(map(Path, sys.argv[2:]))\n"
        "    common = {'workers': 2, 'max_bytes': 600, 'mode': 'compilable'}\n"
        "    b.build(CorpusSettings(out=sys.argv[1], projects=paths, **common))\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "two"), *map(str, reversed(given))],
        check=True, timeout=120, env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def documents(out: Path) -> dict[str, list[tuple[str, str]]]:
    reader = ShardReader(out)
    return {split: sorted(reader.texts(split)) for split in ("train", "val")}


def test_a_build_killed_at_any_change_continues_and_ends_the_same(tmp_path, monkeypatch):
    given = projects(tmp_path, 2)
    build(compilable(out=str(tmp_path / "whole"), projects=given, workers=1))
    expected = contents(tmp_path / "whole")
    settings = compilable(out=str(tmp_path / "out"), projects=given, workers=1)
    killed = 0
    while build_killed_at_change(settings, killed):  # a little further each time
        killed += 1
        if (tmp_path / "out" / "_COMPLETE").exists():
            assert documents(tmp_path / "out") == documents(tmp_path / "whole")
        else:
            with pytest.raises(UserError, match="no finished documents"):
                ShardReader(tmp_path / "out")
    assert killed > 6
    assert contents(tmp_path / "out") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "within"), [(1, 0.8), (2, 2.5)])
def test_a_build_killed_at_random_moments_ends_the_same(tmp_path, workers, within):
    given = projects(tmp_path, 4)
    build(compilable(out=str(tmp_path / "whole"), projects=given, workers=1))
    settings = compilable(out=str(tmp_path / "out"), projects=given, workers=workers)
    assert build_with_kills(settings, kills=5, within=within, seed=workers) > 1
    assert not (tmp_path / "out" / "_parts").exists()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_finished_projects_are_not_built_again(tmp_path, monkeypatch):
    given = projects(tmp_path)
    settings = compilable(out=str(tmp_path / "out"), projects=given, workers=1)
    write_parts = project_cache.write_parts
    built: list[str] = []

    def stop_at_the_last(job, **options):
        if job.item.project.name == "project2" and not built.count("stopped"):
            built.append("stopped")
            raise KeyboardInterrupt
        built.append(job.item.project.name)
        write_parts(job, **options)

    monkeypatch.setattr(project_cache, "write_parts", stop_at_the_last)
    with pytest.raises(KeyboardInterrupt):
        build(settings)
    (tmp_path / "out" / "train_00009.parquet").write_bytes(b"half")
    build(settings)
    assert built == ["project0", "project1", "stopped", "project2"]
    assert "train_00009.parquet" not in contents(tmp_path / "out")


def test_running_again_does_nothing_and_another_corpus_is_refused(tmp_path):
    given = projects(tmp_path, 2)
    out = str(tmp_path / "out")
    build(compilable(out=out, projects=given, workers=1))
    before = contents(tmp_path / "out")
    again = build(compilable(out=out, projects=given, workers=2))
    assert again["already_complete"]
    assert "nothing to do" in format_summary(again, out)
    with pytest.raises(UserError, match=r"max_bytes was 49152, now 1000.*Choose another --out"):
        build(compilable(out=out, projects=given, max_bytes=1000))
    with pytest.raises(UserError, match="project project1 is no longer given"):
        build(compilable(out=out, projects=given[:1]))
    with pytest.raises(UserError, match=r"project tinylib is new.*Add --append to keep that corpus"):
        build(compilable(out=out, projects=(*given, TINYLIB)))
    (given[0] / "p0.cc").write_text("int changed;\n")
    with pytest.raises(UserError, match="the files of project project0 changed"):
        build(compilable(out=out, projects=given))
    assert contents(tmp_path / "out") == before


def test_a_folder_with_other_files_is_refused(tmp_path):
    write_files(tmp_path / "out", {"thesis.tex": "years of work"})
    with pytest.raises(UserError, match=r"holds other files, such as thesis\.tex"):
        build(compilable(out=str(tmp_path / "out"), projects=(TINYLIB,), workers=1))
    assert sorted(contents(tmp_path / "out")) == ["thesis.tex"]
    (tmp_path / "out" / "empty").mkdir()
    (tmp_path / "out" / "draft#1").touch()  # named like what a killed write leaves
    with pytest.raises(UserError, match="holds other files"):
        build(compilable(out=str(tmp_path / "out"), projects=(TINYLIB,), workers=1))
    assert (tmp_path / "out" / "empty").exists() and (tmp_path / "out" / "draft#1").exists()


def test_too_little_code_and_no_code(tmp_path):
    write_files(tmp_path / "tiny", {"a.cc": "int a;\n"})
    write_files(tmp_path / "none", {"a.py": "pass\n", "b.cc": ""})
    with pytest.raises(UserError, match="too little code"):
        build(compilable(out=str(tmp_path / "out"), projects=(tmp_path / "tiny",), workers=1))
    with pytest.raises(UserError, match=r"project none .* has no C or C\+\+ files .*1 empty"):
        build(compilable(out=str(tmp_path / "out2"), projects=(tmp_path / "none",), workers=1))
    assert not (tmp_path / "out2").exists()
    with pytest.raises(UserError, match=r"project none .* has no C or C\+\+ files"):  # named itself
        projects = (tmp_path / "none", TINYLIB)
        build(compilable(out=str(tmp_path / "out2"), projects=projects, workers=1))


def test_a_folder_among_the_projects_that_holds_no_code_is_left_out_and_counted(tmp_path):
    write_files(tmp_path / "scripts", {"a.py": "pass\n"})
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "scripts").symlink_to(tmp_path / "scripts")
    shutil.copytree(TINYLIB, tmp_path / "all" / "tinylib")
    settings = compilable(out=str(tmp_path / "out"), projects_dir=tmp_path / "all", workers=1)
    figures = build_figures(build(settings))
    assert figures["skipped"] == {"project without C or C++ files": 1}
    assert figures["documents"] > 3
    assert build(settings)["already_complete"]
    shutil.rmtree(tmp_path / "all" / "tinylib")
    with pytest.raises(UserError, match=r"project scripts .* has no C or C\+\+ files"):
        build(compilable(out=str(tmp_path / "out2"), projects_dir=tmp_path / "all", workers=1))


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from cpplm.core.errors import UserError
from cpplm.corpus import build, settings
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    paths = tuple(map(Path, sys.argv[3:]))
    build.build(settings.CorpusSettings(out=sys.argv[2], projects=paths, workers=1, mode="compilable"))
except UserError as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
def test_a_full_disk_is_one_message_and_a_later_run_ends_the_build(tmp_path):
    given = projects(tmp_path)
    build(compilable(out=str(tmp_path / "whole"), projects=given, workers=1))
    largest = max(map(len, contents(tmp_path / "whole").values()))
    for room in (10, largest - 1):  # for nothing at all; for all but the largest shard
        command = [sys.executable, "-c", FULL_DISK, str(room), str(tmp_path / "out"), *map(str, given)]
        failed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert failed.returncode == 1
        assert re.search(
            r"cannot write .*File too large.*Free some space.*run the same command again", failed.stderr
        )
        assert not (tmp_path / "out" / "_COMPLETE").exists()
        with pytest.raises(UserError, match=r"no such folder|no finished documents"):
            ShardReader(tmp_path / "out")
    build(compilable(out=str(tmp_path / "out"), projects=given, workers=1))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_the_tokenizer_counts_the_budget(tmp_path, tokenizer, tokenizer_path):
    common = {"projects": projects(tmp_path, 2), "max_tokens": 256, "workers": 1}
    settings = compilable(out=str(tmp_path / "out"), tokenizer=tokenizer_path, **common)
    result = build(settings)
    reader = ShardReader(tmp_path / "out")
    table = reader.table(reader.shards("train")[0])
    for text, tokens in zip(table["text"].to_pylist(), table["num_tokens"].to_pylist(), strict=True):
        assert len(tokenizer.encode(text)) == tokens <= 256
    assert result["identity"]["tokenizer_hash"] == tokenizer.hash
    shutil.copy(tokenizer_path, tmp_path / "moved.json")  # the same tokenizer elsewhere is the same corpus
    moved = compilable(out=settings.out, tokenizer=tmp_path / "moved.json", **common)
    assert build(moved)["already_complete"]


def test_many_shards_hold_every_document_once(tmp_path, monkeypatch):
    given = projects(tmp_path)
    build(compilable(out=str(tmp_path / "one"), projects=given, workers=1))
    monkeypatch.setattr(shard_writer, "SHARD_BYTES", 20_000)
    monkeypatch.setattr(project_cache, "PART_BYTES", 10_000)
    build(compilable(out=str(tmp_path / "many"), projects=given, workers=1))
    one, many = ShardReader(tmp_path / "one"), ShardReader(tmp_path / "many")
    assert len(many.shards("train")) > 3
    assert list(one.texts("train")) == list(many.texts("train"))
    assert all(shard.bytes < 25_000 for shard in many.shards("train"))


def test_choose_val_never_takes_all_and_is_close_to_the_fraction():
    groups = {(f"p{i}", ""): 100 for i in range(100)}
    val = shard_writer.choose_validation_groups(groups, 0.05)
    assert len(val) == 5
    assert len(shard_writer.choose_validation_groups({("a", ""): 1, ("b", ""): 1_000}, 0.5)) == 1
    assert shard_writer.choose_validation_groups({("a", ""): 900, ("b", ""): 1_000}, 0.05) == {("a", "")}
    assert len(shard_writer.choose_validation_groups(groups, 0.999)) < 100


def test_inspect_shows_what_was_asked_for(tmp_path):
    out = str(tmp_path / "out")
    write_files(tmp_path / "broken", {"b.cc": "#if X\nint f() { return 1; }\n", "c.cc": "int c;\n"})
    build(compilable(out=out, projects=(TINYLIB, tmp_path / "broken"), workers=1))
    manifest, documents = inspect_corpus(InspectSettings(out, kind="file", num=5))
    assert [document["files"] for document in documents] == [["b.cc"]]
    assert "broken | file |" in describe(documents[0])
    assert describe(documents[0]).endswith(documents[0]["text"])
    assert "2 projects" in format_summary(manifest, out)
    first = inspect_corpus(InspectSettings(out, project="tinylib", num=3, seed=1))[1]
    assert {document["project"] for document in first} == {"tinylib"}
    assert first == inspect_corpus(InspectSettings(out, project="tinylib", num=3, seed=1))[1]
    assert all(utf8_bytes(document["text"]) > 0 for document in first)
    with pytest.raises(UserError, match="no project 'nope'"):
        inspect_corpus(InspectSettings(out, project="nope"))
    with pytest.raises(UserError, match=r"no documents of kind .chunk.*Kinds: compilable, file"):
        inspect_corpus(InspectSettings(out, project="tinylib", kind="chunk"))


def test_units_that_borrow_too_much_become_plain_files(tmp_path):
    header = "#pragma once\n" + "".join(f"struct Row{n} {{\n  int cells[{n + 1}];\n}};\n" for n in range(40))
    rows = ", ".join(f"const Row{n}&" for n in range(40))
    users = {f"use{n}.cc": f'#include "rows.h"\nint use{n}({rows}) {{ return {n}; }}\n' for n in range(8)}
    given = write_files(tmp_path / "p", {"rows.h": header, **users})
    kinds, sizes = {}, {}
    for max_repeat in (8.0, 1.5):
        settings = compilable(
            out=str(tmp_path / str(max_repeat)),
            projects=(given,),
            workers=1,
            max_repeat=max_repeat,
            near_duplicates=0,
        )
        figures = build(settings)["projects"]["p"]
        kinds[max_repeat] = figures["kinds"]
        sizes[max_repeat] = figures["text_bytes"] / figures["source_bytes"]
    assert kinds[8.0] == {"compilable": 9}
    assert kinds[1.5]["file"] > 3
    assert 2 < sizes[8.0] < 8 and sizes[1.5] <= 1.5
