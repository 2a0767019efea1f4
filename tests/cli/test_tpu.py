"""`cpplm tpu ...`: machines, runs and prices from the command line."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.cloud.cloud_tpu import ENDPOINT
from cpplm.cloud.spec import RunSpec, write_spec
from cpplm.core.storage import Storage
from tests.cloud.fake_tpu import FakeTpu, fake_tpu
from tests.commands import assert_one_line_error, cpplm, reported

RECIPE = """
run = "{run}"
corpus = "{corpus}"
tokenizer = "cpp-32k"
backend = "local"
[train]
depth = 1
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTpu]:
    with fake_tpu(tmp_path / "nodes") as service:
        monkeypatch.setenv(ENDPOINT, service.address)
        yield service


def test_slices_and_prices() -> None:
    text, figures = reported("tpu", "types", "--generation", "v6e")
    assert {row["type"] for row in figures["types"]} >= {"v6e-1", "v6e-4", "v6e-8", "v6e-256"}
    assert "v2-alpha-tpuv6e" in text
    assert "2026-02" in text
    assert set(figures["versions"]) == {"Python", "jax", "libtpu"}
    text, figures = reported("tpu", "price", "v5litepod-8", "--hours", "100")
    assert figures["spot"]["total"] == pytest.approx(204.0)
    assert figures["on_demand"]["chip_hour"] == pytest.approx(0.765)
    assert "$204.00 for 100 h" in text
    assert_one_line_error(cpplm("tpu", "price", "v6e-5"), "no TPU slice 'v6e-5'", "v6e-4")


def test_a_machine_by_hand(fake: FakeTpu) -> None:
    text, _ = reported("tpu", "create", "mine", "--type", "v6e-4", "--zone", "us-east5-b", "--spot")
    assert "$1.70 per hour" in text
    while not (nodes := reported("tpu", "list")[1]["nodes"]) or nodes[0]["state"] != "ready":
        time.sleep(0.05)
    assert (nodes[0]["name"], nodes[0]["price_per_hour"], nodes[0]["address"]) == ("mine", 1.7, "127.0.0.1")
    assert 0 <= nodes[0]["cost"] < 0.1
    assert_one_line_error(cpplm("tpu", "delete", "yours"), "no machine yours", "There are: mine")
    reported("tpu", "stop", "mine")
    reported("tpu", "delete", "mine")
    while reported("tpu", "list")[1]["nodes"]:
        time.sleep(0.05)
    assert reported("tpu", "list")[0] == "no machines"


def test_ssh_remembers_each_machine_by_its_name(
    fake: FakeTpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported("tpu", "create", "mine", "--type", "v6e-4", "--zone", "us-east5-b")
    while reported("tpu", "list")[1]["nodes"][0]["state"] != "ready":
        time.sleep(0.05)
    (tmp_path / "ssh").write_text(f"#!/bin/sh\nprintf '%s|' \"$@\" > {tmp_path}/called\nexit 3\n")
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert cpplm("tpu", "ssh", "mine", "--user", "dave", "--command", "nproc").returncode == 3
    assert (tmp_path / "called").read_text().split("|")[:-1] == [
        "-o", "HostKeyAlias=mine.us-east5-b", "-o", "StrictHostKeyChecking=accept-new", "dave@127.0.0.1",
        "nproc",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("create", "mine", "--type", "v6e-4", "--zone", "mars-a"), ("zone mars-a", "Use asia-northeast1-b")),
        (("create", "mine", "--type", "v9-4", "--zone", "us-east5-b"), ("no TPU slice 'v9-4'",)),
        (("stop",), ("what shall be stopped?",)),
        (("list", "--backend", "slurm"), ("squeue is not installed",)),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    assert_one_line_error(cpplm("tpu", *arguments), *parts)


def test_without_googles_library_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.tpu_v2", None)
    assert_one_line_error(cpplm("tpu", "list"), "google-cloud-tpu", "pip install 'cpplm[cloud]'")


def test_a_service_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "127.0.0.1:1")
    assert_one_line_error(cpplm("tpu", "list"), "unavailable")


def test_a_recipe_that_cannot_train_is_refused_before_anything_is_made(corpus: Path, tmp_path: Path) -> None:
    recipe, run = tmp_path / "recipe.toml", tmp_path / "run"
    text = RECIPE.format(run=run, corpus=corpus)
    recipe.write_text(text + "max_seq_len = 64\ndevice_batch_size = 2\ntotal_batch_size = 100\n")
    assert_one_line_error(cpplm("tpu", "run", "--recipe", recipe), "--total_batch_size 100 is not a multiple")
    assert not run.exists()
    recipe.write_text(RECIPE.format(run=run, corpus=tmp_path / "nothing"))
    assert_one_line_error(cpplm("tpu", "run", "--recipe", recipe), "no such folder", "nothing")


def test_a_run_that_is_only_written_down(corpus: Path, tmp_path: Path) -> None:
    recipe, run = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(RECIPE.format(run=run, corpus=corpus))
    text, _ = reported("tpu", "run", "--recipe", recipe, "--detach", "--max_cost", "7")
    assert text == f"{run} is ready: cpplm tpu watch {run}"
    text, figures = reported("tpu", "status", run)
    assert (figures["attempt"], figures["checkpoint"], figures["heartbeat"]) == (0, None, None)
    assert "$0.00 of 7 so far" in text
    assert_one_line_error(cpplm("tpu", "logs", run), "no such log")
    assert_one_line_error(cpplm("tpu", "watch", tmp_path), "is no run of 'cpplm tpu run'")


def test_what_the_bucket_says_of_a_run(tmp_path: Path) -> None:
    run = Storage(tmp_path)
    write_spec(run, RunSpec(str(tmp_path), "c", "t", backend="local"))
    beat = {"attempt": 3, "state": "training", "step": 1234, "loss": 2.5, "tokens_per_second": 1e5,
            "time": time.time(), "message": "\x1b[31mred"}  # fmt: skip
    run.write_json("heartbeat.json", beat)
    for attempt in (2, 3):
        run.write(f"logs/attempt_{attempt:06d}/output.txt", f"first\nattempt {attempt}\x07\n".encode())
    text, figures = reported("tpu", "status", tmp_path)
    assert "training, step 1,234, loss 2.5000, 100,000 tokens/s" in text
    assert "\x1b" not in text
    assert figures["heartbeat"]["loss"] == 2.5
    assert reported("tpu", "logs", tmp_path)[0] == "first\nattempt 3\u2407"
    assert reported("tpu", "logs", tmp_path, "--attempt", 2, "--lines", 1)[0] == "attempt 2\u2407"
    reported("tpu", "stop", "--run", tmp_path)
    assert json.loads((tmp_path / "watcher" / "stop.json").read_text())["launch"]


def test_a_task_for_skypilot(tmp_path: Path) -> None:
    recipe, out = tmp_path / "recipe.toml", tmp_path / "sky.yaml"
    text = RECIPE.format(run="gs://my-bucket/mine", corpus="gs://my-bucket/corpus")
    recipe.write_text(text.replace('"local"', '"cloud"'))
    reported("tpu", "sky", "--recipe", recipe, "--spot", "--zones", "us-east5-b", "--out", out)
    task = out.read_text()
    for line in (
        '  accelerators: "tpu-v6e-4"', "  use_spot: true", '    - {infra: "gcp/us-east5/us-east5-b"}',
        '  /data/corpus: "gs://my-bucket/corpus"',
    ):  # fmt: skip
        assert line in task.splitlines()
    assert "cpplm train /data/corpus --tokenizer cpp-32k --out run --backend jax" in task
