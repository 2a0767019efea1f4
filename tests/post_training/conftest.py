"""Conversations, and a model to fine-tune on them."""

import dataclasses
import json
from pathlib import Path

import pytest

from cpplm.train.pretrain import pretrain
from tests.train.conftest import activations_are_traced_once, small_settings

__all__ = ["activations_are_traced_once"]  # a fixture of each test here


def question(number: int) -> dict:
    return {
        "messages": [
            {"role": "user", "content": f"int f{number}"},
            {"role": "assistant", "content": f"return {number % 7};"},
        ]
    }


def write(path: Path, *records: dict | str | bytes) -> Path:
    lines = [
        r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode() for r in records
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


@pytest.fixture(scope="package")
def base(corpus: Path, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = small_settings(corpus, tokenizer_path, tmp_path_factory.mktemp("base") / "run")
    pretrain(dataclasses.replace(settings, max_seq_len=64))
    return settings.out
