"""Quantisation-aware training: what it gains, what a checkpoint holds, how a run goes on."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from cpplm.compress.compare import compare
from cpplm.compress.kd.build import build_cache
from cpplm.compress.kd.settings import CacheBuildSettings, KDLossSettings
from cpplm.compress.layer_checks import check_run, table
from cpplm.compress.qat import DistillBackend, open_teacher, train_quantized, train_settings
from cpplm.compress.quantize import quantize_run
from cpplm.compress.settings import (
    AutoSnapSettings,
    CheckSettings,
    CompareSettings,
    QatSettings,
    QuantizeSettings,
)
from cpplm.core.errors import UserError
from cpplm.model.settings import LoraSettings, QuantizationSettings
from cpplm.train.checkpoint.format import open_run
from cpplm.train.checkpoint.weights import load_model, load_tensors
from cpplm.train.pretrain import pretrain
from cpplm.train.report.html import write_page
from tests.train.conftest import small_settings
from tests.train.records import records

CPU = torch.device("cpu")
RECIPE = "mlp=half2:g32,attn=half4:g32,embed=half4,head=half4"


@pytest.fixture(scope="module")
def base(corpus: Path, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = small_settings(corpus, tokenizer_path, tmp_path_factory.mktemp("base") / "run")
    pretrain(dataclasses.replace(settings, aspect_ratio=32, max_seq_len=64, num_iterations=40, eval_every=-1))
    return settings.out


def settings_of(base: Path, corpus: Path, out: Path, **changes) -> QatSettings:
    given = {
        "recipe": RECIPE,
        "num_iterations": 30,
        "device_batch_size": 4,
        "no_compile": True,
        "precision": "fp32",
    }
    return QatSettings((str(corpus),), str(base), out, **{**given, **changes})


@pytest.fixture(scope="module")
def trained(base: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("qat") / "run"
    train_quantized(settings_of(base, corpus, out))
    return out


def test_training_gains_over_rounding(base: Path, trained: Path, corpus: Path, tmp_path: Path) -> None:
    quantize_run(QuantizeSettings(str(trained), tmp_path / "packed"))
    students = (str(trained), str(tmp_path / "packed"))
    _, by_largest, fitted, latent, packed = compare(
        CompareSettings(str(base), str(corpus), students, num_tokens=1500)
    )
    assert latent.divergence < 0.8 * min(by_largest.divergence, fitted.divergence)
    assert packed.divergence == pytest.approx(latent.divergence, rel=0.05)  # small matrices are bfloat16
    assert latent.weight_bytes < packed.weight_bytes < 1.2 * fitted.weight_bytes  # a file has a header
    page = write_page(trained).read_text()
    for name in ("teacher", "rounding, absmax", "rounding, mse", trained):
        assert f">{name}</td>" in page
    assert not (base / "compression.json").exists()
    assert f"{packed.divergence:.5f}" in page and f"{packed.weight_bytes / 1e6:,.2f}" in page


def test_a_run_goes_on_to_the_same_bits(base: Path, corpus: Path, tmp_path: Path) -> None:
    whole = settings_of(base, corpus, tmp_path / "whole", num_iterations=6, save_every=3)
    train_quantized(whole)
    shutil.copytree(whole.out, tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step_000006")
    train_quantized(dataclasses.replace(whole, out=tmp_path / "parts"))
    assert [r["step"] for r in records(tmp_path / "parts", "session")] == [0, 3]
    for name in ("model.safetensors", "optimizer.safetensors"):
        first, second = (load_tensors(open_run(tmp_path / out), name) for out in ("whole", "parts"))
        assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_a_run_keeps_its_recipe(base: Path, trained: Path, corpus: Path, tmp_path: Path) -> None:
    out = shutil.copytree(trained, tmp_path / "run")
    with pytest.raises(UserError, match=f"--quantize was {RECIPE}, is int4"):
        train_quantized(settings_of(base, corpus, out, recipe="int4", num_iterations=40))
    with pytest.raises(UserError, match="--freeze_codes was False, is True"):
        train_quantized(settings_of(base, corpus, out, freeze_codes=True, num_iterations=40))


def test_frozen_codes(base: Path, corpus: Path, tmp_path: Path) -> None:
    """Scales learn, in a run that goes on, too; codes and all else are as they were."""
    settings = settings_of(base, corpus, tmp_path / "run", recipe="mlp=half2:g32:r2", freeze_codes=True,
                           num_iterations=2, save_every=1, scale_lr=0.01)  # fmt: skip
    train_quantized(settings)
    states = [load_tensors(open_run(tmp_path / "run", step), "model.safetensors") for step in (1, 2)]
    changed = {key.rpartition(".")[2] for key in states[0] if not torch.equal(states[0][key], states[1][key])}
    assert changed == {"scale_left", "scale_right", "rank_magnitude"}
    assert states[0]["blocks.0.mlp.up.codes"].dtype == torch.uint8
    train_quantized(dataclasses.replace(settings, num_iterations=4))
    later = load_tensors(open_run(tmp_path / "run"), "model.safetensors")
    assert torch.equal(later["blocks.0.mlp.up.codes"], states[0]["blocks.0.mlp.up.codes"])
    assert not torch.equal(later["blocks.0.mlp.up.scale_left"], states[1]["blocks.0.mlp.up.scale_left"])


def test_rounding_begins_with_the_cooldown(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    """From scratch: where the rate begins to fall; the optimizer keeps its moments."""
    quantization = QuantizationSettings("int4", quantize_from=0.5)
    settings = small_settings(corpus, tokenizer_path, tmp_path / "run")
    settings = dataclasses.replace(
        settings, aspect_ratio=32, quantization=quantization, save_every=4, keep_last=3
    )
    pretrain(settings)
    early, late = (open_run(tmp_path / "run", step) for step in (4, 8))
    assert "quantization.json" not in early.files and late.json("quantization.json")["recipe"] == "int4"
    before, after = (load_tensors(each, "optimizer.safetensors") for each in (early, late))
    assert float(after["lm_head.latent_weight/step"]) == float(before["lm_head.weight/step"]) + 4
    model = load_model(late, device=CPU, compute_dtype=torch.float32)
    scales = load_tensors(late, "model.safetensors")["blocks.0.mlp.up.scales"]
    levels = model.blocks[0].mlp.up.weight.unflatten(1, (-1, 32)) / scales.half().float().unsqueeze(-1)
    assert len(levels.mul(7.5).round(decimals=2).unique()) <= 16
    longer = dataclasses.replace(settings, num_iterations=10)
    pretrain(longer)
    assert open_run(tmp_path / "run").step == 10
    default = dataclasses.replace(settings, quantization=QuantizationSettings("int4"))
    assert default.quantize_from == pytest.approx(1 - default.schedule.warmdown_ratio)


def test_the_log_tells_the_parts_of_the_loss(trained: Path, base: Path, corpus: Path, tmp_path: Path) -> None:
    kd = KDLossSettings("full", hard_full_weight="0.5:0")
    train_quantized(settings_of(base, corpus, tmp_path / "run", num_iterations=2, kd=kd))
    parts = [record["parts"] for record in records(tmp_path / "run", "distillation")]
    assert [set(each) for each in parts] == [{"kd", "hard_full"}, {"kd", "hard_full"}]
    assert all(each["kd"] >= 0 and each["hard_full"] > each["kd"] for each in parts)
    assert all(set(record["parts"]) == {"kd"} for record in records(trained, "distillation"))
    assert set(records(trained, "memory")[1]["phases"]) == {"data", "forward", "backward", "optimizer"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "mlp"}, "no role with its format"),
        ({"num_iterations": -1}, "how long to train"),
        ({"max_minutes": 1.0}, "how long to train"),
        ({"lr_scale": -1.0}, "--lr_scale"),
    ],
)
def test_bad_settings(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        settings_of(Path("run"), Path("corpus"), tmp_path, **changes)


def test_what_does_not_go_together(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    settings = small_settings(corpus, tokenizer_path, tmp_path / "run")
    quantized = dataclasses.replace(settings, quantization=QuantizationSettings("int4"))
    with pytest.raises(UserError, match="--shard does not go together with --quantize"):
        dataclasses.replace(quantized, shard=True)
    with pytest.raises(UserError, match="--scale_lr does nothing without --quantize"):
        QuantizationSettings(scale_lr=1.0)


def test_a_recipe_that_fits_nothing_leaves_nothing(base: Path, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no layer of the model has that role"):
        train_quantized(settings_of(base, corpus, tmp_path / "run", recipe="mlp=half4:g4096"))
    assert not list((tmp_path / "run").rglob("*.safetensors"))
    assert json.loads((base / "checkpoints").joinpath("step_000040", "state.json").read_text())["step"] == 40


def test_an_adapter_recovers_what_rounding_lost(base: Path, corpus: Path, tmp_path: Path) -> None:
    """The rounded weights stay; the teacher is the model before; the adapter can be merged and rounded."""
    quantize_run(QuantizeSettings(str(base), tmp_path / "packed", "mlp=half2,attn=half2"))
    lora = LoraSettings(lora_rank=8, lora_alpha=16.0, lora_lr=0.002)
    settings = settings_of(tmp_path / "packed", corpus, tmp_path / "run", recipe="int4", lora=lora,
                           num_iterations=40)  # fmt: skip
    train_quantized(settings)
    assert open_run(tmp_path / "run").is_adapter
    assert open_teacher("", str(tmp_path / "packed")).hash == open_run(base).manifest_hash
    students = (str(tmp_path / "packed"), str(tmp_path / "run"))
    *_, packed, recovered = compare(CompareSettings(str(base), str(corpus), students, num_tokens=1500))
    assert recovered.divergence < 0.8 * packed.divergence and recovered.recipe == packed.recipe
    assert packed.weight_bytes < recovered.weight_bytes < 2 * packed.weight_bytes
    quantize_run(QuantizeSettings(str(tmp_path / "run"), tmp_path / "again", "mlp=half4:g32"))
    with pytest.raises(UserError, match="--lr_scale is of rounded weights"):
        dataclasses.replace(settings, lr_scale=0.5)


def test_scales_freeze_when_they_have_settled(base: Path, corpus: Path, tmp_path: Path) -> None:
    """After two comparisons; a run that was stopped at any checkpoint goes on to the same bits."""
    snap = AutoSnapSettings(auto_snap=True, auto_snap_start_step=2, auto_snap_threshold=0.5)
    settings = settings_of(base, corpus, tmp_path / "whole", recipe="mlp=half2:g32:r2", num_iterations=10,
                           save_every=2, snap=snap, keep_last=9)  # fmt: skip
    train_quantized(settings)
    found = records(tmp_path / "whole", "auto_snap")
    assert [(each["step"], each["stable"], each["frozen"] > 0) for each in found] == [
        (4, 1, False),
        (6, 2, True),
    ]
    states = {
        step: load_tensors(open_run(tmp_path / "whole", step), "model.safetensors") for step in (4, 8, 10)
    }
    name = "blocks.0.mlp.up.rank_magnitude"
    assert torch.equal(states[8][name], states[10][name]) and not torch.equal(
        states[4][name], states[8][name]
    )
    assert torch.equal(states[10][name], states[10][name].half().float())
    checks = {each.name: each for each in check_run(CheckSettings(str(tmp_path / "whole")))}
    assert checks["blocks.0.mlp.up"].levels_used == 1 and checks["blocks.0.mlp.up"].overflow == 0
    for step in (6, 8):
        parts = tmp_path / f"parts_{step}"
        shutil.copytree(tmp_path / "whole", parts)
        for later in range(step + 2, 12, 2):
            shutil.rmtree(parts / "checkpoints" / f"step_{later:06d}")
        train_quantized(dataclasses.replace(settings, out=parts))
        assert open_run(parts).read("model.safetensors") == open_run(tmp_path / "whole").read(
            "model.safetensors"
        )
    dry = dataclasses.replace(snap, auto_snap_dry_run=True)
    train_quantized(dataclasses.replace(settings, out=tmp_path / "dry", snap=dry))
    assert [each["frozen"] for each in records(tmp_path / "dry", "auto_snap")] == [0] * 4


def test_snapped_scales_are_told_from_others(base: Path, trained: Path, tmp_path: Path) -> None:
    quantize_run(QuantizeSettings(str(trained), tmp_path / "packed"))
    assert all(each.snapped for each in check_run(CheckSettings(str(tmp_path / "packed"))))
    of_training = check_run(CheckSettings(str(trained)))
    assert not all(each.snapped for each in of_training) and len(table(of_training).splitlines()) > 16
    with pytest.raises(UserError, match="is not quantised"):
        check_run(CheckSettings(str(base)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_snap_patience": 3}, "does nothing without --auto_snap"),
        ({"auto_snap": True, "auto_snap_patience": 0}, "--auto_snap_patience 0"),
    ],
)
def test_bad_auto_snap(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        AutoSnapSettings(**changes)
    with pytest.raises(UserError, match="Add --save_every"):
        settings_of(Path("run"), Path("corpus"), Path("out"), snap=AutoSnapSettings(auto_snap=True))


def test_auto_snap_is_of_one_process(base: Path, corpus: Path, tmp_path: Path, monkeypatch) -> None:
    settings = settings_of(base, corpus, tmp_path, save_every=2, snap=AutoSnapSettings(auto_snap=True))
    source = open_run(base)
    training = train_settings(settings, source, lr_scale=0.1)
    backend = DistillBackend(training, settings)
    assert "kernels" in backend.check(training, source.config())
    monkeypatch.setattr(backend._dist, "world_size", 2)
    with pytest.raises(UserError, match="--auto_snap is of one process"):
        backend.check(training, source.config())


@pytest.fixture(scope="module")
def cache(base: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cache") / "kd"
    build_cache(
        CacheBuildSettings(str(corpus), str(base), out, num_tokens=4096, topk=32, max_seq_len=64,
                           device_batch_size=4)
    )  # fmt: skip
    return out


def test_learning_from_a_cache(base: Path, corpus: Path, cache: Path, tmp_path: Path) -> None:
    """It gains over rounding, and a run that is stopped goes on to the same bits."""
    kd = KDLossSettings("topk_tail")
    settings = settings_of(base, corpus, tmp_path / "run", kd_cache=str(cache), kd=kd, save_every=15)
    train_quantized(settings)
    students = CompareSettings(str(base), str(corpus), (str(tmp_path / "run"),), num_tokens=1500)
    _, by_largest, _, trained = compare(students)
    assert trained.divergence < 0.6 * by_largest.divergence
    shutil.copytree(tmp_path / "run", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step_000030")
    train_quantized(dataclasses.replace(settings, out=tmp_path / "parts"))
    first, second = (open_run(tmp_path / out).read("model.safetensors") for out in ("run", "parts"))
    assert first == second


def test_another_cache_is_refused(
    base: Path, trained: Path, corpus: Path, cache: Path, tmp_path: Path
) -> None:
    kd = KDLossSettings("topk")
    settings = settings_of(base, corpus, tmp_path / "run", kd_cache=str(cache), kd=kd)
    with pytest.raises(UserError, match="was made with another teacher"):
        train_quantized(dataclasses.replace(settings, teacher=str(trained)))
    with pytest.raises(UserError, match=r"rows of .* have 64 tokens"):
        train_quantized(dataclasses.replace(settings, max_seq_len=32))
    with pytest.raises(UserError, match="--kd_loss full needs a teacher that runs beside"):
        dataclasses.replace(settings, kd=KDLossSettings("full"))
    with pytest.raises(UserError, match="needs a cache with negatives"):
        train_quantized(dataclasses.replace(settings, kd=KDLossSettings("topk", sampled_ce_weight="1")))


@pytest.mark.slow
def test_an_anchor_holds_the_model_near(base: Path, corpus: Path, tmp_path: Path) -> None:
    """Trained on the text alone, the model stays nearer to what it was, the more the anchor counts."""
    distances = []
    for weight in ("0", "20"):
        kd = KDLossSettings("full", kd_weight="0", hard_full_weight="1", anchor_weight=weight)
        out = tmp_path / weight
        train_quantized(settings_of(base, corpus, out, kd=kd, lr_scale=0.5, recipe="int8"))
        distances.append(compare(CompareSettings(str(base), str(corpus), (str(out),), num_tokens=900))[-1])
        assert ("anchor" in records(out, "distillation")[0]["parts"]) == (weight != "0")
    assert distances[1].divergence < 0.7 * distances[0].divergence
