"""Benchmarks are measured, not tested; each is imported, and the scoring behind the headline is checked."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from cpplm.core.shards import ShardReader
from cpplm.evaluate.fim.holes import FimHole
from cpplm.evaluate.texts import Text
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from cpplm.tokenizer.tokenizer import Tokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(
    ".".join(path.relative_to(BENCHMARKS).with_suffix("").parts)
    for path in BENCHMARKS.rglob("*.py")
    if path.stem != "__init__"
)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_is_up_to_date(name: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Everything that it imports is there, and a script among them says what it takes."""
    module = importlib.import_module(name)
    if hasattr(module, "main"):
        monkeypatch.setattr("sys.argv", [name, "--help"])
        with pytest.raises(SystemExit) as ended:
            module.main()
        assert ended.value.code == 0
        assert "usage:" in capsys.readouterr().out


def bytes_as_tokens(texts: list[str]):
    encoded = [list(text.encode()) for text in texts]
    scoring = importlib.import_module("bpb.scoring")
    return scoring.HeldOut.of(
        texts, encoded, token_bytes=np.ones(256, dtype=int), start_id=0, seq_len=16, rows=3
    )


def test_a_model_that_guesses_takes_the_logarithm_of_its_vocabulary() -> None:
    held_out = bytes_as_tokens(["int main() {}\n" * 50, "x", "// äöü\n"])
    score = held_out.score(lambda _, targets: (targets != IGNORE_INDEX) * math.log(256), torch.device("cpu"))
    assert score.whole == score.code == pytest.approx(8)


def test_a_license_notice_counts_in_whole_files_only() -> None:
    notice = "/* Copyright 2020 A\n */\n// License: see LICENSE.\n"
    text = f"\n{notice}\n// Adds.\nint add(int a, int b); // no warranty\n" * 3
    scoring = importlib.import_module("bpb.scoring")
    assert text[: scoring.notice_length(text)] == "\n" + notice
    assert scoring.notice_length("// Adds.\nint a; // license\n") == 0

    def losses(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (targets != IGNORE_INDEX) * torch.where(targets == ord("\n"), math.log(4), math.log(2))

    score = bytes_as_tokens([text, "int main() {}\n"]).score(losses, torch.device("cpu"))
    head, size = len(notice) + 1, len(text) + 14
    whole = size + text.count("\n") + 1
    assert score.whole == pytest.approx(whole / size)
    assert score.code == pytest.approx((whole - head - text[:head].count("\n")) / (size - head))


def test_passing_is_found_between_two_points() -> None:
    passing_time = importlib.import_module("bpb.report").passing_time
    curve = [(0.0, 5.0), (10.0, 3.0), (20.0, 2.0)]
    assert passing_time(curve, 4.0) == pytest.approx(5)
    assert passing_time(curve, 1.9) is None
    assert passing_time(curve, 6.0) == 0


def test_baselines_of_completion(corpus: Path, tokenizer: Tokenizer) -> None:
    baselines = importlib.import_module("completion_baselines")
    text = next(text for _, text in ShardReader(corpus).texts("train"))
    start, end = text.index("\n", len(text) // 3) + 1, text.index("\n", len(text) // 2)
    hole = FimHole("x", "single", "p/own", text[:start], "?", text[end:], text[:start], text[end:])
    own, other = (Text(each, "p", path=name) for name, each in {"own": text[:start], "other": text}.items())
    held_out = baselines.HeldOut([hole], {"p/own": own}, {"p": [own, other]})
    expected = text[start:].split("\n", 1)[0]
    assert baselines.LineCopy(held_out, project=True)(hole) == expected
    assert baselines.LineCopy(held_out, project=False)(hole) != expected
    assert baselines.TokenCopy(held_out, tokenizer)(hole) == expected
    line = baselines.BackoffModel(corpus, tokenizer)(hole)
    assert line
    assert any(line in each.split("\n") for _, each in ShardReader(corpus).texts("train"))
