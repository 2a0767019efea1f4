"""The folder: complete, readable by `transformers`, whole or not there at all."""

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer, GenerationConfig

from cpplm.core.errors import UserError
from cpplm.core.run_log import RunLog
from cpplm.core.storage import Storage
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.export import atomic_directory, hf_files
from cpplm.export.hf import export_to_hf
from cpplm.export.remote_code import SOURCES, exported_weights
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.conversations import render_for_completion
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint, open_run
from tests.commands import cpplm
from tests.export.models import (
    CONFIGS,
    CONTEXT,
    assert_close,
    generate,
    ids_of,
    load,
    prompts,
    random_of,
    save,
    written_by_our_engine,
)
from tests.train.checkpoints import files_below

COMPLETE = sorted(
    [*SOURCES, "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
     "tokenizer_config.json"]
)  # fmt: skip


@pytest.fixture(scope="module")
def ours(tokenizer: Tokenizer) -> Transformer:
    return random_of(CONFIGS["all"], tokenizer.vocab_size)


@pytest.fixture(scope="module")
def checkpoint(
    ours: Transformer, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    return save(ours, tokenizer, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def folder(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exports") / "new" / "hf"
    export_to_hf(checkpoint, out)
    return out


# ---- what is in it ----------------------------------------------------------------------------------------


@torch.no_grad()
def test_files(folder: Path, ours: Transformer, tokenizer: Tokenizer) -> None:
    assert files_below(folder) == COMPLETE
    assert files_below(folder.parent) == [f"hf/{name}" for name in COMPLETE]
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert config.max_position_embeddings == CONTEXT
    assert config.dtype == torch.float32
    generation = GenerationConfig.from_pretrained(folder)
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (2, [3, 2, 23], 0)
    theirs, ids = load(folder), ids_of(ours.config, 2, CONTEXT)
    assert_close(theirs(ids).logits, ours(ids))
    rows = prompts(tokenizer.vocab_size, 1, 30, 7)
    assert generate(theirs, rows, 20) == written_by_our_engine(ours, tokenizer, rows, 20)
    base = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    torch.testing.assert_close(base(ids).last_hidden_state, ours.hidden_states(ids), atol=1e-4, rtol=0)
    exported = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    messages = [{"role": "user", "content": "What is 2 << 3?"}]
    prompt = exported.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert prompt == render_for_completion(tokenizer, {"messages": messages})


def test_files_follow_the_umask(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_files, "MAX_FILE_BYTES", 10_000)
    before = os.umask(0o027)
    try:
        export_to_hf(checkpoint, tmp_path / "hf")
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "hf").iterdir()}
    assert modes == dict.fromkeys(modes, "0o640")
    assert "model.safetensors.index.json" in modes


def test_an_export_is_no_run(folder: Path) -> None:
    """Each command names the other way."""
    with pytest.raises(UserError, match=r"not a run with checkpoints.*evaluate --hf_dir"):
        open_run(folder)
    with pytest.raises(UserError, match="Evaluate the run that it was exported from"):
        HfModel.load(folder)


def test_the_recipe_of_the_model_card(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the card tells its reader to type does run."""
    card = (folder / "README.md").read_text()
    code = card.partition("```python\n")[2].partition("```")[0]
    exec(code.replace('folder = "."', f"folder = {str(folder)!r}"), {})
    written = capsys.readouterr().out
    assert written.startswith("<BOS>int main() {\n")
    assert len(written) > 30


def test_half_the_space(checkpoint: Checkpoint, ours: Transformer, tmp_path: Path) -> None:
    """Rounded weights, and just these: in float32 they give what our model gives with the same rounding."""
    exported = export_to_hf(checkpoint, tmp_path / "hf", dtype="bfloat16")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16, torch.int64}
    assert exported.bytes == sum(tensor.nbytes for tensor in weights.values())
    for name, weight in exported_weights(ours.config, ours.state_dict()).items():
        assert torch.equal(weights[name], weight.bfloat16() if weight.is_floating_point() else weight)
    theirs = load(tmp_path / "hf", dtype="auto")
    assert theirs.dtype == torch.bfloat16
    with torch.no_grad():
        assert bool(theirs(ids_of(ours.config, 1, 30)).logits.isfinite().all())


@torch.no_grad()
def test_large_weights_are_split(
    checkpoint: Checkpoint, ours: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_files, "MAX_FILE_BYTES", 100_000)
    export_to_hf(checkpoint, tmp_path / "hf")
    parts = sorted((tmp_path / "hf").glob("model-*.safetensors"))
    assert len(parts) > 3
    sizes = [sum(tensor.nbytes for tensor in load_file(part).values()) for part in parts]
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(sizes)
    assert all(size <= 100_000 or len(load_file(part)) == 1 for size, part in zip(sizes, parts, strict=True))
    ids = ids_of(ours.config, 1, 20)
    assert_close(load(tmp_path / "hf")(ids).logits, ours(ids))
    monkeypatch.undo()
    export_to_hf(checkpoint, tmp_path / "hf", overwrite=True)
    assert files_below(tmp_path / "hf") == COMPLETE


@torch.no_grad()
def test_saved_again(folder: Path, ours: Transformer, tmp_path: Path) -> None:
    """As after a training with `transformers`: weights and modeling code go along."""
    load(folder).save_pretrained(tmp_path / "again")
    ids = ids_of(ours.config, 1, 20)
    assert_close(load(tmp_path / "again")(ids).logits, ours(ids))
    assert set(SOURCES) <= {path.name for path in (tmp_path / "again").iterdir()}


# ---- the model card ---------------------------------------------------------------------------------------


def test_card_of_a_run(ours: Transformer, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """What was measured of these weights, not what was measured of others."""
    run = tmp_path / "mine" / "run"
    checkpoint = save(
        ours, tokenizer, run / "checkpoints", 1200,
        state=json.dumps({"step": 1200, "tokens": 614_400, "seconds": 93.4, "corpus": "c0ffee"}).encode(),
        settings=json.dumps(
            {"seed": 5, "architecture": {"preset": "cpplm"}, "fim": {"fim_rate": 0.5}}
        ).encode(),
    )  # fmt: skip
    with RunLog(run / "log.jsonl") as log:
        log.write("session", step=0, settings={})
        for step, bits in ((600, 2.5), (1200, 1.53127)):
            log.write("validation", step=step, bits_per_byte=bits, loss=1.0, tokens=9, bytes=123_456)
    results = {"bpb": {"step": 1200, "bits_per_byte": 1.6}, "likelihood": {"step": 600, "bits_per_byte": 0.1}}
    Storage(run).write_json("evaluation.json", results)
    export_to_hf(checkpoint, tmp_path / "hf", run=str(run))
    card = (tmp_path / "hf" / "README.md").read_text()
    for expected in (
        "# mine\n", "| step | 1,200 |", "| tokens trained on | 614,400 |",
        "| time of training steps | 93 s |",
        "| fingerprint of the corpus | `c0ffee` |", "| preset | cpplm |", "| seed | 5 |",
        "| bits per byte | 1.5313 | of 123,456 bytes of held-out code, during training |",
        "| bits per byte | 1.6000 | of held-out code, `cpplm evaluate bpb` |",
        "`<BOS><FIM_PREFIX>`",
        "2 heads for further tokens (MTP)", f"| vocabulary | {tokenizer.vocab_size:,} tokens |",
    ):  # fmt: skip
        assert expected in card
    assert "2.5" not in card.partition("## Measured")[2].partition("## Use")[0]
    assert str(tmp_path) not in card
    assert card.startswith("---\nlibrary_name: transformers\n")


def test_card_of_a_checkpoint_alone(folder: Path, checkpoint: Checkpoint) -> None:
    card = (folder / "README.md").read_text()
    assert "| step | 7 |" in card
    for unknown in ("tokens trained on", "Measured", "FIM", "license:", "seed"):
        assert unknown not in card
    assert checkpoint.storage.location not in card


# ---- whole or not at all ----------------------------------------------------------------------------------


def test_nothing_is_overwritten_unasked(checkpoint: Checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    out.mkdir()
    export_to_hf(checkpoint, out)  # an empty folder may be there
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UserError, match=r"is not empty\. .*--overwrite"):
        export_to_hf(checkpoint, out, dtype="bfloat16")
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}
    export_to_hf(checkpoint, out, dtype="bfloat16", overwrite=True)
    assert before["model.safetensors"] != (out / "model.safetensors").read_bytes()
    assert files_below(tmp_path) == [f"hf/{name}" for name in COMPLETE]


def test_what_no_export_wrote_is_never_deleted(checkpoint: Checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    export_to_hf(checkpoint, out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds what no export wrote: notes\.txt\. "):
        export_to_hf(checkpoint, out, overwrite=True)
    (out / "notes.txt").unlink()
    (out / "model.safetensors").unlink()
    (out / "model.safetensors").mkdir()
    with pytest.raises(UserError, match="no export wrote: model"):
        export_to_hf(checkpoint, out, overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        export_to_hf(checkpoint, tmp_path / "file", overwrite=True)
    with pytest.raises(UserError, match="cannot be replaced"):
        export_to_hf(checkpoint, Path("/"), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "hf"]


def test_a_damaged_checkpoint_leaves_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    broken = Checkpoint(checkpoint.storage, checkpoint.step, {**checkpoint.files, "tokenizer.json": {}})
    with pytest.raises(UserError, match="is damaged"):
        export_to_hf(broken, tmp_path / "hf")
    assert list(tmp_path.iterdir()) == []


class Killed(BaseException):
    """Nothing cleans up behind it."""


STOPS = [(Killed(), 1), (KeyboardInterrupt(), 5), (OSError(28, "No space"), 5)]


def stop_at_change(patch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Raise at the n-th file that is written or folder that is renamed."""
    changes = itertools.count()

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object) -> object:
            if next(changes) == number:
                if isinstance(error, Killed):
                    patch.setattr(atomic_directory, "_clear", lambda *paths: None)
                raise error
            return change(*arguments)

        return changed

    for owner, name in ((Storage, "write"), (Storage, "open_write"), (Path, "rename")):
        patch.setattr(owner, name, counted(getattr(owner, name)))


@pytest.mark.parametrize(("error", "step"), STOPS)
def test_stopped_at_a_change(
    error: BaseException, step: int, tokenizer: Tokenizer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What is there is a whole export, the one that was or the one that replaces it; the next call cleans."""
    ours, out = random_of(CONFIGS["plain"], tokenizer.vocab_size), tmp_path / "hf"
    checkpoint = save(ours, tokenizer, tmp_path / "run")
    export_to_hf(checkpoint, out)
    changes = len(COMPLETE) + 3  # renames: the old one, the new one, the old one to be deleted
    for number in range(0, changes, step):
        with (
            monkeypatch.context() as patch,
            pytest.raises(UserError if isinstance(error, OSError) else type(error)),
        ):
            stop_at_change(patch, number, error)
            export_to_hf(checkpoint, out, dtype="bfloat16", overwrite=True)
        folder = out if out.exists() else tmp_path / ".hf.before"
        assert files_below(folder) == COMPLETE
        dtype = json.loads((folder / "config.json").read_text())["dtype"]
        assert load_file(folder / "model.safetensors")["lm_head.weight"].dtype == getattr(torch, dtype)
        assert dtype == ("bfloat16" if number == changes - 1 else "float32")
        with pytest.raises(UserError, match="is not empty"):
            export_to_hf(checkpoint, out)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "run"]


@pytest.mark.slow
def test_killed_at_any_moment(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save(random_of(CONFIGS["plain"], tokenizer.vocab_size), tokenizer, tmp_path / "run")
    command = ("export", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "hf"), "--overwrite")
    code = f"from cpplm.cli.main import run; print('go', flush=True)\nwhile True: run({command!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    while b"step 7" not in process.stdout.readline():
        pass
    time.sleep(random.Random(0).uniform(0.05, 0.6))
    process.kill()
    process.wait()
    assert cpplm(*command).returncode == 0
    assert files_below(tmp_path / "hf") == COMPLETE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "run"]
