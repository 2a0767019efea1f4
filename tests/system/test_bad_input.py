"""Bad input: one line that says what, where and how to mend it; exit code 2; nothing half-written."""

import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from cpplm.train.checkpoint.format import open_run
from cpplm.train.checkpoint.weights import load_tensors
from tests.commands import cpplm

SMALL = ["--depth", "1", "--head_dim", "16", "--max_seq_len", "64", "--device_batch_size", "2",
         "--total_batch_size", "128", "--engram_table_size", "100", "--no_compile",
         "--eval_every", "-1"]  # fmt: skip


def refuse(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, one line on stderr that holds the words, no traceback."""
    assert done.returncode == 2, done.stderr
    message = [line for line in done.stderr.splitlines() if line.startswith("cpplm: ")]
    assert len(message) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in message[0]


def train(out: Path, corpus: Path, tokenizer: Path, *more: object) -> subprocess.CompletedProcess[str]:
    return cpplm("train", corpus, "--tokenizer", tokenizer, "--out", out, *SMALL, *more)


def test_corpus_that_is_not_there_or_not_finished(tmp_path: Path, corpus: Path, tokenizer_path: Path) -> None:
    refuse(train(tmp_path / "run", tmp_path / "none", tokenizer_path), "no such folder", "none")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(corpus, unfinished)
    (unfinished / "_COMPLETE").unlink()
    refuse(train(tmp_path / "run", unfinished, tokenizer_path), "no finished documents", "corpus build")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_disk_fills_up_during_a_save(tmp_path: Path, corpus: Path, tokenizer_path: Path) -> None:
    out = tmp_path / "run"
    assert train(out, corpus, tokenizer_path, "--num_iterations", 2).returncode == 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (50_000, limits[1])
    )  # a write beyond it fails as on a full disk
    try:
        done = train(out, corpus, tokenizer_path, "--num_iterations", 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    refuse(done, "cannot write", "model.safetensors", "Free some space")
    assert open_run(out).step == 2
    load_tensors(open_run(out), "model.safetensors")
    assert train(out, corpus, tokenizer_path, "--num_iterations", 4).returncode == 0
    assert open_run(out).step == 4


def test_no_compiler_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse(cpplm("corpus", "build", "--cxx_headers", "--out", tmp_path / "out"), "g++", "install")
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_projects_without_code(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("no code here")
    for name in ("empty", "notes", "absent"):
        refuse(cpplm("corpus", "build", "--projects", tmp_path / name, "--out", tmp_path / "out"), name)
        assert not (tmp_path / "out" / "_COMPLETE").exists()
