"""`cpplm export` as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

from cpplm.cli.main import run
from cpplm.core.errors import UserError
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.commands import cpplm_process
from tests.export.models import CONFIGS, load, native_model, random_of, save

TRAIN = ("--depth", "2", "--aspect_ratio", "16", "--head_dim", "16", "--max_seq_len", "64",
         "--device_batch_size", "2", "--total_batch_size", "256", "--num_iterations", "3", "--no_compile",
         "--eval_tokens", "512", "--sample_every", "-1", "--precision", "fp32", "--device_type",
         "cpu")  # fmt: skip


def export(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[str, dict[str, Any]]:
    """What the command prints, and its figures."""
    run(["export", *map(str, arguments), "--json"])
    text = capsys.readouterr().out
    return text, json.loads(text.splitlines()[-1])


def test_what_it_says(tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(random_of(CONFIGS["all"], tokenizer.vocab_size), tokenizer, tmp_path / "run")
    command = ("--run", tmp_path / "run", "--out", tmp_path / "hf")
    text, figures = export(capsys, *command, "--to", "hf")
    assert figures["architecture"] == "CpplmForCausalLM"
    assert (figures["trust_remote_code"], figures["step"], figures["format"]) == (True, 7, "hf")
    assert figures["bytes"] > 4 * figures["parameters"]
    assert len(figures["not_native"]) == 10
    for what in (
        *figures["not_native"],
        "left out: 2 heads for further tokens (MTP)",
        "trust_remote_code=True",
    ):
        assert what in text
    save(native_model(vocab_size=tokenizer.vocab_size), tokenizer, tmp_path / "run", step=9)
    text, figures = export(capsys, *command, "--overwrite", "--dtype", "bfloat16")
    assert (figures["architecture"], figures["step"], figures["not_native"]) == ("NanoChatForCausalLM", 9, [])
    assert "which transformers has itself" in text
    assert figures["bytes"] == 2 * figures["parameters"]
    _, figures = export(capsys, *command, "--overwrite", "--step", "7")
    assert figures["step"] == 7


def test_what_it_refuses(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save(native_model(vocab_size=tokenizer.vocab_size), tokenizer, tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    source, out = ("--run", str(tmp_path / "run")), ("--out", str(tmp_path / "hf"))
    for arguments, message in (
        (("--run", str(tmp_path / "none"), *out), "no such folder"),
        ((*source, *out, "--step", "8"), "no checkpoint of step 8"),
        ((*source, *out, "--step", "-2"), "--step -2"),
        ((*source, *out, "--to", "gguf"), "GGUF can express no model of cpplm.*--to hf"),
        ((*source, "--out", str(tmp_path / "full")), "is not empty.*--overwrite"),
    ):
        with pytest.raises(UserError, match=message):
            run(["export", *arguments])
    assert not (tmp_path / "hf").exists()


@pytest.mark.slow
def test_trained_runs(
    corpus: Path, tokenizer_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our preset needs its own code; the plain one without windows, its scalars not trained, does not."""
    plain = ("--preset", "seed", "--window_pattern", "L", "--scalar_lr", "0")
    ours = ("--engram_table_size", "100", "--fim_rate", "0.5", "--syntax_fim_rate", "0")
    for name, settings, architecture in (("a", plain, "NanoChat"), ("b", ours, "Cpplm")):
        trained, out = tmp_path / name / "run", tmp_path / name / "hf"
        data = ("--data_dir", corpus, "--tokenizer", tokenizer_path, "--out", trained)
        done = cpplm_process("train", *data, *TRAIN, *settings)
        assert done.returncode == 0, done.stderr
        _, figures = export(capsys, "--run", trained, "--out", out)
        assert figures["architecture"] == f"{architecture}ForCausalLM"
        card = (out / "README.md").read_text()
        assert f"# {name}\n" in card
        assert "| tokens trained on | 768 |" in card
        assert "of held-out code, during training |" in card
        assert ("<FIM_PREFIX>" in card) == (name == "b")
        theirs = load(out, trust_remote_code=name == "b")
        assert type(theirs).__name__ == figures["architecture"]
