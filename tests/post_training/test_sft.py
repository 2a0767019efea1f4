"""Fine-tuning: that it works, goes on exactly, and says what it made."""

import dataclasses
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.generate.load import load_engine
from cpplm.generate.settings import ModelSource
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune
from cpplm.serve.request_builder import ServedModel
from cpplm.tokenizer.conversations import render_conversation
from cpplm.train.checkpoint.format import open_run
from cpplm.train.checkpoint.weights import load_model
from tests.commands import assert_one_line_error, cpplm, reported, start_cpplm
from tests.post_training.conftest import question, write
from tests.system.test_kill import assert_same, finish, kill_at_random
from tests.train.records import assert_same_records, records
from tests.train.test_pretrain import StopAt, assert_same_weights


def test_it_learns_the_answers(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", *map(question, range(200)))
    settings = SftSettings(
        data=(file,), init_from=str(base), out=tmp_path / "run", num_epochs=8, val_share=0.1,
        device_batch_size=4, eval_every=1000, no_compile=True, lr_scale=1.0,
    )  # fmt: skip
    fine_tune(settings)
    bits = [record["bits_per_byte"] for record in records(settings.out, "validation")]
    assert bits[-1] < 0.5 * bits[0]
    assert open_run(settings.out).stage == "sft"
    assert open_run(settings.out).parent["stage"] == "base"
    with pytest.raises(UserError, match="parent was"):  # the same folder, another parent
        fine_tune(dataclasses.replace(settings, init_from=str(tmp_path / "run"), out=settings.out))


def test_validation_is_the_loss_of_held_out_answers(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", *map(question, range(60)))
    settings = SftSettings(
        data=(file,), init_from=str(base), out=tmp_path / "run", num_iterations=1, val_share=0.2,
        device_batch_size=4, eval_tokens=3000, no_compile=True, precision="fp32", device_type="cpu",
    )  # fmt: skip
    fine_tune(settings)
    first = records(settings.out, "validation")[0]
    parent = open_run(base)
    model = load_model(parent, device=torch.device("cpu"), compute_dtype=torch.float32)
    (folder,) = (settings.out / "data").iterdir()
    reader, losses = ShardReader(folder), []
    for text in [text for shard in reader.shards("val") for text in reader.table(shard)["text"].to_pylist()]:
        rendered = render_conversation(parent.tokenizer(), json.loads(text))
        ids, learned = torch.tensor([rendered.ids]), torch.tensor(rendered.mask[1:], dtype=torch.bool)
        with torch.no_grad():
            logits = model(ids[:, :-1])[0]
        losses.append(
            torch.nn.functional.cross_entropy(logits[learned], ids[0, 1:][learned], reduction="none")
        )
    expected = torch.cat(losses)
    assert first["tokens"] == len(expected) > 20
    assert first["loss"] == pytest.approx(float(expected.mean()), rel=1e-4)


def test_resume_is_exact(base: Path, tmp_path: Path) -> None:
    """A run that died is continued by the same command, although its parent is gone."""
    parent = shutil.copytree(base, tmp_path / "parent")
    file = write(tmp_path / "talk.jsonl", *map(question, range(100)))
    whole = SftSettings(
        data=(file,), init_from=str(parent), out=tmp_path / "whole", num_iterations=8, val_share=0.1,
        device_batch_size=2, eval_every=4, eval_tokens=500, save_every=3, no_compile=True, device_type="cpu",
    )  # fmt: skip
    died = dataclasses.replace(whole, out=tmp_path / "died")
    fine_tune(whole)
    with pytest.raises(ConnectionAbortedError):
        fine_tune(died, [StopAt(5, die=True)])
    assert open_run(died.out).step == 3
    shutil.rmtree(parent)
    reported(
        "sft", file, "--init_from", parent, "--out", died.out, "--num_iterations", 8, "--val_share", 0.1,
        "--device_batch_size", 2, "--eval_every", 4, "--eval_tokens", 500, "--save_every", 3, "--no_compile",
        "--device_type", "cpu",
    )  # fmt: skip
    assert_same_weights(died.out, whole.out)
    assert_same_records(died.out, whole.out, rel=0)
    assert open_run(died.out).stage == "sft"
    assert open_run(died.out).parent == open_run(whole.out).parent


@pytest.mark.slow
def test_killed_runs_end_with_the_same_weights(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", *map(question, range(200)))

    def start(out: Path) -> subprocess.Popen[str]:
        return start_cpplm(
            "sft", file, "--init_from", base, "--out", out, "--num_iterations", 300, "--val_share", 0.1,
            "--device_batch_size", 2, "--eval_every", 50, "--save_every", 7, "--no_compile",
            "--device_type", "cpu",
        )  # fmt: skip

    finish(start(tmp_path / "alone"))
    chance = random.Random(0)
    for event in ("checkpoint", "step"):  # so that there is one to go on from
        assert kill_at_random(start(tmp_path / "killed"), tmp_path / "killed", chance, [event])
    finish(start(tmp_path / "killed"))
    assert records(tmp_path / "killed", "session")[-1]["step"] > 0
    assert_same(tmp_path / "alone", tmp_path / "killed")
    assert_same_records(tmp_path / "killed", tmp_path / "alone", rel=0)


def test_the_stage_is_said(base: Path, tmp_path: Path) -> None:
    """By `checkpoints list`, `chat` and the server, which names the parent, too."""
    file = write(tmp_path / "talk.jsonl", *map(question, range(20)))
    settings = SftSettings(
        data=(file,), init_from=str(base), out=tmp_path / "run", num_iterations=1, eval_every=-1,
        device_batch_size=4, no_compile=True,
    )  # fmt: skip
    fine_tune(settings)
    text, figures = reported("checkpoints", "list", settings.out)
    assert f"sft from base ({base}/checkpoints, step 8)" in text
    assert figures["checkpoints"][0]["parent"]["stage"] == "base"
    said = cpplm("chat", settings.out, "--max_new_tokens", 4, "--device_type", "cpu")
    assert said.returncode == 0, said.stderr
    assert said.stderr.startswith("sft model of step 1\n")
    engine, checkpoint = load_engine(ModelSource(str(settings.out)))
    served = ServedModel.from_checkpoint(engine, checkpoint, str(settings.out))
    assert (served.stage, served.parent) == ("sft", f"{base.parent.name}/run:8")


@pytest.mark.parametrize("setting", ["num_iterations", "max_seq_len", "device_batch_size", "eval_every"])
def test_settings_are_checked_before_the_data(base: Path, tmp_path: Path, setting: str) -> None:
    file = write(tmp_path / "talk.jsonl", "{")
    refused = cpplm("sft", file, "--init_from", base, "--out", tmp_path / "run", f"--{setting}", 0)
    assert_one_line_error(refused, f"--{setting} 0")
    assert not (tmp_path / "run").exists()


def test_a_refused_run_leaves_nothing(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", "{")
    with pytest.raises(UserError, match="no JSON"):
        fine_tune(SftSettings(data=(file,), init_from=str(base), out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_both_backends_learn_the_same(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    import cpplm.jax.backend  # noqa: F401, PLC0415  (registers itself)

    file = write(tmp_path / "talk.jsonl", *map(question, range(100)))
    losses = {}  # a batch is whole passes of eight devices, too, which other tests make of the CPU
    for backend in ("torch", "jax"):
        settings = SftSettings(
            data=(file,), init_from=str(base), out=tmp_path / backend, num_iterations=4, val_share=0.1,
            device_batch_size=4, total_batch_size=2048, no_compile=backend == "torch", backend=backend,
            precision="fp32", device_type="cpu",
        )  # fmt: skip
        fine_tune(settings)
        losses[backend] = [record["loss"] for record in records(settings.out, "step")]
    assert losses["jax"] == pytest.approx(losses["torch"], rel=1e-3)
