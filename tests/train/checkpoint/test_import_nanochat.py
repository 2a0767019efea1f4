"""nanochat's checkpoints give the logits that nanochat computes; what is not known is refused by name."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint, Stage, open_run
from cpplm.train.checkpoint.import_nanochat import import_nanochat
from cpplm.train.checkpoint.weights import load_model, load_tensors
from tests.texts import cpp_document, make_tokenizer
from tests.train import nanochat_reference as nanochat

RECORD = {
    "sequence_len": 256, "vocab_size": 512, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": 64,
    "window_pattern": "SL",
}  # fmt: skip
# What the fork writes besides.
OFF = {
    "engram_enabled": False, "engram_layers": "", "mhc_enabled": False, "mhc_blend_alpha": 1.0,
    "dsa_enabled": False, "dsa_top_k_ratio": 0.5, "mtp_enabled": False, "mtp_lambda": 0.3,
    "gradient_checkpointing": True, "aux_loss_weight": 0.0,
}  # fmt: skip


def write(folder: Path, state: dict[str, Any], record: dict[str, Any], step: int = 650) -> None:
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / f"model_{step:06d}.pt")
    meta = {"step": step, "val_bpb": 0.8, "model_config": record, "user_config": {"depth": 3}}
    (folder / f"meta_{step:06d}.json").write_text(json.dumps(meta))


def logits(checkpoint: Checkpoint, ids: torch.Tensor) -> torch.Tensor:
    model = load_model(checkpoint, device=torch.device("cpu"), compute_dtype=torch.float32)
    with torch.no_grad():
        return model(ids)


def ids(record: dict[str, Any]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(int(record["vocab_size"]), (2, 200), generator=generator)  # longer than windows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("newer", [False, True])
def test_logits_agree(tmp_path: Path, tokenizer: Tokenizer, newer: bool, dtype: torch.dtype) -> None:
    state = nanochat.random_state(RECORD, newer=newer, rows=512)
    state = {name: value.to(dtype) for name, value in state.items()}
    write(tmp_path / "theirs", state, RECORD if newer else RECORD | OFF)
    imported = import_nanochat(tmp_path / "theirs", tmp_path / "ours", tokenizer)
    assert imported.step == open_run(tmp_path / "ours").step == 650
    expected = nanochat.logits(state, RECORD, ids(RECORD), newer=newer)
    torch.testing.assert_close(logits(imported, ids(RECORD)), expected, atol=1e-4, rtol=0)
    assert expected.std() > 1  # and are no handful of zeros
    assert all(
        tensor.dtype == torch.float32 for tensor in load_tensors(imported, "model.safetensors").values()
    )
    assert open_run(tmp_path / "ours").tokenizer().hash == tokenizer.hash
    assert imported.json("imported.json")["meta"]["val_bpb"] == 0.8


@pytest.mark.parametrize(
    ("folder", "stage", "expected"),
    [
        ("chatsft_checkpoints/d3", None, "sft"),
        ("elsewhere", None, "base"),
        ("elsewhere", "sft", "sft"),
    ],
)
def test_the_stage_is_recorded(
    tmp_path: Path, tokenizer: Tokenizer, folder: str, stage: Stage | None, expected: str
) -> None:
    theirs = tmp_path / folder
    theirs.mkdir(parents=True)
    write(theirs, nanochat.random_state(RECORD, newer=True, rows=512), RECORD)
    import_nanochat(theirs, tmp_path / "ours", tokenizer, stage=stage)
    assert open_run(tmp_path / "ours").stage == expected


@pytest.mark.parametrize("rows", [500, 512])
def test_a_vocabulary_may_be_padded_or_not(tmp_path: Path, rows: int) -> None:
    """Our padded size is 512 for both."""
    record = RECORD | {"vocab_size": 500}
    state = nanochat.random_state(record, newer=True, rows=rows)
    write(tmp_path / "theirs", state, record)
    tokenizer = make_tokenizer((cpp_document(number) for number in range(100)), 500)
    imported = import_nanochat(tmp_path / "theirs", tmp_path / "ours", tokenizer)
    expected = nanochat.logits(state, record, ids(record), newer=True)
    torch.testing.assert_close(logits(imported, ids(record)), expected, atol=1e-4, rtol=0)


def test_early_and_compiled_models_and_those_with_a_training_head(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """Without scales and windows; with names as a compiled model has them; with a head for further tokens."""
    record = {name: value for name, value in RECORD.items() if name != "window_pattern"}
    state = nanochat.random_state(RECORD, newer=False, rows=512)
    state |= {"resid_lambdas": torch.ones(3), "x0_lambdas": torch.zeros(3)}
    expected = nanochat.logits(state, RECORD | {"window_pattern": "L"}, ids(RECORD), newer=False)
    saved = {f"_orig_mod.{name}": value for name, value in state.items() if "lambdas" not in name}
    saved["_orig_mod.mtp.proj.weight"] = torch.ones(64, 128)
    write(tmp_path / "theirs", saved, record | OFF | {"mtp_enabled": True})
    imported = import_nanochat(tmp_path / "theirs", tmp_path / "ours", tokenizer)
    torch.testing.assert_close(logits(imported, ids(RECORD)), expected, atol=1e-4, rtol=0)


def test_one_of_several(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for step in (100, 2000, 30):
        write(tmp_path, nanochat.random_state(RECORD, newer=False, rows=512, seed=step), RECORD, step)
    (tmp_path / "model_000200_backup.pt").write_bytes(b"")
    assert import_nanochat(tmp_path, tmp_path / "ours", tokenizer).step == 2000
    assert import_nanochat(tmp_path, tmp_path / "ours", tokenizer, step=30).step == 30
    assert import_nanochat(tmp_path / "model_000100.pt", tmp_path / "ours", tokenizer).step == 100
    with pytest.raises(UserError, match=r"no checkpoint of step 7 in .* There are: \[30, 100, 2000\]"):
        import_nanochat(tmp_path, tmp_path / "ours", tokenizer, step=7)


# ---- refusals ---------------------------------------------------------------------------------------------

NEWER = nanochat.random_state(RECORD, newer=True, rows=512)


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in NEWER.items() if name not in names}


@pytest.mark.parametrize(
    ("state", "record", "message"),
    [
        (without("lm_head.weight"), RECORD, "without lm_head.weight"),
        (without("smear_lambda", "smear_gate.weight"), RECORD, "without smear_lambda, smear_gate.weight"),
        (NEWER | {"transformer.h.0.attn.c_proj_scalar": torch.ones(64)}, RECORD, "c_proj_scalar"),
        (NEWER | {"transformer.h.0.attn.ve_gate.weight": torch.ones(2, 9)}, RECORD, r"ve_gate.*\(2, 9\)"),
        (NEWER | {"lm_head.weight": torch.ones(512, 65)}, RECORD, r"lm_head.* \(512, 65\)"),
        (NEWER | {"lm_head.weight": torch.ones(512, 64).int()}, RECORD, "lm_head.weight is torch.int32"),
        (NEWER | {"lm_head.weight": 3}, RECORD, "does not hold the weights"),
        ([1, 2], RECORD, "does not hold the weights"),
        (NEWER, RECORD | {"n_layer": 4}, r"without .*transformer\.h\.3\.attn\.c_q\.weight"),
        (NEWER, RECORD | {"n_embd": 63}, "n_embd 63 is not a multiple of n_head 4"),
        (NEWER, RECORD | {"n_head": "four"}, "model_config lacks sizes"),
        (NEWER, {"n_layer": 3}, "model_config lacks sizes"),
        (NEWER, RECORD | {"experts": 8}, "unknown entries of model_config: experts"),
        (NEWER, RECORD | {"mhc_enabled": True}, "has mhc, which computes something else"),
        (NEWER, RECORD | {"window_pattern": "SX"}, "window pattern 'SX'"),
        (NEWER, RECORD | {"vocab_size": 511}, "tokenizer has 512 ids, the model 511"),
    ],
)  # fmt: skip
def test_what_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, state: Any, record: dict[str, Any], message: str
) -> None:
    write(tmp_path / "theirs", state, record)
    with pytest.raises(UserError, match=message) as caught:
        import_nanochat(tmp_path / "theirs", tmp_path / "ours", tokenizer)
    assert "\n" not in str(caught.value)
    assert not any((tmp_path / "ours").glob("*/manifest.json"))


class Runs:
    """Unpickled by careless code, it runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def test_nothing_is_executed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path / "theirs", NEWER | {"lm_head.weight": Runs(tmp_path / "ran")}, RECORD)
    with pytest.raises(UserError, match=r"model_000650\.pt cannot be read"):
        import_nanochat(tmp_path / "theirs", tmp_path / "ours", tokenizer)
    assert not (tmp_path / "ran").exists()
    torch.load(tmp_path / "theirs" / "model_000650.pt", weights_only=False)
    assert (tmp_path / "ran").exists()  # it would have run


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "no meta", "meta", "nothing"])
def test_damaged_files_are_named(tmp_path: Path, tokenizer: Tokenizer, damage: str) -> None:
    source = tmp_path / "theirs"
    write(source, NEWER, RECORD)
    model, meta = source / "model_000650.pt", source / "meta_000650.json"
    data = model.read_bytes()
    if damage in ("cut", "noise", "empty"):
        model.write_bytes({"cut": data[: len(data) // 2], "noise": b"x" * 1000, "empty": b""}[damage])
    elif damage == "no meta":
        meta.unlink()
    elif damage == "meta":
        meta.write_text("[]")
    else:
        model.unlink()
    named = {"nothing": "theirs holds no checkpoint", "no meta": "meta_000650", "meta": "meta_000650"}
    with pytest.raises(UserError, match=named.get(damage, r"model_000650\.pt cannot be read")):
        import_nanochat(source, tmp_path / "ours", tokenizer)
