"""`cpplm export` as a user runs it."""

from pathlib import Path

import pytest

from cpplm.cli.main import run
from cpplm.core.errors import UserError
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.commands import reported
from tests.export.models import CONFIGS, random_of, save


def test_what_it_says(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save(random_of(CONFIGS["all"], tokenizer.vocab_size), tokenizer, tmp_path / "run")
    command = ("export", "--run", tmp_path / "run", "--out", tmp_path / "hf")
    text, figures = reported(*command, "--to", "hf")
    assert (figures["architecture"], figures["step"], figures["format"]) == ("CpplmForCausalLM", 7, "hf")
    assert figures["bytes"] > 4 * figures["parameters"]
    assert "left out: 2 heads for further tokens (MTP)" in text
    assert "trust_remote_code=True" in text
    save(random_of(CONFIGS["plain"], tokenizer.vocab_size), tokenizer, tmp_path / "run", step=9)
    _, figures = reported(*command, "--overwrite", "--dtype", "bfloat16")
    assert (figures["step"], figures["left_out"]) == (9, [])
    assert figures["bytes"] == 2 * figures["parameters"]
    _, figures = reported(*command, "--overwrite", "--step", "7")
    assert figures["step"] == 7


def test_what_it_refuses(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save(random_of(CONFIGS["plain"], tokenizer.vocab_size), tokenizer, tmp_path / "run")
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
