"""Quantisation-aware training of models of the transformers library."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from cpplm.compress.hf import quantize_hf
from cpplm.compress.hf_qat import train_hf_quantized
from cpplm.compress.kd.build import build_cache
from cpplm.compress.kd.cache import KDCache
from cpplm.compress.kd.settings import CacheBuildSettings, KDLossSettings
from cpplm.compress.settings import AutoSnapSettings, QatSettings, QuantizeSettings
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.evaluate.models.hf_loading import import_transformers, read_model
from cpplm.evaluate.models.hf_tokens import HfTokens
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import open_checkpoint
from cpplm.train.checkpoint.weights import load_tensors
from tests.commands import assert_one_line_error, cpplm, reported
from tests.compress.hf_models import random_model, write_model
from tests.evaluate.models.hf_dirs import byte_level, write_tokenizer
from tests.texts import cpp_document
from tests.train.records import records

RECIPE = "mlp=half2,attn=half4,embed=half4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3 with a tokenizer that is none of ours."""
    tokenizer = byte_level()
    folder = tmp_path_factory.mktemp("qwen") / "model"
    write_tokenizer(folder, tokenizer, eos_token="<|endoftext|>")
    random_model("qwen3", tokenizer.get_vocab_size()).save_pretrained(folder)
    return folder


def settings_of(folder: Path, corpus: Path, out: Path, **changes) -> QatSettings:
    given = {
        "recipe": RECIPE, "num_iterations": 20, "device_batch_size": 4, "total_batch_size": 512,
        "precision": "fp32", "lr_scale": 10.0,
    }  # fmt: skip
    return QatSettings((str(corpus),), f"hf:{folder}", out, **{**given, **changes})


def divergence(folder: Path, packed: Path) -> float:
    """Of the packed model, in nats per token, on text that nobody has seen."""
    before, after = (read_model(import_transformers(), each, torch.float32) for each in (folder, packed))
    [text] = HfTokens(folder).encode(["".join(cpp_document(number) for number in range(900, 930))])
    ids = torch.tensor(text.ids[:600]).view(10, 60)
    with torch.no_grad():
        logs = [model(ids).logits.log_softmax(-1) for model in (after, before)]
    return float(torch.nn.functional.kl_div(*logs, reduction="batchmean", log_target=True)) / 60


@pytest.fixture(scope="module")
def trained(folder: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("qat") / "run"
    found = cpplm(
        "compress", "qat", corpus, "--run", f"hf:{folder}", "--out", out, "--recipe", RECIPE,
        "--num_iterations", 20, "--device_batch_size", 4, "--total_batch_size", 512, "--precision", "fp32",
        "--lr_scale", 10, "--eval_every", 10,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return out


def test_training_gains_over_rounding(folder: Path, trained: Path, tmp_path: Path) -> None:
    quantize_hf(QuantizeSettings(f"hf:{folder}", tmp_path / "rounded", RECIPE))
    assert divergence(folder, trained / "hf") < 0.8 * divergence(folder, tmp_path / "rounded")
    parts = [record["parts"]["kd"] for record in records(trained, "distillation")]
    assert len(parts) == 20 and parts[-1] < parts[0]
    assert [r["step"] for r in records(trained, "validation")] == [0, 10, 20]
    record = json.loads((trained / "hf" / "quantization.json").read_text())
    assert record["packed"] and record["recipe"] == RECIPE
    names = load_tensors(open_checkpoint(Storage(trained / "checkpoints")), "model.safetensors")
    assert "model.layers.0.mlp.up_proj.scales" in names and "lm_head.weight" not in names


@pytest.mark.parametrize("freeze_codes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_goes_on_to_the_same_bits(
    freeze_codes: bool, folder: Path, corpus: Path, tmp_path: Path
) -> None:
    whole = settings_of(folder, corpus, tmp_path / "whole", num_iterations=4, save_every=2, keep_last=2,
                        freeze_codes=freeze_codes)  # fmt: skip
    train_hf_quantized(whole)
    parts = dataclasses.replace(whole, out=tmp_path / "parts")
    shutil.copytree(whole.out, parts.out)
    shutil.rmtree(parts.out / "checkpoints" / "step_000004")
    shutil.rmtree(parts.out / "hf")
    train_hf_quantized(parts)
    assert [r["step"] for r in records(parts.out, "session")] == [0, 2]
    files = [(each.out / "hf" / "packed.safetensors").read_bytes() for each in (whole, parts)]
    assert files[0] == files[1]
    with pytest.raises(UserError, match="begun with another --quantize"):
        train_hf_quantized(dataclasses.replace(parts, recipe="mlp=half2", num_iterations=6))


@pytest.mark.parametrize("is_ours", [False, True])
def test_learning_from_a_cache(
    is_ours: bool, folder: Path, corpus: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    if is_ours:
        folder = write_model(tmp_path / "model", tokenizer)
    build = CacheBuildSettings(
        str(corpus), f"hf:{folder}", tmp_path / "cache", num_tokens=2000, negatives=4, precision="fp32"
    )
    build_cache(build)
    cache = KDCache.open(str(build.out))
    assert cache.manifest.document_mask != is_ours
    kd = KDLossSettings(kd_loss="topk_tail", sampled_ce_weight="0.1")
    settings = settings_of(folder, corpus, tmp_path / "run", kd=kd, kd_cache=str(build.out), num_iterations=6)
    train_hf_quantized(settings)
    parts = [record["parts"] for record in records(settings.out, "distillation")]
    assert parts[-1]["kd"] < parts[0]["kd"] and "sampled_ce" in parts[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"snap": AutoSnapSettings(auto_snap=True), "save_every": 2}, "auto_snap is not for models"),
        ({"no_compile": True}, "no_compile is not for models"),
        ({"kd": KDLossSettings(kd_loss="full", anchor_weight="1")}, "anchor_weight is not for models"),
    ],
)
def test_what_is_of_our_own_models(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        settings_of(tmp_path, tmp_path, tmp_path / "run", **changes)


def test_a_teacher_with_another_tokenizer(
    folder: Path, corpus: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other", tokenizer)
    found = cpplm("compress", "qat", corpus, "--run", f"hf:{folder}", "--teacher", f"hf:{other}",
                  "--out", tmp_path / "run", "--num_iterations", 1)  # fmt: skip
    assert_one_line_error(found, "has another tokenizer than")
    assert not (tmp_path / "run").exists()


def test_comparison(folder: Path, trained: Path, corpus: Path, tmp_path: Path) -> None:
    _, found = reported(
        "compress", "compare", f"hf:{folder}", "--students", f"hf:{trained / 'hf'}", "--data_dir", corpus,
        "--recipes", "int8", "--num_tokens", 400, "--page", tmp_path / "page.html",
    )  # fmt: skip
    teacher, by_largest, fitted, *more, student = found["models"]
    assert (teacher["divergence"], teacher["same_top1"]) == (0, 1)
    assert student["divergence"] < fitted["divergence"] < by_largest["divergence"]
    assert max(each["divergence"] for each in more) < fitted["divergence"] / 10
    assert student["weight_bytes"] == pytest.approx(fitted["weight_bytes"], rel=0.1)
    assert (tmp_path / "page.html").exists()
