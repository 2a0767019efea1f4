"""The plain encoder, and what an encoder is given."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import write_manifest, write_shard
from cpplm.core.storage import Storage
from cpplm.dataloader.encoding import PlainEncoder, RawDocument, TokenIds
from cpplm.dataloader.pack_worker import PackSource, pack_group
from cpplm.dataloader.sampler import DocumentGroup
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.texts import cpp_document, make_tokenizer


@pytest.mark.parametrize("threads", [1, 3])
def test_the_plain_encoder_gives_the_tokenizers_ids(
    tokenizer: Tokenizer, tokenizer_path: Path, threads: int
) -> None:
    texts = [cpp_document(number) for number in range(5)]
    encoder = PlainEncoder(str(tokenizer_path), tokenizer.hash, 512, threads)
    found = encoder.encode([RawDocument(text, (0, 0, 0)) for text in texts])
    assert [[ids.tolist() for ids in pieces] for pieces in found] == [
        [tokenizer.encode(text, prepend="<BOS>")] for text in texts
    ]


def test_another_tokenizer_under_the_same_path_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(make_tokenizer(map(cpp_document, range(9)), 350).to_json())
    with pytest.raises(UserError, match="was replaced by another tokenizer"):
        PlainEncoder(str(path), tokenizer.hash, 512).encode([RawDocument("x", (0, 0, 0))])


@dataclass(frozen=True)
class Recorder:
    """Keeps what it was given, and gives each document three tokens."""

    seen: tuple[list[RawDocument], ...]
    columns: tuple[str, ...] = ("spans", "docstrings")
    packs_whole: bool = False

    def __hash__(self) -> int:
        return hash(self.columns)

    def encode(self, documents: list[RawDocument]) -> list[list[TokenIds]]:
        self.seen[0].extend(documents)
        return [[np.array([2, 7, 8], dtype=np.int32)] for _ in documents]


@pytest.mark.parametrize("with_columns", [False, True])
def test_an_encoder_is_given_the_columns_it_asks_for_as_far_as_they_exist(
    tmp_path: Path, with_columns: bool
) -> None:
    schema = pa.schema([("text", pa.string())])
    rows: list[dict[str, object]] = [{"text": text} for text in "abc"]
    if with_columns:
        pairs = pa.list_(pa.struct([("doc_start", pa.int32())]))
        schema = schema.append(pa.field("spans", pa.binary())).append(pa.field("docstrings", pairs))
        rows = [row | {"spans": b"s", "docstrings": [{"doc_start": 1}]} for row in rows]
    shard = write_shard(Storage(tmp_path), "train", 0, rows, schema)
    write_manifest(Storage(tmp_path), [shard])
    seen: list[RawDocument] = []
    source = PackSource(str(tmp_path), Recorder((seen,)), seq_len=3)
    pack_group(source, DocumentGroup(epoch=4, number=0, shard=shard, documents=(2, 0), row_seed=(0,)), ())
    assert [(document.text, document.key) for document in seen] == [("c", (4, 0, 2)), ("a", (4, 0, 0))]
    extra = (b"s", [{"doc_start": 1}]) if with_columns else (None, None)
    assert {(document.spans, str(document.docstrings)) for document in seen} == {(extra[0], str(extra[1]))}
    seen.clear()
    pack_group(replace(source, encoder=Recorder((seen,), ())), DocumentGroup(4, 0, shard, (1,), (0,)), ())
    assert seen == [RawDocument("b", (4, 0, 1))]


def test_workers_start_without_torch() -> None:
    code = "import sys, cpplm.dataloader.pack_worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
