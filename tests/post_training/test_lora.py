"""LoRA: what is trained, what is saved, who can load it, what is refused."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from cpplm.core.errors import UserError
from cpplm.core.settings import from_dict
from cpplm.export.hf import export_to_hf
from cpplm.generate.load import load_adapter, load_engine
from cpplm.generate.settings import ModelSource
from cpplm.model.settings import LoraSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.schedules import LearningRates
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune
from cpplm.train.checkpoint.format import check_run, open_run
from cpplm.train.checkpoint.weights import load_model, load_tensors, load_weights
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import torch_model
from cpplm.train.trainer import Callback, Trainer
from tests.post_training.test_sft import question, write
from tests.train.conftest import small_settings
from tests.train.records import records

IDS = torch.arange(300, 340).view(2, 20)
LORA = LoraSettings(lora_rank=4, lora_alpha=8.0, lora_lr=0.01)


@pytest.fixture(scope="module")
def base(corpus: Path, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = small_settings(corpus, tokenizer_path, tmp_path_factory.mktemp("base") / "run")
    pretrain(dataclasses.replace(settings, max_seq_len=64))
    return settings.out


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("talk") / "talk.jsonl", *map(question, range(200)))


def settings_of(base: Path, talk: Path, out: Path, **changes) -> SftSettings:
    given = {
        "num_iterations": 6,
        "val_share": 0.1,
        "device_batch_size": 4,
        "no_compile": True,
        "lora": LORA,
        "precision": "fp32",
    }
    return SftSettings(data=(talk,), init_from=str(base), out=out, **{**given, **changes})


@pytest.fixture(scope="module")
def adapter(base: Path, talk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = settings_of(base, talk, tmp_path_factory.mktemp("adapter") / "run", num_iterations=30)
    fine_tune(settings)
    return settings.out


def load(run: Path) -> Transformer:
    return load_model(open_run(run), device=torch.device("cpu"), compute_dtype=torch.float32)


def logits(model: Transformer) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS)


class AtStart(Callback):
    """Keeps the logits before the first step and after the last, and what is trained."""

    def on_start(self, trainer: Trainer) -> None:
        self.first = logits(torch_model(trainer.train_module))

    def on_end(self, trainer: Trainer) -> None:
        model = torch_model(trainer.train_module)
        self.last = logits(model)
        self.frozen = {name: w.clone() for name, w in model.state_dict().items() if ".lora_" not in name}
        self.trained = {name for name, w in model.named_parameters() if w.requires_grad}


def test_only_the_adapter_changes(base: Path, talk: Path, tmp_path: Path) -> None:
    seen = AtStart()
    fine_tune(settings_of(base, talk, tmp_path / "run"), [seen])
    before = load(base)
    assert torch.equal(seen.first, logits(before))
    assert seen.trained
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in seen.trained)
    weights = before.state_dict()
    assert seen.frozen.keys() == weights.keys()
    assert all(torch.equal(seen.frozen[name], weights[name]) for name in weights)
    merged = logits(load(tmp_path / "run"))
    assert not torch.allclose(merged, seen.first, atol=1e-2)
    torch.testing.assert_close(merged, seen.last, atol=1e-4, rtol=1e-4)
    assert "model.safetensors" not in open_run(tmp_path / "run").files


def test_it_learns_the_answers(adapter: Path) -> None:
    bits = [record["bits_per_byte"] for record in records(adapter, "validation")]
    assert bits[-1] < 0.7 * bits[0]


@pytest.mark.slow
def test_peft_loads_it_onto_our_export(base: Path, adapter: Path, tmp_path: Path) -> None:
    export_to_hf(open_run(base), tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    folder = open_run(adapter).path()
    adapted = PeftModel.from_pretrained(model, folder)
    status = adapted.get_model_status()
    assert status.num_adapter_layers == 12
    with torch.no_grad():
        theirs = adapted(input_ids=IDS).logits
    expected = logits(load(adapter))[..., : theirs.size(-1)]
    torch.testing.assert_close(theirs, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(theirs, logits(load(base))[..., : theirs.size(-1)], atol=1e-2)


def test_everything_loads_it_merged(base: Path, adapter: Path, tmp_path: Path) -> None:
    engine, checkpoint = load_engine(ModelSource(run=str(adapter), device_type="cpu"))
    assert checkpoint.stage == "sft"
    assert not any("lora" in name for name, _ in engine.model.named_modules())
    result = export_to_hf(checkpoint, tmp_path / "hf")
    exported = load_file(result.out / "model.safetensors")
    ours = load_weights(checkpoint)
    name = "blocks.0.attention.query.weight"
    torch.testing.assert_close(exported[f"model.decoder.{name}"], ours[name])
    of_base = load_tensors(open_run(base), "model.safetensors")
    assert not torch.equal(ours[name], of_base[name])
    assert torch.equal(ours["lm_head.weight"], of_base["lm_head.weight"])


def test_an_adapter_beside_its_base_shares_its_memory(base: Path, adapter: Path) -> None:
    engine, checkpoint = load_engine(ModelSource(run=str(base), device_type="cpu", precision="fp32"))
    beside, found = load_adapter(f"{adapter}:30", engine, checkpoint)
    assert found.step == 30
    torch.testing.assert_close(logits(beside.model), logits(load(adapter)), atol=1e-4, rtol=1e-4)
    tables = [engine.model.embedding.weight, beside.model.embedding.weight]
    assert tables[0].data_ptr() == tables[1].data_ptr()
    for run in (base, adapter):
        with pytest.raises(UserError, match="is no adapter of"):
            load_adapter(str(run), beside, found)


def test_a_stopped_run_goes_on_as_if_it_had_not_been(base: Path, talk: Path, tmp_path: Path) -> None:
    whole = settings_of(base, talk, tmp_path / "whole", num_iterations=8, save_every=4)
    fine_tune(whole)
    cut = dataclasses.replace(whole, out=tmp_path / "cut")
    shutil.copytree(whole.out, cut.out)
    shutil.rmtree(cut.out / "checkpoints" / "step_000008")
    fine_tune(cut)
    losses = [[record["loss"] for record in records(run.out, "step")] for run in (whole, cut)]
    assert losses[0] == losses[1]
    weights = [load_weights(open_run(run.out)) for run in (whole, cut)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(UserError, match="--lora_rank was 4, is 8"):
        fine_tune(dataclasses.replace(cut, lora=dataclasses.replace(LORA, lora_rank=8)))


@pytest.mark.slow
def test_compiled_it_learns_the_same(base: Path, talk: Path, tmp_path: Path) -> None:
    losses = []
    for no_compile in (True, False):
        settings = settings_of(base, talk, tmp_path / str(no_compile), no_compile=no_compile)
        fine_tune(settings)
        losses.append([record["loss"] for record in records(settings.out, "step")])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_pre_training_may_go_on_with_an_adapter(
    base: Path, corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    settings = dataclasses.replace(
        small_settings(corpus, tokenizer_path, tmp_path / "run"), depth=-1, max_seq_len=-1, stage="mid",
        init_from=str(base), rates=LearningRates(), lora=LORA, precision="fp32",
    )  # fmt: skip
    pretrain(settings)
    bits = [record["bits_per_byte"] for record in records(settings.out, "validation")]
    assert bits[-1] < bits[0]
    assert open_run(settings.out).is_adapter
    for changes, message in (
        ({"rates": LearningRates(matrix_lr=0.1)}, "--lora_lr"),
        ({"init_optimizer": True}, "--init_optimizer is of whole models"),
        ({"init_from": "", "stage": "base"}, "Add --init_from"),
    ):
        with pytest.raises(UserError, match=message):
            dataclasses.replace(settings, **changes)


def test_an_adapter_may_be_adapted(adapter: Path, talk: Path, tmp_path: Path) -> None:
    seen = AtStart()
    fine_tune(settings_of(adapter, talk, tmp_path / "next"), [seen])
    assert torch.equal(seen.first, logits(load(adapter)))
    torch.testing.assert_close(logits(load(tmp_path / "next")), seen.last, atol=1e-4, rtol=1e-4)


def test_another_base_is_refused(base: Path, talk: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "base")
    fine_tune(settings_of(tmp_path / "base", talk, tmp_path / "run", num_iterations=2))
    load(tmp_path / "run")
    step = next((tmp_path / "base" / "checkpoints").iterdir())
    other = pretrain_again(tmp_path / "base", tmp_path / "other")
    shutil.rmtree(step)
    for attempt in (load, check_run):
        with pytest.raises(UserError, match=f"adapter of {step.parent}, step 8, which is not"):
            attempt(tmp_path / "run")
    shutil.copytree(other, step)
    for attempt in (load, check_run):
        with pytest.raises(UserError, match="adapter of another model than the one in"):
            attempt(tmp_path / "run")


def pretrain_again(run: Path, out: Path) -> Path:
    """The folder of a checkpoint of the same step and shape with other weights."""
    given = records(run, "session")[0]["settings"]
    settings = dataclasses.replace(from_dict(TrainSettings, given, where="log"), seed=7, out=out)
    pretrain(settings)
    return next((out / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "jax"}, "--lora_rank is PyTorch's.*--backend torch"),
        ({"lora": LoraSettings(lora_rank=4, lora_targets=("q_proj",))}, "--lora_targets q_proj is no matrix"),
    ],
)
def test_refusals_leave_nothing(base: Path, talk: Path, tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fine_tune(settings_of(base, talk, tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(UserError, match="--lora_alpha does nothing without --lora_rank"):
        LoraSettings(lora_alpha=8.0)
    with pytest.raises(UserError, match="--lora_rank -1"):
        LoraSettings(lora_rank=-1)
    with pytest.raises(UserError, match="--lr_scale is of whole models"):
        settings_of(Path("base"), Path("talk"), Path("out"), lr_scale=0.5)


def test_targets_are_chosen_by_the_ends_of_names(base: Path, talk: Path, tmp_path: Path) -> None:
    lora = dataclasses.replace(LORA, lora_targets=("query", "mlp.down"))
    fine_tune(settings_of(base, talk, tmp_path / "run", num_iterations=1, lora=lora))
    checkpoint = open_run(tmp_path / "run")
    assert checkpoint.json("adapter_config.json")["target_modules"] == ["attention.query", "mlp.down"]
    assert len(load_tensors(checkpoint, "adapter_model.safetensors")) == 2 * 2 * 2
