"""JSON lines out of a corpus: every row, each pair once, nothing half-written."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import write_manifest, write_shard
from cpplm.core.storage import Storage
from cpplm.corpus.reports import export_jsonl as module
from cpplm.corpus.reports.export_jsonl import ExportSettings, export_corpus
from cpplm.cpp.doc_comments import DocPair
from tests.commands import assert_one_line_error, cpplm

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("project", pa.string()),
        ("files", pa.list_(pa.string())),
        ("license", pa.string()),
        ("spans", pa.binary()),
    ]
)
PAIRS = ("docstrings", pa.list_(pa.struct([(name, pa.int32()) for name in DocPair._fields])))


def row(number: int, function: str) -> dict[str, object]:
    doc, signature, body = "// größer: adds one", f"int {function}(int x)", "{ return x + 1; }"
    text = f"// é {number}\n\n{doc}\n{signature} {body}\n"
    data = text.encode()
    places = [(data.index(part.encode()), len(part.encode())) for part in (doc, signature, body)]
    offsets = DocPair(*(offset for start, length in places for offset in (start, start + length)))
    return {
        "text": text,
        "id": str(number),
        "project": "p",
        "files": [f"{function}.cpp"],
        "license": "MIT",
        "spans": b"\0" * 7,
        "docstrings": [offsets._asdict()],
    }


def corpus(folder: Path, *, schema: pa.Schema) -> str:
    storage = Storage(folder, create=True)
    train = [row(number, f"f{number % 3}") for number in range(300)]
    shards = [
        write_shard(storage, "train", 0, train[:200], schema),
        write_shard(storage, "train", 1, train[200:], schema),
        write_shard(storage, "val", 0, [row(300, "only_here")], schema),
    ]
    write_manifest(storage, shards)
    return str(folder)


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> str:
    return corpus(tmp_path_factory.mktemp("documented"), schema=SCHEMA.append(pa.field(*PAIRS)))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_documents_with_their_provenance(documented, tmp_path):
    to = tmp_path / "new" / "documents.jsonl"
    result = export_corpus(ExportSettings(documented, to=str(to)))
    written = lines(to)
    assert (result["documents"], result["lines"], result["bytes"]) == (301, 301, to.stat().st_size)
    wanted = {name: value for name, value in row(0, "f0").items() if name not in ("spans", "docstrings")}
    assert written[0] == {**wanted, "split": "train"}
    assert [line["id"] for line in written] == [str(number) for number in range(301)]
    assert written[-1]["split"] == "val"
    assert [path.name for path in to.parent.iterdir()] == ["documents.jsonl"]


def test_each_pair_once(documented, tmp_path):
    to = tmp_path / "pairs.jsonl"
    result = export_corpus(ExportSettings(documented, to=str(to), what="docstrings"))
    assert result["lines"] == 4
    assert lines(to)[-1] == {
        "docstring": "größer: adds one",
        "signature": "int only_here(int x)",
        "body": "{ return x + 1; }",
        "id": "300",
        "project": "p",
        "files": ["only_here.cpp"],
        "license": "MIT",
        "split": "val",
    }


def test_one_split(documented, tmp_path):
    to = tmp_path / "val.jsonl"
    assert export_corpus(ExportSettings(documented, to=str(to), split="val"))["documents"] == 1
    assert [line["id"] for line in lines(to)] == ["300"]


def test_compressed_in_several_portions(documented, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PORTION_BYTES", 1_000)
    plain, zipped, zstd = (tmp_path / f"a.jsonl{ending}" for ending in ("", ".gz", ".zst"))
    for path in (plain, zipped, zstd):
        export_corpus(ExportSettings(documented, to=str(path)))
    assert gzip.decompress(zipped.read_bytes()) == plain.read_bytes()
    with pa.CompressedInputStream(pa.OSFile(str(zstd)), "zstd") as stream:
        assert stream.read() == plain.read_bytes()
    assert zstd.stat().st_size < plain.stat().st_size


def test_nothing_stays_of_an_export_that_fails(documented, tmp_path, monkeypatch):
    to = tmp_path / "a.jsonl.gz"
    to.write_text("what was there\n")
    monkeypatch.setattr(module, "_PORTION_BYTES", 1_000)
    monkeypatch.setattr(module.pa, "Codec", lambda name: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        export_corpus(ExportSettings(documented, to=str(to)))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {to.name: "what was there\n"}


def test_a_corpus_without_pairs_says_so(tmp_path):
    older = corpus(tmp_path / "older", schema=SCHEMA)
    with pytest.raises(UserError, match=r"no docstring pairs.*Build the corpus again"):
        export_corpus(ExportSettings(older, to=str(tmp_path / "a.jsonl"), what="docstrings"))
    assert not (tmp_path / "a.jsonl").exists()
    assert export_corpus(ExportSettings(older, to=str(tmp_path / "a.jsonl")))["lines"] == 301


def test_places_that_cannot_be_written_to(documented, tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").write_text("")
    for name, message in (
        ("a.txt", r"ends in none of \.jsonl"),
        ("folder.jsonl", "is a folder"),
        ("file/a.jsonl", "cannot use"),
    ):
        with pytest.raises(UserError, match=message):
            export_corpus(ExportSettings(documented, to=str(tmp_path / name)))


def test_command_line(documented, tmp_path):
    to = tmp_path / "pairs.jsonl.gz"
    done = cpplm("corpus", "export", documented, "--what", "docstrings", "--to", to, "--json")
    assert done.returncode == 0, done.stderr
    assert "4 pairs of 301 documents" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["lines"] == 4
    failed = cpplm("corpus", "export", tmp_path, "--to", tmp_path / "a.jsonl")
    assert_one_line_error(failed, "no finished documents")
