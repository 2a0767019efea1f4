"""Runs with JAX in processes of their own: killed in the middle of steps and of saves, and on two hosts."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cpplm.core.run_log import read_run_log
from cpplm.train.checkpoint.format import open_run
from cpplm.train.checkpoint.weights import load_tensors
from tests.train.records import assert_same_records

STEPS = 24
# `cpplm train`, with saves that take a second: long enough to be killed in the middle of one.
SLOW_SAVES = """
import time
import cpplm.train.checkpoint.save as saving
write = saving.write_pieces
def slow(*arguments):
    time.sleep(0.2)
    return write(*arguments)
saving.write_pieces = slow
from cpplm.cli.main import main
main()
"""
# Its data end in the middle of the run.
DAMAGED = """
import cpplm.train.trainer as trainer
from cpplm.core.errors import UserError
whole, left = trainer.reshape_to_seq_len, 6
def reshape(*arguments):
    global left
    left -= 1
    if left < 0:
        raise UserError("a shard is damaged")
    return whole(*arguments)
trainer.reshape_to_seq_len = reshape
from cpplm.cli.main import main
main()
"""


def start(
    corpus: Path,
    tokenizer: Path,
    out: Path,
    *more: str,
    program: str = SLOW_SAVES,
    chips: int = 8,
    **environment: str,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, "train", "--backend", "jax", "--device_type", "cpu",
         "--data_dir", str(corpus), "--tokenizer", str(tokenizer), "--out", str(out),
         "--depth", "2", "--aspect_ratio", "32", "--head_dim", "16", "--max_seq_len", "64",
         "--engram", "memory", "--engram_table_size", "200", "--device_batch_size", "1",
         "--total_batch_size", "512", "--num_iterations", str(STEPS), "--eval_every", "-1",
         "--sample_every", "-1", "--save_every", "4", "--save_minutes", "-1", *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={chips}", **environment},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=1200)
    assert process.returncode == 0, said


def steps(out: Path) -> list[tuple[int, float]]:
    return [(r["step"], r["loss"]) for r in read_run_log(out / "log.jsonl") if r["event"] == "step"]


def is_saving(out: Path) -> bool:
    """Whether a folder has weights and no manifest yet."""
    return any(
        not (file.parent / "manifest.json").exists() for file in out.glob("checkpoints/step_*/*.safetensors")
    )


def kill_when(process: subprocess.Popen[str], condition: object) -> None:
    assert callable(condition)
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_runs_have_the_losses_of_one_left_alone(
    corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    flags = ("--mesh", "data=1,fsdp=2,model=2", "--device_batch_size", "4")
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    finish(start(corpus, tokenizer_path, alone, *flags, chips=4))
    kill_when(start(corpus, tokenizer_path, killed, *flags, chips=4), lambda: is_saving(killed))
    later = len(steps(killed)) + 5
    kill_when(start(corpus, tokenizer_path, killed, *flags, chips=4), lambda: len(steps(killed)) > later)
    finish(start(corpus, tokenizer_path, killed, *flags, chips=4))
    assert len(steps(alone)) == STEPS
    assert dict(steps(killed)) == dict(steps(alone))
    for name in ("model.safetensors", "optimizer.safetensors"):
        theirs = load_tensors(open_run(alone), name)
        for key, tensor in load_tensors(open_run(killed), name).items():
            assert torch.equal(tensor, theirs[key]), key


def start_two_hosts(
    corpus: Path,
    tokenizer: Path,
    out: Path,
    *more: str,
    of_second: tuple[str, ...] = (),
    corpus_of_second: Path | None = None,
    program_of_second: str = SLOW_SAVES,
) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [
        start((number and corpus_of_second) or corpus, tokenizer, out, *more, *number * of_second,
              "--multi_host", chips=2,
              program=program_of_second if number else SLOW_SAVES,
              JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES="2", JAX_PROCESS_ID=str(number))
        for number in range(2)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2,fsdp=2", "data=1,model=4"])
def test_two_hosts_are_as_one(corpus: Path, tokenizer_path: Path, tmp_path: Path, mesh: str) -> None:
    """Rows divided between hosts; or read by both, and then each computes a half of every row."""
    rows = "8" if "data=1" in mesh else "1"
    flags = ("--mesh", mesh, "--device_batch_size", rows, "--head_dim", "8", "--eval_every", "3",
             "--eval_tokens", "2000", "--num_iterations", "6")  # fmt: skip
    alone, together = tmp_path / "alone", tmp_path / "together"
    finish(start(corpus, tokenizer_path, alone, *flags, chips=4))
    for host in start_two_hosts(corpus, tokenizer_path, together, *flags):
        finish(host)
    assert_same_records(together, alone, rel=2e-4)
    assert {"model-00002-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"} < set(
        open_run(together).files
    )  # the second host's
    if mesh == "data=2,fsdp=2":  # one host goes on with what two have saved
        for run in (alone, together):
            finish(start(corpus, tokenizer_path, run, *flags[:-1], "8", chips=4))
        assert_same_records(together, alone, rel=2e-4)
    for name in ("model.safetensors", "optimizer.safetensors"):
        theirs = load_tensors(open_run(alone), name)
        for key, tensor in load_tensors(open_run(together), name).items():
            # A lost or misplaced part would make more than half of it. The gradients of a few scalars cancel,
            # and depend on the order of sums.
            if tensor.numel() > 8:
                assert (tensor - theirs[key]).double().norm() <= 0.1 * theirs[key].double().norm(), key


@pytest.mark.slow
def test_hosts_with_other_settings_end_with_a_message(
    corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    """And so do those whose neighbour has no corpus: none waits for one that has ended."""
    for wrong, other, message in (
        (("--eval_every", "7"), corpus, "process 1 differs from the first one: eval_every 7, not -1"),
        ((), tmp_path / "nothing", "nothing"),
    ):
        hosts = start_two_hosts(
            corpus, tokenizer_path, tmp_path / "run", of_second=wrong, corpus_of_second=other
        )
        for host in hosts:
            _, said = host.communicate(timeout=600)
            assert host.returncode == 2, said
            assert message in said
        assert not steps(tmp_path / "run")


@pytest.mark.slow
def test_an_error_of_one_host_ends_both(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    """In the middle of a step, in which the other one waits for it."""
    first, second = start_two_hosts(
        corpus, tokenizer_path, tmp_path / "run", "--total_batch_size", "256", program_of_second=DAMAGED
    )
    _, said = second.communicate(timeout=600)
    assert "cpplm: a shard is damaged" in said
    _, said = first.communicate(timeout=600)
    assert first.returncode != 0
    assert "another task died; see the other task logs" in said
    assert open_run(tmp_path / "run").step == 4  # 6 steps were made


@pytest.mark.slow
def test_a_signal_to_one_host_stops_both(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    """Also amid validation, which hosts that read the same rows have to end together."""
    flags = ("--mesh", "data=1,context=4", "--device_batch_size", "8", "--eval_every", "2",
             "--eval_tokens", "2000", "--num_iterations", str(STEPS // 2))  # fmt: skip
    out = tmp_path / "run"
    hosts = start_two_hosts(corpus, tokenizer_path, out, *flags)
    while len(steps(out)) < 5:
        assert all(host.poll() is None for host in hosts), [host.communicate() for host in hosts]
        time.sleep(0.01)
    hosts[1].send_signal(signal.SIGTERM)
    for host in hosts:
        _, said = host.communicate(timeout=600)
        assert host.returncode == 130, said
    reached = len(steps(out))
    assert reached < STEPS // 2
    assert open_run(out).step == reached
    for host in start_two_hosts(corpus, tokenizer_path, out, *flags):
        finish(host)
    assert [step for step, _ in steps(out)] == list(range(1, STEPS // 2 + 1))
