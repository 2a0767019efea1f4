"""Models of the transformers library in few bits: as they are trained, packed and read back."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from cpplm.compress.hf import load_for_rounding, open_hf, quantize_hf
from cpplm.compress.quantize import round_layers
from cpplm.compress.settings import QuantizeSettings
from cpplm.core.errors import UserError
from cpplm.evaluate.models.code_model import CodePrompt
from cpplm.evaluate.models.hf_loading import import_transformers, read_model
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.generate.settings import SamplingSettings
from cpplm.model.kernels.quantized_linear import CompactLinear
from cpplm.model.quantized.recipe import Recipe, WeightFormat
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.commands import assert_one_line_error, cpplm, reported
from tests.compress.hf_models import random_model, write_model
from tests.model.features import packed_bytes

CPU, IDS = torch.device("cpu"), torch.arange(300, 340)[None]
RECIPES = {
    "qwen3": "mlp=half2,attn=half4:g32:r2,embed=int8",
    "llama": "mlp=nf4,attn=int4,embed=int8,head=half4",
}


@pytest.fixture(params=RECIPES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(family: str, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", tokenizer, family)


@torch.no_grad()
def test_rounded_packed_and_read_back_are_the_same(family: str, folder: Path, tmp_path: Path) -> None:
    recipe = RECIPES[family]
    rounded = load_for_rounding(open_hf(f"hf:{folder}"))
    round_layers(rounded, Recipe.parse(recipe), "mse")
    quantize_hf(QuantizeSettings(f"hf:{folder}", tmp_path / "packed", recipe))
    read = read_model(import_transformers(), tmp_path / "packed", torch.float32)
    expected = rounded(IDS).logits
    torch.testing.assert_close(read(IDS).logits, expected, atol=1e-6, rtol=1e-6)
    assert (expected - random_model(family, read.config.vocab_size)(IDS).logits).abs().max() > 0.1
    few = read_model(import_transformers(), tmp_path / "packed", torch.bfloat16, CPU)
    assert any(isinstance(module, CompactLinear) for module in few.modules())
    torch.testing.assert_close(few(IDS).logits.float(), expected, atol=0.3, rtol=0.1)


def test_a_file_has_the_size_that_the_formats_say(family: str, folder: Path, tmp_path: Path) -> None:
    model = random_model(family, json.loads((folder / "config.json").read_text())["vocab_size"])
    _, found = reported("compress", "quantize", f"hf:{folder}", "--out", tmp_path / "packed")
    layers = json.loads((tmp_path / "packed" / "quantization.json").read_text())["layers"]
    inside = sum(packed_bytes(WeightFormat.parse(each["format"]), *each["shape"]) for each in layers.values())
    rest = sum(w.nbytes for name, w in model.named_parameters() if name.removesuffix(".weight") not in layers)
    file = tmp_path / "packed" / "packed.safetensors"
    header = int.from_bytes(file.read_bytes()[:8], "little") + 8
    assert found["bytes"] == file.stat().st_size
    assert file.stat().st_size - header == pytest.approx(inside + rest, rel=0.01)
    assert ("lm_head" in layers) == (family == "llama") and "model.embed_tokens" in layers


def test_evaluation_takes_a_packed_directory(folder: Path, corpus: Path, tmp_path: Path) -> None:
    run = ("compress", "quantize", f"hf:{folder}", "--out", tmp_path / "packed", "--recipe", "int8")
    assert cpplm(*run, "--init", "activation", "--data_dir", corpus, "--num_tokens", 200).returncode == 0
    assert cpplm(*run).returncode == 0  # replaces a packed directory
    before, after = (HfModel.load(path, precision="fp32") for path in (folder, tmp_path / "packed"))
    scores = [sum(next(model.score(["int main() { return 0; }"])).bits) for model in (before, after)]
    assert scores[0] == pytest.approx(scores[1], rel=0.01)
    [(_, [completion])] = after.generate([CodePrompt("int x")], SamplingSettings(4, temperature=0))
    assert completion.text
    assert before.identity != after.identity


def test_plain_transformers_refuse_a_packed_directory(folder: Path, tmp_path: Path) -> None:
    quantize_hf(QuantizeSettings(f"hf:{folder}", tmp_path / "packed"))
    with pytest.raises(OSError, match="no file named"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "packed")


def test_what_is_refused(folder: Path, family: str, tmp_path: Path) -> None:
    packed, run = tmp_path / "packed", f"hf:{folder}"
    with pytest.raises(UserError, match="names other, and no layer"):
        quantize_hf(QuantizeSettings(run, packed, "other=half4"))
    if family == "qwen3":
        with pytest.raises(UserError, match="names head, and no layer"):
            quantize_hf(QuantizeSettings(run, packed, "head=half4"))
    with pytest.raises(UserError, match="is not empty"):
        quantize_hf(QuantizeSettings(run, folder))
    assert not packed.exists()
    quantize_hf(QuantizeSettings(run, packed))
    found = cpplm("compress", "quantize", f"hf:{packed}", "--out", tmp_path / "again")
    assert_one_line_error(found, "is quantised already")
    file = packed / "packed.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    found = cpplm("evaluate", "bpb", "--hf_dir", packed, "--data_dir", folder, "--out", tmp_path / "e")
    assert_one_line_error(found, "packed.safetensors is damaged")
    file.write_bytes(whole)
    record = json.loads((packed / "quantization.json").read_text())
    record["layers"]["model.layers.0.mlp.up_proj"]["shape"][0] *= 2
    (packed / "quantization.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="up_proj do not fit"):
        HfModel.load(packed)
