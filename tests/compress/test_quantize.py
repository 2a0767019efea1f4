"""Packed models: made of runs, taken by every command as runs, measured against the model before."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from cpplm.compress.compare import compare, table
from cpplm.compress.quantize import quantize_run
from cpplm.compress.settings import CompareSettings, QuantizeSettings
from cpplm.core.errors import UserError
from cpplm.generate.load import load_engine
from cpplm.generate.settings import ModelSource, SamplingSettings
from cpplm.model.kernels.quantized_linear import CompactLinear
from cpplm.model.settings import LoraSettings
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune
from cpplm.train.checkpoint.format import DamagedError, open_run
from cpplm.train.checkpoint.weights import load_model
from cpplm.train.pretrain import pretrain
from tests.commands import cpplm
from tests.post_training.conftest import question, write
from tests.serve.served import NAME, serving
from tests.train.conftest import small_settings

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(corpus: Path, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = small_settings(corpus, tokenizer_path, tmp_path_factory.mktemp("base") / "run")
    pretrain(dataclasses.replace(settings, aspect_ratio=32, max_seq_len=64, num_iterations=20))
    return settings.out


@pytest.fixture(scope="module")
def packed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "int4"
    quantize_run(QuantizeSettings(str(base), out))
    return out


def test_a_packed_model_is_a_run(packed: Path) -> None:
    checkpoint = open_run(packed)
    model = load_model(checkpoint, device=CPU, compute_dtype=torch.float32)
    engine, _ = load_engine(ModelSource(str(packed), device_type="cpu", precision="bf16"))
    assert any(isinstance(module, CompactLinear) for module in engine.model.modules())
    ids = torch.arange(300, 330).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(engine.model(ids), model(ids), atol=0.1, rtol=0.1)
    assert engine.complete("int", SamplingSettings(8, temperature=0))
    assert checkpoint.parent["stage"] == "base"


def test_a_packed_model_answers_requests(packed: Path) -> None:
    engine, _ = load_engine(ModelSource(str(packed), device_type="cpu", precision="bf16"))
    with serving(engine, supports_fim=False, stage="base") as served:
        answer = served.complete(model=NAME, prompt="int", max_tokens=8, temperature=0)
    (expected,) = engine.complete("int", SamplingSettings(8, temperature=0))
    assert answer["choices"][0]["text"] == expected.text


@pytest.mark.parametrize("rank", [0, 4])
def test_fine_tuning_starts_from_a_packed_model(
    packed: Path, tmp_path: Path, rank: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """All weights in full precision, which is said; or an adapter beside them, and nothing is."""
    file = write(tmp_path / "talk.jsonl", *map(question, range(40)))
    lora = LoraSettings(lora_rank=rank)
    settings = SftSettings(
        data=(file,), init_from=str(packed), out=tmp_path / "run", num_iterations=2, val_share=0.0,
        device_batch_size=4, eval_every=-1, no_compile=True, lora=lora,
    )  # fmt: skip
    fine_tune(settings)
    assert ("cpplm compress quantize" in capsys.readouterr().err) == (rank == 0)
    tuned = open_run(settings.out)
    assert not tuned.is_packed and tuned.is_adapter == (rank > 0)
    model, before = (
        load_model(each, device=CPU, compute_dtype=torch.float32) for each in (tuned, open_run(packed))
    )
    assert not torch.equal(model.blocks[0].mlp.up.weight, before.blocks[0].mlp.up.weight)


def test_the_file_has_the_size_that_the_formats_say(base: Path, packed: Path) -> None:
    """Within a percent of 4.5 bits a weight, and more than three and a half times smaller than bfloat16."""
    checkpoint = open_run(packed)
    model = load_model(checkpoint, device=CPU, compute_dtype=torch.float32)
    layers = checkpoint.json("quantization.json")["layers"]
    inside = sum(rows * columns for rows, columns in (layer["shape"] for layer in layers.values()))
    outside = [p for n, p in model.state_dict().items() if n.removesuffix(".weight") not in layers]
    rest = sum(2 * p.numel() if p.dim() > 1 and p.is_floating_point() else p.nbytes for p in outside)
    expected = inside * 4.5 / 8 + rest
    found = checkpoint.files["model.safetensors"]["bytes"]
    header = int.from_bytes(checkpoint.read("model.safetensors")[:8], "little") + 8
    assert found - header == pytest.approx(expected, rel=0.01)
    assert open_run(base).files["model.safetensors"]["bytes"] / 2 / found > 3


def test_comparison(base: Path, packed: Path, corpus: Path, tmp_path: Path) -> None:
    settings = CompareSettings(str(base), str(corpus), (str(packed),), ("int8",), num_tokens=600)
    teacher, by_largest, fitted, *more, student = compare(settings)
    assert (teacher.divergence, teacher.same_top1, teacher.recipe) == (0, 1, "")
    assert fitted.recipe == student.recipe == "int4" and by_largest.divergence > 0
    assert student.divergence == pytest.approx(fitted.divergence, rel=1e-3)
    assert [each.recipe for each in more] == ["int8", "int8"]
    assert max(each.divergence for each in more) < fitted.divergence / 10
    assert student.weight_bytes == pytest.approx(fitted.weight_bytes, rel=0.05)
    found = cpplm("compress", "compare", base, "--data_dir", corpus, "--recipes", "int8", "--num_tokens", 100,
                  "--page", tmp_path / "page.html")  # fmt: skip
    assert found.returncode == 0 and "rounding, mse" in found.stdout
    page = (tmp_path / "page.html").read_text()
    assert page.count(">rounding, ") == 2 and page.count('class="bars"') == 6
    assert "src=" not in page and "href=" not in page  # it opens offline


@pytest.mark.slow
def test_the_comparison_evaluates_runs(base: Path, packed: Path, corpus: Path) -> None:
    """Each as `cpplm evaluate` finds it, and from its own folder the second time."""
    settings = CompareSettings(str(base), str(corpus), (str(packed),), num_tokens=100, evaluate=True)
    results = compare(settings)
    assert [each.tasks is None for each in results] == [False, True, True, False]
    kept = json.loads((packed / "evaluation.json").read_text())
    assert results[-1].tasks["exact_match"] == kept["fim"]["files"]["all"]["exact_match"]["value"]
    assert results[-1].tasks["bits_per_byte"] == pytest.approx(results[0].tasks["bits_per_byte"], rel=0.05)
    assert f"{results[-1].tasks['bug_ranking']:.1%}" in table(results)
    assert compare(settings)[-1].tasks == results[-1].tasks


def test_activations_count(base: Path, corpus: Path, tmp_path: Path) -> None:
    made = QuantizeSettings(str(base), tmp_path / "a", "mlp=half2", "activation", str(corpus), 200)
    quantize_run(made)
    quantize_run(dataclasses.replace(made, out=tmp_path / "m", init="mse", data_dir="", num_tokens=16_384))
    weights = [(open_run(tmp_path / name).read("model.safetensors")) for name in ("a", "m")]
    assert weights[0] != weights[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "mlp"}, "no role with its format"),
        ({"init": "activation"}, "go together"),
        ({"data_dir": "there"}, "go together"),
        ({"num_tokens": 5}, "does nothing without --data_dir"),
    ],
)
def test_bad_settings(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        QuantizeSettings("run", tmp_path, **changes)


def test_what_cannot_be_quantised(base: Path, packed: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is packed already"):
        quantize_run(QuantizeSettings(str(packed), tmp_path / "again"))
    with pytest.raises(UserError, match="holds a run"):
        quantize_run(QuantizeSettings(str(base), base))
    with pytest.raises(UserError, match="no layer of the model has that role"):
        quantize_run(QuantizeSettings(str(base), tmp_path / "other", "other=half4:g1024"))
    assert not list((tmp_path / "other").rglob("*.safetensors"))


def test_a_truncated_file_is_named(packed: Path, tmp_path: Path) -> None:
    run = shutil.copytree(packed, tmp_path / "run")
    file = next(run.rglob("model.safetensors"))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DamagedError, match=r"model\.safetensors is damaged"):
        load_engine(ModelSource(str(run), device_type="cpu"))
    run = shutil.copytree(packed, tmp_path / "other")
    record = next(run.rglob("quantization.json"))
    record.write_text(json.dumps({**json.loads(record.read_text()), "version": 9}))
    with pytest.raises(DamagedError, match=r"quantization\.json is damaged"):
        load_engine(ModelSource(str(run), device_type="cpu"))
