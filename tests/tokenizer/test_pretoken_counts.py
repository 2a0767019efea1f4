"""Counts of words: the same for any order, batches and workers; weighed by projects."""

import random
from pathlib import Path

import numpy as np
import pytest

from cpplm.core.errors import UserError
from cpplm.tokenizer.pretoken_counts import FileBatch, count_words
from cpplm.tokenizer.pretokenizer import PATTERNS
from cpplm.tokenizer.train import train_vocabulary
from tests.texts import TextBatch, cpp_document

PATTERN = PATTERNS["lines"]
DOCUMENTS = [(f"project {number % 6}", cpp_document(number).encode()) for number in range(60)]


def batches(documents: list[tuple[str, bytes]], size: int) -> list[TextBatch]:
    """Batches of one project each, `size` texts at most."""
    found = []
    for project in sorted({project for project, _ in documents}):
        texts = [text for name, text in documents if name == project]
        found += [TextBatch(tuple(texts[i : i + size]), project) for i in range(0, len(texts), size)]
    return found


@pytest.mark.parametrize(("size", "workers"), [(1, 1), (7, 1), (100, 1), (3, 2)])
def test_any_order_any_batches_any_workers(size: int, workers: int) -> None:
    expected = count_words(batches(DOCUMENTS, 10), PATTERN, workers=1)
    shuffled = random.Random(size).sample(DOCUMENTS, len(DOCUMENTS))
    parts = batches(shuffled, size)
    random.Random(0).shuffle(parts)
    found = count_words(parts, PATTERN, workers=workers)
    assert found.words == expected.words
    assert np.array_equal(found.weights, expected.weights)
    assert found.num_bytes == sum(len(text) for _, text in DOCUMENTS)
    assert found.num_projects == 6
    assert train_vocabulary(found, 450) == train_vocabulary(expected, 450)


def test_words_of_few_projects_count_less() -> None:
    texts = {"a": b"one;two;all", "b": b"two;all", "c": b"all", "d": b"all"}
    found = count_words([TextBatch((text,), project) for project, text in texts.items()], PATTERN, workers=1)
    weights = dict(zip(found.words, found.weights.tolist(), strict=True))
    # `;two` is a word, since punctuation may lead one.
    assert weights == {b"one": 7, b";two": 7, b"two": 7, b";all": 2 * 14, b"all": 2 * 14}
    more = [*texts.items(), ("e", b"all")]
    found = count_words([TextBatch((text,), project) for project, text in more], PATTERN, workers=1)
    assert dict(zip(found.words, found.weights.tolist(), strict=True))[b"all"] == 3 * 20


def test_with_few_projects_all_words_count_alike() -> None:
    found = count_words([TextBatch((b"int x",), "a"), TextBatch((b"int y",), "b")], PATTERN, workers=1)
    assert dict(zip(found.words, found.weights.tolist(), strict=True)) == {b"int": 40, b" x": 20, b" y": 20}


def test_a_share_of_the_texts_does_not_depend_on_their_order() -> None:
    whole = count_words(batches(DOCUMENTS, 10), PATTERN, workers=1)
    half = count_words(batches(DOCUMENTS, 10), PATTERN, workers=1, share=0.5)
    again = count_words(batches(DOCUMENTS[::-1], 3), PATTERN, workers=1, share=0.5)
    assert 0.2 * whole.num_bytes < half.num_bytes < 0.8 * whole.num_bytes
    assert half.words == again.words
    assert np.array_equal(half.weights, again.weights)


def test_bytes_that_are_no_text_are_counted() -> None:
    found = count_words([TextBatch((b"a\xffb \xe4\xb8\xad\xe6\x96\x87",))], PATTERN, workers=1)
    assert set(found.words) == {b"a\xffb", " \u4e2d\u6587".encode()}


def test_no_text(tmp_path: Path) -> None:
    for texts in ((), (b"",)):
        with pytest.raises(UserError, match="no text"):
            count_words([TextBatch(texts)], PATTERN, workers=1)
    with pytest.raises(UserError, match=r"cannot read .*gone\.cpp"):
        count_words([FileBatch("p", (tmp_path / "gone.cpp",), 1)], PATTERN, workers=1)


def test_files_have_the_line_ends_of_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.cpp"
    path.write_bytes(b"int x;\r\nint y;\r\n")
    assert list(FileBatch("p", (path,), 16).texts()) == [("p", b"int x;\nint y;\n")]
