"""Fine-tuning of models of the transformers library: what is learned, exact resume, what a run leaves."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from cpplm.cli.checkpoints import CheckpointListSettings, list_checkpoints
from cpplm.core.errors import UserError
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.dataloader.loader import Batch
from cpplm.dataloader.loader_state import LoaderState
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.model.settings import LoraSettings
from cpplm.post_training.hf_backend import HfTrainModule, packed_rows, single_rows
from cpplm.post_training.hf_states import isolates_documents
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from cpplm.train.checkpoint.format import check_run, open_checkpoint, open_run
from cpplm.train.checkpoint.weights import load_tensors
from cpplm.train.distributed import SINGLE_PROCESS
from cpplm.train.trainer import Callback
from tests.post_training.conftest import question, write
from tests.post_training.hf_models import FAMILIES, write_chat_model
from tests.train.records import records

LORA = LoraSettings(lora_rank=4, lora_lr=0.02)
IDS = torch.arange(64)[None]


def settings(folder: Path, tmp_path: Path, **changes) -> SftSettings:
    file = write(tmp_path / "talk.jsonl", *map(question, range(60)))
    options = {
        "num_iterations": 6, "val_share": 0.2, "total_batch_size": 256, "device_batch_size": 2,
        "lr_scale": 200.0, "eval_every": 6, "precision": "fp32", **changes,
    }  # fmt: skip
    return SftSettings(data=(file,), init_from=f"hf:{folder}", out=tmp_path / "run", **options)


def newest(run: SftSettings):
    return open_checkpoint(Storage(run.out / "checkpoints"))


def logits(folder: Path) -> torch.Tensor:
    return AutoModelForCausalLM.from_pretrained(folder).eval()(IDS).logits.detach()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_it_learns_and_leaves_a_directory(family: str, tmp_path: Path) -> None:
    folder = write_chat_model(tmp_path / "model", family)
    run = settings(folder, tmp_path, num_iterations=20, lr_scale=100.0)
    fine_tune(run)
    assert set(records(run.out, "memory")[1]["phases"]) == {"data", "forward", "backward", "optimizer"}
    bits = [record["bits_per_byte"] for record in records(run.out, "validation")]
    assert bits[-1] < 0.6 * bits[0]
    model = HfModel.load(run.out / "hf")  # as `cpplm evaluate --hf_dir` does
    assert len(list(model.score(["int f1"]))) == 1
    trained = load_tensors(newest(run), "model.safetensors")
    written = load_file(run.out / "hf/model.safetensors")
    assert all(torch.equal(weight, trained[name]) for name, weight in written.items())
    assert not torch.allclose(logits(folder), logits(run.out / "hf"))
    assert newest(run).stage == "sft"
    shown = list_checkpoints(CheckpointListSettings(str(run.out)))
    assert f"sft from hf ({folder}, sha256 {newest(run).parent['manifest'][:12]})" in shown.text
    for refuse in (open_run, check_run):
        with pytest.raises(UserError, match=r"only that library runs.*--hf_dir"):
            refuse(run.out)


def test_a_second_run_starts_from_the_directory_of_the_first(tmp_path: Path) -> None:
    first = settings(write_chat_model(tmp_path / "model"), tmp_path, num_iterations=1, eval_every=-1)
    fine_tune(first)
    second = dataclasses.replace(first, init_from=f"hf:{first.out / 'hf'}", out=tmp_path / "second")
    fine_tune(second)
    parent = newest(second).parent
    assert (parent["stage"], parent["parent"]["stage"], parent["parent"]["step"]) == ("hf", "sft", 1)
    assert parent["parent"]["parent"]["stage"] == "hf"


class Crash(Callback):
    def on_step(self, trainer, metrics) -> None:
        if trainer.state.step == 4:
            raise RuntimeError("killed")


@pytest.mark.parametrize("lora", [LoraSettings(), LORA], ids=["whole", "lora"])
def test_a_killed_run_goes_on_exactly(lora: LoraSettings, tmp_path: Path) -> None:
    options = {
        "lora": lora,
        "save_every": 3,
        **({} if lora.lora_rank == 0 else {"lr_scale": SftSettings.lr_scale}),
    }
    whole = settings(write_chat_model(tmp_path / "model"), tmp_path, **options)
    fine_tune(whole)
    killed = dataclasses.replace(whole, out=tmp_path / "killed")
    with pytest.raises(RuntimeError, match="killed"):
        fine_tune(killed, [Crash()])
    assert not (killed.out / "hf").exists()
    fine_tune(killed)
    losses = [[record["loss"] for record in records(run.out, "step")] for run in (whole, killed)]
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]
    assert torch.equal(logits(whole.out / "hf"), logits(killed.out / "hf"))
    with pytest.raises(UserError, match="another run"):
        fine_tune(dataclasses.replace(killed, lora=LoraSettings(lora_rank=2), lr_scale=SftSettings.lr_scale))


def test_an_adapter_alone_is_trained(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = write_chat_model(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run = settings(folder, tmp_path, lora=LORA, num_iterations=20, lr_scale=SftSettings.lr_scale)
    fine_tune(run)
    losses = [record["loss"] for record in records(run.out, "step")]
    assert losses[-1] < 0.7 * losses[0]
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    checkpoint = newest(run)
    assert all("lora_" in name for name in load_tensors(checkpoint, "adapter_model.safetensors"))
    assert "model.safetensors" not in checkpoint.files
    base = AutoModelForCausalLM.from_pretrained(folder)
    adapted = peft.PeftModel.from_pretrained(base, checkpoint.path()).eval()(IDS).logits
    torch.testing.assert_close(adapted, logits(run.out / "hf"), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(adapted, logits(folder), atol=0.1)


def test_the_loss_of_a_step_does_not_depend_on_passes(tmp_path: Path) -> None:
    folder, losses = write_chat_model(tmp_path / "model"), []
    for rows in (1, 4):
        run = settings(folder, tmp_path, device_batch_size=rows, eval_every=-1)
        fine_tune(dataclasses.replace(run, out=tmp_path / str(rows)))
        losses.append([record["loss"] for record in records(tmp_path / str(rows), "step")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def packed_batch() -> Batch:
    """Two rows of three conversations and padding each."""
    torch.manual_seed(1)
    ids, targets = torch.randint(3, 300, (2, 32)), torch.full((2, 32), IGNORE_INDEX)
    documents = torch.tensor([[0] * 7 + [1] * 11 + [2] * 9 + [3] * 5, [0] * 3 + [1] * 20 + [2] * 4 + [3] * 5])
    targets[:, :-1] = torch.where(documents[:, :-1] == documents[:, 1:], ids[:, 1:], IGNORE_INDEX)
    targets[documents == 3] = IGNORE_INDEX
    return Batch(ids, targets, LoaderState(), documents)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_conversations_do_not_see_each_other(family: str) -> None:
    torch.manual_seed(0)
    model = FAMILIES[family](400).eval()
    packs = isolates_documents(model)
    assert packs == (family != "mamba")  # whose state runs through
    sums = []
    for given, rows in ((packs, packed_rows), (False, single_rows)):
        module = HfTrainModule(model, FakeConfig(), 0.1, torch.float32, SINGLE_PROCESS, packs=given)
        sums.append(sum(module._sum_of_nats(*some).item() for some in rows(packed_batch())))
    assert (sums[0] == pytest.approx(sums[1], rel=1e-5)) == packs


@dataclasses.dataclass
class FakeConfig:
    lora_rank: int = 0


def test_bfloat16(tmp_path: Path) -> None:
    folder = write_chat_model(tmp_path / "model")
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    run = settings(
        folder, tmp_path, lora=LORA, lr_scale=SftSettings.lr_scale, precision="bf16", num_iterations=10
    )
    fine_tune(run)
    losses = [record["loss"] for record in records(run.out, "step")]
    assert losses[-1] < 0.9 * losses[0]
    dtypes = {tensor.dtype for tensor in load_tensors(newest(run), "adapter_model.safetensors").values()}
    assert dtypes == {torch.float32}
    written = load_file(run.out / "hf/model.safetensors")  # in the dtype of the directory
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}


def test_a_model_with_a_state_has_one_conversation_in_a_row(tmp_path: Path) -> None:
    run = settings(write_chat_model(tmp_path / "model", "mamba"), tmp_path, num_iterations=3)
    fine_tune(run)
    losses = [record["loss"] for record in records(run.out, "step")]
    assert losses[-1] < losses[0]


def test_refusals(tmp_path: Path) -> None:
    folder = write_chat_model(tmp_path / "model")
    run = settings(folder, tmp_path)
    nowhere = LoraSettings(lora_rank=2, lora_targets=("nowhere",))
    cases = [
        ({"init_from": f"hf:{tmp_path / 'none'}"}, "no config.json"),
        ({"max_seq_len": 65}, "the context of .* is 64"),
        ({"lora": nowhere, "lr_scale": SftSettings.lr_scale}, "--lora_targets nowhere"),
    ]
    for changes, message in cases:
        with pytest.raises(UserError, match=message):
            fine_tune(dataclasses.replace(run, **changes))
    for changes in ({"no_compile": True}, {"init_optimizer": True}, {"backend": "jax"}):
        with pytest.raises(UserError, match="of transformers"):
            dataclasses.replace(run, **changes)
    with pytest.raises(UserError, match="no such folder"):
        dataclasses.replace(run, init_from=f"hf:{tmp_path / 'none'}").check_paths()
    run.check_paths()
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=r"no chat template.*chat_template\.jinja"):
        fine_tune(run)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickled ones are never loaded"):
        fine_tune(run)
    config = json.loads((folder / "config.json").read_text())
    write_chat_model(folder)
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "cpplm"}))
    with pytest.raises(UserError, match=r"export of cpplm .*--init_from RUN"):
        fine_tune(run)
    assert not run.out.exists()
    assert to_dict(run)["init_from"].startswith("hf:")
