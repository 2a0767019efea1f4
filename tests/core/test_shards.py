from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import (
    COMPLETE,
    MANIFEST,
    ShardReader,
    describe_shard,
    shard_names,
    write_manifest,
    write_shard,
)
from cpplm.core.storage import Storage
from cpplm.dataloader.streaming import StreamingReader

SCHEMA = pa.schema([("text", pa.string()), ("id", pa.string()), ("project", pa.string())])


def rows(*texts: str) -> list[dict[str, str]]:
    return [{"text": text, "id": text[:2], "project": "p"} for text in texts]


def written(folder: Path) -> Storage:
    storage = Storage(folder, create=True)
    shards = [
        write_shard(storage, "train", 0, rows("é", "b"), SCHEMA),
        write_shard(storage, "train", 1, rows("c"), SCHEMA),
    ]
    write_manifest(storage, [*shards, write_shard(storage, "val", 0, rows("d"), SCHEMA)], note="x")
    return storage


def test_what_was_written_is_read_in_order(tmp_path):
    written(tmp_path)
    reader = ShardReader(tmp_path)
    assert list(reader.texts("train")) == [("p", "é"), ("p", "b"), ("p", "c")]
    assert list(reader.texts("val")) == [("p", "d")]
    assert [(shard.documents, shard.bytes) for shard in reader.shards("train")] == [(2, 3), (1, 1)]
    assert reader.manifest["note"] == "x"
    assert reader.table(reader.shards("val")[0], ["text", "not there"]).to_pylist() == [{"text": "d"}]
    assert reader.num_train_shards() == 2
    assert reader.train_shard(1) == reader.shards("train")[1]


def test_a_description_follows_from_the_file(tmp_path):
    written(tmp_path)
    for shard in ShardReader(tmp_path).shards("train"):
        data = (tmp_path / shard.name).read_bytes()
        assert describe_shard(shard.name, data, pq.read_table(pa.BufferReader(data))) == shard


def test_the_fingerprint_is_of_the_contents(tmp_path):
    written(tmp_path / "a")
    written(tmp_path / "b")
    assert ShardReader(tmp_path / "a").fingerprint() == ShardReader(tmp_path / "b").fingerprint()
    assert (tmp_path / "a" / MANIFEST).read_bytes() == (tmp_path / "b" / MANIFEST).read_bytes()
    storage = Storage(tmp_path / "c", create=True)
    write_manifest(storage, [write_shard(storage, "train", 0, rows("e"), SCHEMA)])
    assert ShardReader(tmp_path / "c").fingerprint() != ShardReader(tmp_path / "a").fingerprint()


def test_an_unfinished_folder_is_refused(tmp_path):
    written(tmp_path).delete([COMPLETE])
    with pytest.raises(UserError, match="no finished documents"):
        ShardReader(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"PAR1 nonsense"])
def test_a_damaged_shard_is_named(tmp_path, damage):
    written(tmp_path)
    (tmp_path / "train_00001.parquet").write_bytes(damage)
    with pytest.raises(UserError, match=r"train_00001\.parquet is damaged: it has \d+ bytes, not \d+"):
        ShardReader(tmp_path)


@pytest.mark.parametrize("cls", [ShardReader, StreamingReader])
def test_a_source_file_is_no_corpus(cls: type[ShardReader], tmp_path: Path) -> None:
    source = tmp_path / "foo.cpp"
    source.write_text("int main() {}")
    with pytest.raises(
        UserError, match=r"foo\.cpp is a file, not a corpus\..* cpplm corpus build --projects"
    ):
        cls(source)


def test_a_missing_shard_and_a_wrong_manifest_are_named(tmp_path):
    storage = written(tmp_path)
    storage.delete(["val_00000.parquet"])
    with pytest.raises(UserError, match=r"val_00000\.parquet is missing"):
        ShardReader(tmp_path)
    storage.write_json(MANIFEST, {"shards": [{"name": "x"}]})
    with pytest.raises(UserError, match="does not describe shards"):
        ShardReader(tmp_path)


def test_only_shard_names_are_shards(tmp_path):
    storage = written(tmp_path)
    storage.write("train_notes.parquet", b"")
    storage.write("deep/train_00000.parquet", b"")
    assert shard_names(storage) == ["train_00000.parquet", "train_00001.parquet", "val_00000.parquet"]
