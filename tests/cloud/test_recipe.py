"""Recipes: what they may say, and what is told about what they may not."""

from pathlib import Path
from typing import Any

import pytest

from cpplm.cloud.catalog import slice_type, slice_types
from cpplm.cloud.spec import RunSpec, read_recipe
from cpplm.core.errors import UserError

SOUND = """
run = "gs://my-bucket/runs/mine"
corpus = "gs://my-bucket/corpus"
tokenizer = "cpp-65k"
type = "v6e-8"
spot = true
zones = ["us-east5-b", "asia-northeast1-b"]
max_cost = 50.0
[train]
depth = 16
max_seq_len = 16384
document_mask = true
mesh = "context=2"
"""


def recipe(folder: Path, text: str = SOUND) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_a_recipe_and_what_wins_over_it(tmp_path: Path) -> None:
    spec = read_recipe(recipe(tmp_path), zones=["europe-west4-a"], max_cost=None, spot=None)
    assert spec == RunSpec(
        "gs://my-bucket/runs/mine", "gs://my-bucket/corpus", "cpp-65k",
        {"depth": 16, "max_seq_len": 16384, "document_mask": True, "mesh": "context=2"},
        type="v6e-8", spot=True, zones=("europe-west4-a",), max_cost=50.0,
    )  # fmt: skip
    assert (spec.places, spec.hourly_price, spec.max_cost) == (("europe-west4-a",), pytest.approx(3.4), 50.0)


@pytest.mark.parametrize(
    ("change", "to", "message"),
    [
        ('type = "v6e-8"', 'type = "v6e-7"', "no TPU slice 'v6e-7'"),
        ('type = "v6e-8"', 'type = "v5p-8"', "slices of v5p are not rented here"),
        ('"us-east5-b"', '"mars-a"', "zone mars-a is not known to have v6e.*Use asia-northeast1-b"),
        ('run = "gs://my-bucket/runs/mine"', 'run = "/tmp/mine"', "which no machine in the cloud sees"),
        ('run = "gs://my-bucket/runs/mine"', "", 'run is missing.*Add run = "..."'),
        ("spot = true", "spott = true", "unknown setting 'spott'.*Did you mean 'spot'"),
        ("spot = true", "spot = 1", "spot"),
        ("depth = 16", "dept = 16", r"\[train\]: unknown setting 'dept'.*Did you mean 'depth'"),
        ("depth = 16", 'depth = "16"', r"\[train\].*depth"),
        ("depth = 16", 'upload_dir = "x"', r"\[train\] upload_dir is set by the run"),
        ("max_cost = 50.0", "poll_seconds = 0.0", "poll_seconds = 0.0"),
        ("max_cost = 50.0", 'launch = "x"', "launch is set by 'cpplm tpu run'"),
        ("max_cost = 50.0", 'backend = "local"', "spot is of the cloud"),
        ("max_cost = 50.0", "max_cost = ", "is not valid TOML"),
    ],
)
def test_what_a_recipe_may_not_say(change: str, to: str, message: str, tmp_path: Path) -> None:
    assert change in SOUND
    with pytest.raises(UserError, match=message) as raised:
        read_recipe(recipe(tmp_path, SOUND.replace(change, to)))
    assert "\n" not in str(raised.value).strip() or "TOML" in message


def test_a_folder_here_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {"backend": "local", "spot": False, "run": "mine", "zones": []}
    assert read_recipe(recipe(tmp_path), **values).run == str(tmp_path / "mine")


def test_the_table_of_slices() -> None:
    rows = {row["type"]: row for row in (each.figures() for each in slice_types())}
    assert rows["v6e-4"] == {
        "type": "v6e-4", "accelerator_type": "v6e-4", "topology": "2x2", "chips": 4, "hosts": 1,
        "hbm_gib": 128, "runtime": "v2-alpha-tpuv6e", "on_demand_per_hour": 5.1, "spot_per_hour": 1.7,
        "zones": ["asia-northeast1-b", "us-east5-b", "us-central2-b", "europe-west4-a"],
    }  # fmt: skip
    assert rows["v5e-8"]["accelerator_type"] == "v5litepod-8"
    assert (rows["v5e-8"]["on_demand_per_hour"], rows["v5e-8"]["spot_per_hour"]) == (6.12, 2.04)
    assert rows["v6e-256"]["hosts"] == 64
    assert slice_type("v5litepod-8").figures() == rows["v5e-8"]
    assert {each.generation.name for each in slice_types("v5e")} == {"v5e"}
