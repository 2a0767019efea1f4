"""Packed models in the hands of transformers, by the package compressed-tensors."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from cpplm.compress.hf import quantize_hf
from cpplm.compress.quantize import quantize_run
from cpplm.compress.settings import QuantizeSettings
from cpplm.evaluate.models.hf_loading import import_transformers, read_model
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import open_run
from cpplm.train.checkpoint.weights import load_model
from tests.commands import assert_one_line_error, cpplm, reported
from tests.compress.hf_models import write_model
from tests.export.models import random_of, save

pytest.importorskip("compressed_tensors")
IDS = torch.arange(300, 340)[None]
# Whole numbers of 4 bits, of 8, and of both.
RECIPES = ["q4_0", "all=half4:g64", "mlp=half2:g32:r2,attn=int8,embed=int4", "mlp=half3"]


@pytest.fixture(scope="module")
def run(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "run"
    config = ModelConfig.llama(
        2, vocab_size=tokenizer.vocab_size, head_dim=32, aspect_ratio=64, num_kv_heads=2, max_seq_len=96
    )
    save(random_of(config, tokenizer.vocab_size), tokenizer, folder / "checkpoints")
    return folder


@torch.no_grad()
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_model_of_ours(recipe: str, run: Path, tmp_path: Path) -> None:
    quantize_run(QuantizeSettings(str(run), tmp_path / "packed", recipe))
    _, found = reported("export", tmp_path / "packed", "--to", "compressed-tensors", "--out", tmp_path / "hf")
    ours = load_model(open_run(tmp_path / "packed"), device=torch.device("cpu"), compute_dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    torch.testing.assert_close(theirs(IDS).logits, ours(IDS), atol=1e-4, rtol=1e-5)
    assert found["bytes"] < 0.55 * 4 * found["parameters"]


@torch.no_grad()
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_model_of_transformers(family: str, recipe: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tokenizer, family)
    quantize_hf(QuantizeSettings(f"hf:{folder}", tmp_path / "packed", recipe))
    packed = f"hf:{tmp_path / 'packed'}"
    reported("export", packed, "--to", "compressed-tensors", "--out", tmp_path / "hf")
    ours = read_model(import_transformers(), tmp_path / "packed", torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    torch.testing.assert_close(theirs(IDS).logits, ours(IDS).logits, atol=1e-4, rtol=1e-5)
    HfModel.load(tmp_path / "hf", precision="fp32")
    bits = {g["weights"]["num_bits"] for g in json.loads((tmp_path / "hf" / "config.json").read_text())
            ["quantization_config"]["config_groups"].values()}  # fmt: skip
    assert bits == {"q4_0": {4}, RECIPES[1]: {8}, RECIPES[2]: {4, 8}, RECIPES[3]: {4}}[recipe]


def test_what_there_is_not(run: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    export = ("export", "--to", "compressed-tensors", "--out", tmp_path / "hf")
    assert_one_line_error(cpplm(*export, run), "is not quantised")
    folder = write_model(tmp_path / "model", tokenizer)
    assert_one_line_error(cpplm(*export, f"hf:{folder}"), "is no packed directory")
    quantize_run(QuantizeSettings(str(run), tmp_path / "nf4", "mlp=nf4"))
    assert_one_line_error(cpplm(*export, tmp_path / "nf4"), "is nf4:g32")
    assert not (tmp_path / "hf").exists()
