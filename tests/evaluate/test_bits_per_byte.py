"""Bits per byte: the arithmetic on a model whose bits are known, the sources of texts, what a crash keeps."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.core.jsonl import ResumableJsonl
from cpplm.evaluate.bits_per_byte import figures, measure_texts, resolve_context, table
from cpplm.evaluate.models.code_model import TokenBits
from cpplm.evaluate.settings import BpbSettings
from cpplm.evaluate.sliding_window import sliding_windows
from cpplm.evaluate.texts import LARGEST_FILE, Text, fingerprint, read_texts
from tests.conftest import write_corpus
from tests.texts import cpp_document


class Counting:
    """A model of single bytes: a byte costs 8 bits, but 1 where the same byte is in view before it.

    It is a real, if poor, model whose figures can be counted by hand: more context never hurts.
    """

    name, supports_fim, max_context = "counting", False, 64
    identity: dict[str, Any] = {"kind": "counting"}

    def __init__(self, fail_after: int = 10**9) -> None:
        self.asked: list[str] = []
        self.fail_after = fail_after

    def score(self, texts: Sequence[str], *, context: int | None = None) -> Iterator[TokenBits]:
        for text in texts:
            if len(self.asked) >= self.fail_after:
                raise KeyboardInterrupt
            self.asked.append(text)
            data = text.encode()
            bits, view = np.zeros(len(data)), np.zeros(len(data), dtype=np.int64)
            for window in sliding_windows(len(data), context or self.max_context):
                for place in range(window.fresh, window.end):
                    bits[place] = 1 if data[place] in data[window.begin : place] else 8
                    view[place] = place - window.begin + 1
            yield TokenBits(np.arange(1, len(data) + 1), bits, view)


def measured(texts: Sequence[Text], kept: ResumableJsonl | None = None, **more: Any) -> dict[str, Any]:
    how = {"context": 64, "context_bytes": 0, **more}
    return measure_texts(Counting(), texts, store=kept or ResumableJsonl(None, {}), **how)  # type: ignore[arg-type]


# ---- figures ----------------------------------------------------------------------------------------------


def test_bits_are_added_and_divided_by_bytes() -> None:
    texts = [Text("aaaa", "p", "file"), Text("ab", "q", "chunk"), Text("abab", "p", "chunk")]
    found = measured(texts)
    assert found["bits_per_byte"] == pytest.approx((11 + 16 + 18) / 10)
    assert (found["documents"], found["bytes"], found["tokens"]) == (3, 10, 10)
    assert found["loss"] == pytest.approx(45 * math.log(2) / 10)
    assert {p: each["bits_per_byte"] for p, each in found["by_project"].items()} == {"p": 29 / 8, "q": 8}
    assert {k: each["bits_per_byte"] for k, each in found["by_kind"].items()} == {
        "chunk": 34 / 6,
        "file": 11 / 4,
    }
    assert list(found["by_project"]) == ["p", "q"]  # the one with most bytes first
    view = [(row["from"], row["to"], row["bytes"]) for row in found["by_context_length"]]
    assert view == [(1, 1, 3), (2, 3, 5), (4, 7, 2)]
    assert sum(row["bits_per_byte"] * row["bytes"] for row in found["by_context_length"]) == pytest.approx(45)
    assert json.loads(json.dumps(found)) == found


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(1, 100), st.integers(1, 50)), min_size=2, max_size=20))
def test_the_interval_holds_the_figure_and_knows_when_there_is_no_doubt(
    pairs: list[tuple[float, int]],
) -> None:
    found = figures([{"bits": bits, "bytes": size} for bits, size in pairs])
    low, high = found["interval"]
    rates = [bits / size for bits, size in pairs]
    assert min(rates) - 1e-9 <= low <= high <= max(rates) + 1e-9
    same = figures([{"bits": 3.0 * size, "bytes": size} for _, size in pairs])
    assert same["interval"] == pytest.approx([3.0, 3.0])


def test_shorter_contexts_are_compared_on_the_same_bytes() -> None:
    """A text that repeats itself every 48 bytes: 64 bytes of context see the repetition, 32 do not."""
    cycle = "".join(chr(33 + number) for number in range(48))
    texts = [Text(cycle * 5), Text("short"), Text(cycle * 3)]
    rows = measured(texts, context_bytes=10_000)["shorter_contexts"]
    assert [row["context"] for row in rows] == [64, 32]
    assert rows[0]["bytes"] == rows[1]["bytes"] == (128 - 32) + (128 - 32)  # two contexts of each, half off
    assert rows[0]["bits_per_byte"] < rows[1]["bits_per_byte"] == 8


def test_shorter_contexts_keep_to_their_budget_and_can_be_left_out() -> None:
    texts = [Text(cpp_document(number) * 3) for number in range(10)]
    assert measured(texts)["shorter_contexts"] == []
    assert measured([Text("short")], context_bytes=1000)["shorter_contexts"] == []
    rows = measured(texts, context_bytes=200)["shorter_contexts"]
    assert 0 < rows[0]["bytes"] <= 200
    assert measured(texts, context=32, context_bytes=200)["shorter_contexts"] == []


def test_the_table_has_every_part() -> None:
    texts = [Text(cpp_document(number) * 2, f"p{number}", "file") for number in range(25)]
    shown = table(measured(texts, context_bytes=300))
    for part in ("95 % interval", "p1", "and 5 more", "tokens in view", "context of", "16-31"):
        assert part in shown
    assert "file" not in shown  # a single group says nothing


def test_a_model_cannot_be_asked_for_more_than_its_context() -> None:
    assert resolve_context(BpbSettings("x"), Counting()) == 64
    assert resolve_context(BpbSettings("x", context=16), Counting()) == 16
    with pytest.raises(UserError, match="--context 65: counting has 64"):
        resolve_context(BpbSettings("x", context=65), Counting())


# ---- what a crash keeps -----------------------------------------------------------------------------------


def test_what_was_scored_before_a_crash_is_not_scored_again(tmp_path: Path) -> None:
    texts = [Text(cpp_document(number), f"p{number % 2}") for number in range(9)]
    path = tmp_path / "documents.jsonl"
    whole = measured(texts, context_bytes=200)
    for crash in (4, 7):
        model = Counting(fail_after=crash - (4 if crash == 7 else 0))
        with pytest.raises(KeyboardInterrupt), ResumableJsonl(path, {"a": 1}) as kept:
            measure_texts(model, texts, context=64, context_bytes=200, store=kept)
    with path.open("a") as file:
        file.write('{"project": "torn')
    model = Counting()
    with ResumableJsonl(path, {"a": 1}) as kept:
        assert len(kept.records) == 7
        assert measure_texts(model, texts, context=64, context_bytes=0, store=kept) == whole | {
            "shorter_contexts": []
        }
    assert model.asked == [text.text for text in texts[7:]]
    with ResumableJsonl(path, {"a": 2}) as kept:  # another question
        assert kept.records == []


# ---- sources of texts -------------------------------------------------------------------------------------


def test_a_corpus_gives_its_validation_documents(corpus: Path) -> None:
    found = read_texts(str(corpus))
    assert [text.text for text in found] == [cpp_document(number) for number in range(100, 108)]
    assert {text.project for text in found} == {"p0", "p1", "p2"}


def test_a_corpus_without_validation_documents(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no val documents"):
        read_texts(str(write_corpus(tmp_path / "corpus", {"train": [3]})))


def test_parquet_files_of_any_origin(tmp_path: Path) -> None:
    for number in range(2):
        columns = {"code": pa.array([f"int a{number};", None, ""]), "kind": pa.array(["x", "y", "z"])}
        pq.write_table(pa.table(columns), tmp_path / f"part{number}.parquet")
    whole = read_texts(str(tmp_path), "code")
    assert [(text.text, text.kind, text.project) for text in whole] == [
        ("int a0;", "x", ""),
        ("int a1;", "x", ""),
    ]
    assert read_texts(str(tmp_path / "part1.parquet"), "code") == whole[1:]
    with pytest.raises(UserError, match=r"no column 'text'.*--text_column: code, kind"):
        read_texts(str(tmp_path))
    (tmp_path / "part2.parquet").write_bytes(b"nothing")
    with pytest.raises(UserError, match="part2"):
        read_texts(str(tmp_path), "code")


@pytest.mark.parametrize("column", [pa.array([1, 2]), pa.array([["a"]])])
def test_a_column_that_holds_no_text(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="holds no text"):
        read_texts(str(tmp_path / "x.parquet"))


def test_cxx_files_by_sub_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {
        "one/a.cpp": b"int a;\r\n", "one/deep/b.HPP": b"int b;\n", "two/c.c": "ü".encode(), "main.cc": b"m",
        "one/.git/d.cpp": b"no", "two/readme.md": b"no", "two/empty.h": b"", "two/latin.h": b"\xfc",
        "two/large.h": b" " * (LARGEST_FILE + 1),
    }  # fmt: skip
    for name, data in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "two/link.h").symlink_to(tmp_path / "main.cc")
    (tmp_path / "two/broken.h").symlink_to("nowhere")
    found = {(text.project, text.kind, text.text) for text in read_texts(str(tmp_path))}
    assert found == {
        ("one", "source", "int a;\r\n"),
        ("one", "header", "int b;\n"),
        ("two", "source", "ü"),
        (tmp_path.name, "source", "m"),
    }
    said = capfd.readouterr().err
    assert "1 file left out, not UTF-8" in said
    assert "1 file left out, larger than" in said


@pytest.mark.parametrize("kind", ["missing", "empty", "text"])
def test_nothing_to_measure_on(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "place"
    if kind == "empty":
        path.mkdir()
    if kind == "text":
        path.write_text("int x;")
    with pytest.raises(UserError, match="place"):
        read_texts(str(path))


def test_a_part_is_the_same_for_every_model_and_no_prefix(tmp_path: Path) -> None:
    corpus = str(write_corpus(tmp_path / "corpus", {"train": [1], "val": [40]}))
    whole = read_texts(corpus)
    part = read_texts(corpus, most_bytes=3000)
    assert part == read_texts(corpus, most_bytes=3000)
    assert 1500 < sum(len(text.text) for text in part) <= 3000
    assert [text for text in whole if text in part] == part != whole[: len(part)]
    assert len(read_texts(corpus, most_bytes=1)) == 1
    assert read_texts(corpus, most_bytes=10**9) == whole


def test_the_fingerprint_tells_texts_apart() -> None:
    first = [Text("a", "p", "k"), Text("b")]
    others = [first[::-1], first[:1], [Text("a", "p", "x"), Text("b")], [Text("a", "q", "k"), Text("b")]]
    assert fingerprint(first) == fingerprint(list(first))
    assert len({fingerprint(texts) for texts in [first, *others]}) == 5
