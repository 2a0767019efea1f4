"""A teacher whose every weight matters, as a run, and a cache of it."""

import dataclasses
from pathlib import Path

import pytest

from cpplm.compress.kd import build
from cpplm.compress.kd.build import build_cache
from cpplm.compress.kd.settings import CacheBuildSettings
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import json_bytes
from cpplm.train.checkpoint.save import write_checkpoint
from tests.model.features import PLAIN, random_model

LENGTH, BATCH, NUM_ROWS = 64, 2, 19


def write_teacher(folder: Path, tokenizer: Tokenizer, *, seed: int = 0, **record: object) -> Path:
    """A run with one checkpoint; `record` is what its settings say."""
    config = dataclasses.replace(PLAIN, vocab_size=tokenizer.vocab_size, max_seq_len=LENGTH)
    files = {
        "config.json": json_bytes(to_dict(config)),
        "settings.json": json_bytes(record),
        "tokenizer.json": tokenizer.to_json(),
    }
    weights = {"model.safetensors": random_model(config, seed).state_dict()}
    write_checkpoint(Storage(folder / "checkpoints", create=True), 1, weights, files)
    return folder


@pytest.fixture(scope="session")
def teacher(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_teacher(tmp_path_factory.mktemp("teacher"), tokenizer, data={"document_mask": True})


@pytest.fixture(scope="session")
def build_settings(corpus: Path, teacher: Path) -> CacheBuildSettings:
    """Of a cache of several shards; without a place for it."""
    return CacheBuildSettings(
        corpus=str(corpus), teacher=str(teacher), out=Path("nowhere"), num_tokens=NUM_ROWS * LENGTH - 5,
        topk=5, negatives=3, device_batch_size=BATCH, device_type="cpu", precision="fp32",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of eight rows."""
    monkeypatch.setattr(build, "SHARD_BYTES", 4 * BATCH * LENGTH * (2 * (2 + 5 + 3) + 2 * 6))


@pytest.fixture
def cache(build_settings: CacheBuildSettings, tmp_path: Path) -> Path:
    build_cache(dataclasses.replace(build_settings, out=tmp_path / "cache"))
    return tmp_path / "cache"
