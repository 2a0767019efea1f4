"""`cpplm train` under torchrun: several processes do what one does."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cpplm.train.checkpoint.format import open_run
from tests.commands import start_cpplm
from tests.train.records import assert_same_records, records

# Windows, value embeddings, n-gram memory: what the ranks exchange is dense, divided and sparse.
MODEL = ["--depth", "2", "--aspect_ratio", "32", "--head_dim", "16", "--max_seq_len", "64",
         "--engram", "memory", "--engram_table_size", "200", "--precision", "fp32",
         "--no_compile"]  # fmt: skip
RUN = ["--total_batch_size", "1024", "--eval_every", "4", "--eval_tokens", "2000", "--fim_rate", "0.5",
       "--syntax_fim_rate", "0"]  # fmt: skip


def train(ranks: int, corpus: Path, tokenizer: Path, out: Path, *more: str) -> list[dict[str, object]]:
    """The steps and validations of a run by so many processes; 1 is a plain one."""
    with started(ranks, corpus, tokenizer, out, *more) as process:
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return records(out)


def started(ranks: int, corpus: Path, tokenizer: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    about = ("train", corpus, "--tokenizer", tokenizer, "--out", out)
    return start_cpplm(*about, *MODEL, *RUN, *more, ranks=ranks)


def losses(records: list[dict[str, object]]) -> list[float]:
    return [float(str(record["loss"])) for record in records]


@pytest.fixture(scope="module")
def alone(corpus: Path, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps by one process."""
    out = tmp_path_factory.mktemp("alone")
    train(1, corpus, tokenizer_path, out, "--device_batch_size", "16", "--num_iterations", "5")
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (2, ("--device_batch_size", "4", "--data_workers", "1")),
        (4, ("--device_batch_size", "2", "--shard")),
    ],
    ids=["2 ranks, accumulation", "4 ranks, sharded, accumulation"],
)
def test_ranks_train_as_one_process_does(
    ranks: int, more: tuple[str, ...], alone: Path, corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    several = train(ranks, corpus, tokenizer_path, tmp_path / "several", *more, "--num_iterations", "5")
    assert len(several) == len(records(alone)) == 5 + 3
    assert losses(several) == pytest.approx(losses(records(alone)), rel=1e-5)
    assert_same_records(tmp_path / "several", alone, rel=1e-4)


@pytest.mark.slow
def test_ranks_distill_into_rounded_weights_as_one_process_does(
    alone: Path, corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    """`compress qat`: activations of all ranks' rows for the first scales, the teacher on each rank."""
    about = ("compress", "qat", corpus, "--run", alone, "--num_iterations", "3", "--recipe", "mlp=half2:g32",
             "--init", "activation", "--precision", "fp32", "--no_compile", "--eval_every", "2")  # fmt: skip
    found = []
    for ranks, rows in ((1, 16), (2, 4)):
        out = tmp_path / str(ranks)
        with start_cpplm(*about, "--device_batch_size", rows, "--out", out, ranks=ranks) as process:
            _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        found.append(losses(records(out)))
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_with_other_ranks(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    small = ("--device_batch_size", "4")
    out = tmp_path / "changing"
    schedule = ("--warmdown_ratio", "0", "--weight_decay", "0")
    train(1, corpus, tokenizer_path, tmp_path / "alone", *small, "--num_iterations", "8", *schedule)
    for ranks, more, steps in ((2, ("--shard",), "4"), (1, (), "8")):
        train(ranks, corpus, tokenizer_path, out, *small, *more, "--num_iterations", steps, *schedule)
    # Sums in another order, over 8 steps.
    assert losses(records(out, "step")) == pytest.approx(
        losses(records(tmp_path / "alone", "step")), abs=5e-4
    )
    assert open_run(out).step == 8
    saved = {step: [name for name in open_run(out, step).files if "-of-" in name] for step in (4, 8)}
    assert {step: len(names) for step, names in saved.items()} == {4: 2 * 2, 8: 0}  # each rank its own
    assert [session["ranks"] for session in records(out, "session")] == [2, 1]


@pytest.mark.slow
def test_a_signal_to_all_processes_saves(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    """To torchrun, which passes it on, to the ranks, and to what prepares their batches."""
    out, steps = tmp_path / "run", 4000
    flags = ("--device_batch_size", "4", "--data_workers", "1", "--num_iterations", str(steps))
    with started(2, corpus, tokenizer_path, out, *flags) as process:
        while not any(record["step"] == 5 for record in records(out)):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    reached = len(records(out, "step"))
    assert 5 <= reached < steps
    assert open_run(out).step == reached, said
