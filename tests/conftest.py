"""Small real inputs shared by the tests: documents, shards, a tokenizer."""

import os
import signal
from pathlib import Path

import hypothesis
import pyarrow as pa
import pytest
import torch

from cpplm.core.shards import write_manifest, write_shard
from cpplm.core.storage import Storage
from cpplm.model.settings import ArchitectureSettings
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.settings import TrainSettings
from tests.texts import cpp_document, make_tokenizer

# A busy machine is no failure; CI tries the same examples each time, a developer new ones.
# `pytest --hypothesis-profile=thorough` tries ten times as many.
_ANY_SPEED = {"deadline": None, "derandomize": "CI" in os.environ}
hypothesis.settings.register_profile("cpplm", max_examples=30, **_ANY_SPEED)
hypothesis.settings.register_profile("thorough", max_examples=300, **_ANY_SPEED)
hypothesis.settings.load_profile("cpplm")
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # of a shell's background job; programs would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # the models here are tiny: more threads only wait for each other

# The default model for tests that train it: its n-gram tables are most of what has to be made and saved.
SMALL_TABLES = ArchitectureSettings(engram_table_size=100)

SCHEMA = pa.schema([("text", pa.string()), ("id", pa.string()), ("project", pa.string())])


def write_corpus(folder: Path, per_shard: dict[str, list[int]]) -> Path:
    """Real shards: {"train": [5, 3]} makes two training shards of 5 and 3 documents."""
    storage, shards, number = Storage(folder, create=True), [], 0
    for split, sizes in per_shard.items():
        for index, size in enumerate(sizes):
            rows = [
                {"text": cpp_document(n), "id": f"{n:x}", "project": f"p{n % 3}"}
                for n in range(number, number + size)
            ]
            number += size
            shards.append(write_shard(storage, split, index, rows, SCHEMA))
    write_manifest(storage, shards)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), {"train": [70, 9, 21], "val": [8]})


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return make_tokenizer((cpp_document(number) for number in range(100)), 512)


@pytest.fixture(scope="session")
def small_run(corpus: Path, tokenizer_path: Path) -> TrainSettings:
    """Of the smallest model, and a few steps; without a place for them."""
    return TrainSettings(
        data_dir=(str(corpus),), tokenizer=tokenizer_path, out=Path("nowhere"), depth=1, head_dim=16,
        max_seq_len=64, device_batch_size=2, total_batch_size=128, num_iterations=8, eval_every=-1,
        architecture=SMALL_TABLES, no_compile=True, precision="fp32",
    )  # fmt: skip


@pytest.fixture(scope="session")
def tokenizer_path(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(tokenizer.to_json())
    return path
