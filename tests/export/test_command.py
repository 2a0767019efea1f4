"""`cpplm export` as a user runs it."""

from pathlib import Path

import pytest

from cpplm.cli.main import run
from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.commands import reported
from tests.export.models import CONFIGS, random_of, save
from tests.fake_hub import FakeHub


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


def test_a_llama(tokenizer: Tokenizer, tmp_path: Path) -> None:
    llama = ModelConfig.llama(1, vocab_size=300, head_dim=32, aspect_ratio=32)
    save(random_of(llama, tokenizer.vocab_size), tokenizer, tmp_path / "run")
    command = ("export", "--run", tmp_path / "run")
    text, figures = reported(*command, "--out", tmp_path / "hf", "--to", "llama")
    assert figures["architecture"] == "LlamaForCausalLM" and "trust_remote_code" not in text
    out = tmp_path / "model.gguf"
    _, figures = reported(*command, "--out", out, "--to", "gguf", "--gguf_type", "Q8_0", "--license", "MIT")
    assert (figures["out"], figures["format"]) == (str(out), "gguf")
    assert figures["bytes"] < 1.1 * figures["parameters"] < out.stat().st_size


def test_an_export_that_is_pushed(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(random_of(CONFIGS["plain"], tokenizer.vocab_size), tokenizer, tmp_path / "run")
    command = ["export", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "hf"), "--push", "me/model"]
    hub = FakeHub()
    with hub.open():
        hub.use(monkeypatch, tmp_path / "home")
        text, figures = reported(*command, "--private")
        repository = hub.repositories["models/me/model"]
        assert repository.private and figures["pushed"].endswith(repository.branches["main"])
        assert f"pushed: {figures['pushed']}" in text
        written = {path.name: path.read_bytes() for path in (tmp_path / "hf").iterdir()}
        assert repository.files() == written | {".gitattributes": b""}
        assert Tokenizer.load("hf://me/model") == tokenizer

        hub.fail("/commit/", 403)
        with pytest.raises(UserError, match=r"hf is written, but not pushed: .*forbids it.*--overwrite"):
            run([*command, "--overwrite"])
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        with pytest.raises(UserError, match="no access"):
            run([*command[:4], str(tmp_path / "other"), *command[5:]])
        assert not (tmp_path / "other").exists()  # the account comes first


def test_what_it_refuses(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save(random_of(CONFIGS["plain"], tokenizer.vocab_size), tokenizer, tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    source, out = ("--run", str(tmp_path / "run")), ("--out", str(tmp_path / "hf"))
    for arguments, message in (
        (("--run", str(tmp_path / "none"), *out), "no such folder"),
        ((*source, *out, "--step", "8"), "no checkpoint of step 8"),
        ((*source, *out, "--step", "-2"), "--step -2"),
        ((*source, *out, "--to", "gguf"), "no plain Llama: it has sliding windows, squared ReLU.*--to hf"),
        ((*source, *out, "--to", "gguf", "--dtype", "bfloat16"), "--dtype does nothing with --to gguf"),
        ((*source, *out, "--gguf_type", "Q4_0"), "--gguf_type does nothing with --to hf"),
        ((*source, *out, "--private"), "--private does nothing without --push"),
        ((*source, *out, "--to", "gguf", "--license", "Mine"), "--license Mine: Unknown license"),
        ((*source, "--out", str(tmp_path / "full")), "is not empty.*--overwrite"),
    ):
        with pytest.raises(UserError, match=message):
            run(["export", *arguments])
    assert not (tmp_path / "hf").exists()
