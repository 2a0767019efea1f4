"""Adding projects to a corpus: what is there stays, and there is one corpus or the other at every moment."""

import json
import shutil
from random import Random

import pyarrow.parquet as pq
import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.corpus import shard_writer
from cpplm.corpus.build import build
from cpplm.corpus.ingest.fingerprints import read_fingerprints
from cpplm.corpus.reports.stats import corpus_totals, format_summary
from cpplm.corpus.settings import CorpusSettings
from tests.corpus.cpp import TINYLIB, write_files
from tests.corpus.killing import build_killed_at_change, contents
from tests.corpus.random_projects import random_project
from tests.corpus.settings import compilable
from tests.corpus.test_build import documents, projects


def settings(out, *given, **options) -> CorpusSettings:
    return compilable(out=str(out), projects=given, workers=1, **options)


def test_documents_keep_their_split_and_new_ones_are_added(tmp_path):
    first, second, third = projects(tmp_path)
    out = tmp_path / "out"
    build(settings(out, first, second))
    before, old_names = documents(out), set(contents(out))
    result = build(settings(out, TINYLIB, third, append=True))
    after = documents(out)
    assert not result["already_complete"]
    assert (
        list(result["projects"]) == list(result["sources"]) == ["project0", "project1", "project2", "tinylib"]
    )
    for split in ("train", "val"):
        assert set(before[split]) < set(after[split]) or before[split] == after[split]
    alone = build(settings(tmp_path / "alone", third, TINYLIB))
    assert sum(map(len, after.values())) == corpus_totals(result)["documents"]
    assert (
        corpus_totals(result)["documents"]
        == sum(map(len, before.values())) + corpus_totals(alone)["documents"]
    )
    assert set(contents(out)) & old_names == {"_COMPLETE", "manifest.json"}  # the shards have new names
    for split in ("train", "val"):
        texts = [text for _, text in ShardReader(out).texts(split)]
        assert len(texts) == len(set(texts)) > 0
    everything = build(settings(out, first, second, third, TINYLIB))
    assert everything["already_complete"]
    assert build(settings(out, third, append=True))["already_complete"]


def test_new_projects_are_held_out_until_the_fraction_is_reached(tmp_path):
    first, second, third = projects(tmp_path)
    build(settings(tmp_path / "out", second, third, val_fraction=0.3))
    assert {p for p, _ in documents(tmp_path / "out")["val"]} == {"project1"}
    build(settings(tmp_path / "out", first, TINYLIB, append=True, val_fraction=0.3))
    after = documents(tmp_path / "out")
    assert {p for p, _ in after["val"]} == {"project1", "tinylib"}  # project0 would be too much
    size = {split: sum(len(text) for _, text in texts) for split, texts in after.items()}
    assert 0.25 < size["val"] / (size["val"] + size["train"]) <= 0.3
    assert not {p for p, _ in after["train"]} & {p for p, _ in after["val"]}


@pytest.mark.slow
def test_the_same_steps_give_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_writer, "SHARD_BYTES", 20_000)
    monkeypatch.setattr(shard_writer, "FLUSH_BYTES", 50_000)
    first, second, third = projects(tmp_path)
    for out in (tmp_path / "a", tmp_path / "b"):
        build(settings(out, second, third))
        build(settings(out, first, append=True))
        build(settings(out, TINYLIB, append=True))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    reader = ShardReader(tmp_path / "a")
    numbers = [int(shard.name[6:11]) for shard in reader.shards("train")]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] > 1
    for shard in reader.shards("train"):
        assert pq.read_table(tmp_path / "a" / shard.name)["id"].to_pylist() == sorted(
            reader.table(shard, ["id"])["id"].to_pylist()
        )


@pytest.mark.slow
def test_killed_at_any_change_there_is_the_old_corpus_or_the_new_one(tmp_path):
    first, second, third = projects(tmp_path)
    for name in ("old", "new"):
        build(settings(tmp_path / name, first, third))
    build(settings(tmp_path / "new", second, append=True))
    before, after = documents(tmp_path / "old"), documents(tmp_path / "new")
    seen = []
    killed = True
    while killed:
        out = tmp_path / f"out{len(seen)}"
        shutil.copytree(tmp_path / "old", out)
        killed = build_killed_at_change(settings(out, second, append=True), len(seen))
        now = documents(out)  # readable, every shard with the hash that the manifest has
        assert now in (before, after)
        seen.append(now == after)
        build(settings(out, second, append=True))
        assert contents(out) == contents(tmp_path / "new")
    assert seen == sorted(seen)
    assert seen.count(False) > 5
    assert seen.count(True) > 5  # also between the manifest and the deletion of the old shards


def test_an_interrupted_append_may_be_given_up(tmp_path):
    first, second, third = projects(tmp_path)
    out = tmp_path / "out"
    build(settings(out, first, second))
    before = contents(out)
    assert build_killed_at_change(settings(out, third, append=True), 5)
    assert contents(out) != before  # parts, perhaps shards
    assert build(settings(out, first, second))["already_complete"]
    assert contents(out) == before


@pytest.mark.slow
def test_a_reader_of_the_old_corpus_gets_a_clear_error(tmp_path):
    first, second, third = projects(tmp_path)
    build(settings(tmp_path / "out", first, second))
    reader = ShardReader(tmp_path / "out")
    build(settings(tmp_path / "out", third, append=True))
    with pytest.raises(UserError, match=r"no such file: .*train_00000\.parquet"):
        list(reader.texts("train"))


def test_what_cannot_be_appended(tmp_path):
    first, second, third = projects(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"no finished corpus to append to.*Leave out --append"):
        build(settings(out, first, append=True))
    assert not out.exists()
    build(settings(out, first, second))
    before = contents(out)
    with pytest.raises(UserError, match="max_bytes was 49152, now 1000"):
        build(settings(out, third, append=True, max_bytes=1000))
    (first / "p0.cc").write_text("int changed;\n")
    with pytest.raises(UserError, match=r"the files of project project0 changed.*Choose another --out"):
        build(settings(out, first, third, append=True))
    assert contents(out) == before
    (out / "train_00000.parquet").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"train_00000\.parquet is damaged"):
        build(settings(out, third, append=True))
    assert (out / "val_00000.parquet").exists()


def code(project: str, number: int) -> str:
    return "".join(f"int {project}{number}_{i}(int v{i}) {{ return v{i} * {i}; }}\n" for i in range(30))


def write_projects(folder, **projects) -> list:
    return [write_files(folder / name, files) for name, files in projects.items()]


def accepted(out) -> set[tuple[str, str]]:
    return {(file.project, file.file) for file in read_fingerprints(ShardReader(out))}


@pytest.mark.parametrize("near_duplicates", [0.85, 0.0])
def test_text_that_is_there_is_not_added_and_held_out_text_not_even_quoted(tmp_path, near_duplicates):
    held, trained = {"h.h": code("held", 1), "h.cc": code("held", 2)}, {"t.cc": code("trained", 1)}
    first, second = write_projects(tmp_path, aaa=held, bbb={**trained, "more.cc": code("trained", 2) * 9})
    out = tmp_path / "out"
    build(settings(out, first, second, near_duplicates=near_duplicates))
    assert {project for project, _ in documents(out)["val"]} == {"aaa"}
    copies = {name: "// Another license\n" + text for name, text in (held | trained).items()}
    use = '#include "h.h"\nint used() { return held1_3(4); }\n'
    changed = {f"near_{name}": text.replace("int v7", "int x7") for name, text in (held | trained).items()}
    (third,) = write_projects(tmp_path, ccc=held | trained | {"own.cc": code("own", 1), "use.cc": use})
    result = build(settings(out, third, append=True, near_duplicates=near_duplicates))
    assert {file for project, file in accepted(out) if project == "ccc"} == {"own.cc", "use.cc"}
    assert {reason: entry["files"] for reason, entry in result["projects"]["ccc"]["skipped"].items()} == {
        "copy of held-out text": 2, "copy of another file": 1,
    }  # fmt: skip
    assert "int used()" in (text := "".join(text for _, text in documents(out)["train"]))
    assert "held1_3(int" not in text
    (fourth,) = write_projects(tmp_path, ddd=copies | changed | {"own.cc": code("own", 2)})
    build(settings(out, fourth, append=True, near_duplicates=near_duplicates))
    near = {"own.cc"} if near_duplicates else {"own.cc", *copies, *changed}
    assert {file for project, file in accepted(out) if project == "ddd"} == near


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_one_by_one_or_all_at_once_the_same_files_are_accepted(tmp_path, seed):
    chance = Random(seed)
    pool = [text for each in range(4) for text in random_project(Random(9 * seed + each)).values()]
    pool += [code("long", number) for number in range(4)]
    given = []
    for number in range(5):
        files = {f"f{i}.cc": text for i, text in enumerate(chance.sample(pool, 8))}
        near = {"near.cc": chance.choice(pool[-4:]).replace("v3", f"w{number}")}
        given += write_projects(tmp_path, **{f"p{number}": files | near | {"own.cc": code("own", number)}})
    build(settings(tmp_path / "at_once", *given))
    build(settings(tmp_path / "one_by_one", *given[:2]))
    for project in given[2:]:
        build(settings(tmp_path / "one_by_one", project, append=True))
    assert accepted(tmp_path / "at_once") == accepted(tmp_path / "one_by_one")


def test_a_corpus_without_fingerprints_cannot_grow(tmp_path):
    first, second, third = projects(tmp_path)
    out = tmp_path / "out"
    build(settings(out, first, second))
    manifest = json.loads((out / "manifest.json").read_text())
    name = manifest["fingerprints"]["name"]
    (out / "manifest.json").write_text(json.dumps({**manifest, "fingerprints": {"version": 0}}))
    with pytest.raises(UserError, match=r"another version of cpplm.*Build it anew"):
        build(settings(out, third, append=True))
    (out / "manifest.json").write_text(json.dumps(manifest))
    (out / name).write_bytes(b"damaged")
    with pytest.raises(UserError, match=f"{name} is damaged"):
        build(settings(out, third, append=True))


def test_a_corpus_of_one_project_grows(tmp_path):
    build(settings(tmp_path / "out", TINYLIB, val_fraction=0.3))
    before = documents(tmp_path / "out")
    result = build(settings(tmp_path / "out", *projects(tmp_path, 1), append=True, val_fraction=0.3))
    after = documents(tmp_path / "out")
    assert result["split_by"] == "unit"
    assert all(set(before[split]) <= set(after[split]) for split in before)
    assert {p for texts in after.values() for p, _ in texts} == {"tinylib", "project0"}


def test_the_summary_says_what_was_redacted(tmp_path):
    folder = tmp_path / "p"
    write_files(folder, {"a.cc": "// ann@corp.com\nint a;\n"})
    result = build(settings(tmp_path / "out", folder, TINYLIB))
    assert corpus_totals(result)["redacted"] == {"e-mail address": 1}
    assert "a.cc:1" in format_summary(result, "out")
