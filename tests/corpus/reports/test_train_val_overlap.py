import pyarrow as pa
import pytest

from cpplm.core.shards import write_shard
from cpplm.core.storage import Storage
from cpplm.corpus.reports.train_val_overlap import MIN_LINE_BYTES, train_val_overlap

SCHEMA = pa.schema([("project", pa.string()), ("text", pa.string())])
SHARED = "int shared_by_both(int value) { return value + 1; }"
OWN = "int of_validation_alone(int v) { return v * 2; }"
SHORT = "int short_line;"
WIDE = "// größer als vierzig Bytes, nicht Zeichen"[:39] + "ß"  # 40 bytes or more in fewer characters


@pytest.mark.parametrize(
    ("train", "val", "expected"),
    [
        ({"a": [SHARED]}, {"b": [f"  {SHARED}\n{OWN}\n{SHORT}"]}, (1, 0, [SHARED, OWN], [SHARED])),
        ({"a": [SHARED, SHORT]}, {"a": [SHORT], "b": [OWN]}, (2, 1, [OWN], [])),
        ({"a": ["x", SHARED + ";"]}, {"a": [SHARED, f"{SHARED}\n\t{SHARED}"]}, (1, 1, [SHARED] * 3, [])),
        ({"a": [SHARED]}, {"b": [SHARED] * 2}, (1, 0, [SHARED] * 2, [SHARED] * 2)),
        ({"a": [WIDE]}, {"b": [WIDE]}, (1, 0, [WIDE], [WIDE])),
        ({"a": [SHARED]}, {"b": [SHORT]}, (1, 0, [], [])),
    ],
)
def test_long_lines_of_validation_text_are_looked_for_in_training_text(tmp_path, train, val, expected):
    storage = Storage(tmp_path, create=True)
    shards = [
        write_shard(
            storage, split, number, [{"project": p, "text": t} for t in texts], SCHEMA
        )
        for split, by_project in (("train", train), ("val", val))
        for number, (p, texts) in enumerate(by_project.items())
    ]  # fmt: skip
    projects, in_train, long_lines, repeated = expected
    size, repeated_size = (sum(len(line.encode()) for line in lines) for lines in (long_lines, repeated))
    assert train_val_overlap(storage, shards) == {
        "projects": projects,
        "projects_in_train": in_train,
        "min_line_bytes": MIN_LINE_BYTES,
        "long_line_bytes": size,
        "repeated_bytes": repeated_size,
        "repeated_share": round(repeated_size / max(1, size), 4),
    }
