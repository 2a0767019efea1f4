"""The checks at the start of training speak up when something is wrong, and only then."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cpplm.batches.loader import Batch, LoaderState
from cpplm.core.shards import ShardReader
from cpplm.tokenizer.checks import check_batch, check_hashes, check_vocabulary
from cpplm.tokenizer.pattern import PATTERN
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.tokenizer.train import learn_vocabulary
from cpplm.tokenizer.words import count_words
from cpplm.train.pretrain import checked
from tests.texts import TextBatch, cpp_document, make_tokenizer

CODE = [cpp_document(number) for number in range(20)]
PROSE = "The quick brown fox jumps over the lazy dog\nand then it sleeps in the sun for a while.\n" * 20
PYTHON = (
    'def area(width, height):\n    """The area."""\n    return width * height\n\n\nprint(area(2, 3))\n' * 10
)


def test_keywords() -> None:
    counted = count_words([TextBatch(tuple(text.encode() for text in CODE), "p")], PATTERN, workers=1)
    small = Tokenizer(PATTERN, learn_vocabulary(counted, 400))
    (warning,) = check_vocabulary(small)
    assert "C++ keywords and directives" in warning
    assert "'cpplm tokenizer train'" in warning
    large = make_tokenizer(["".join(f"name_{i:x}_{i * 7919 % 1009:x};" for i in range(6000)), *CODE], 2048)
    assert check_vocabulary(large) == []


def test_batches(tokenizer: Tokenizer) -> None:
    def rows(text: str) -> list[list[int]]:
        return np.array_split(np.array(tokenizer.encode(text, prepend="<BOS>")), 4)

    assert check_batch(tokenizer, [tokenizer.encode(text, prepend="<BOS>") for text in CODE]) == []
    for text in (PROSE, PYTHON):
        (warning,) = check_batch(tokenizer, rows(text))
        assert "look like C++" in warning
        assert "'cpplm corpus inspect'" in warning
    assert check_batch(tokenizer, [[2, 3]]) == []
    assert check_batch(tokenizer, []) == []
    (warning,) = check_batch(tokenizer, [[2, tokenizer.vocab_size]])
    assert f"token id {tokenizer.vocab_size:,}" in warning


def test_hashes(tokenizer: Tokenizer) -> None:
    assert check_hashes(tokenizer, "") == []
    assert check_hashes(tokenizer, tokenizer.hash) == []
    (warning,) = check_hashes(tokenizer, "f" * 64)
    assert "f" * 12 in warning
    assert tokenizer.hash[:12] in warning


def test_training_says_the_warnings_once_and_passes_all_batches_on(
    corpus: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = ShardReader(corpus)
    reader.manifest["identity"] = {"tokenizer_hash": "f" * 64}
    ids = torch.tensor([tokenizer.encode(PROSE), tokenizer.encode(PROSE)])
    batches = [Batch(ids, ids, LoaderState(rows)) for rows in range(3)]
    assert list(checked(iter(batches), reader, tokenizer)) == batches
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 3
    assert [any(part in line for line in warnings) for part in ("keywords", "f" * 12, "look like C++")] == [
        True
    ] * 3
