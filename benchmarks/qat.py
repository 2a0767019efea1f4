"""What training rounded weights gains over rounding, against torchao's quantisation-aware training.

    python benchmarks/qat.py CORPUS --run RUN --held_out OTHER_CORPUS --recipe mlp=half2:g32,attn=half4:g32

For each seed, our `cpplm compress qat` and the same loop with the fake quantisers of torchao (groups of the
same size and bits, dynamic scales; with --peer asymmetric a zero point for each, too, which takes more bits)
train the same model on the same batches with the same loss, rates and number of steps. All are compared with
RUN on the held-out documents of OTHER_CORPUS. Runs are kept in --work: the command goes on where it was
interrupted. --peer off leaves torchao out.

    python benchmarks/qat.py CORPUS --run RUN --step_time

measures a step of `cpplm train --quantize` against a plain one instead, in turns.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring import Spread, command_line, prepare_environment, progress, publish, ratios, refusals
from torch import Tensor, nn

from cpplm.compress.compare import Comparison, compare
from cpplm.compress.qat import DistillBackend, train_quantized, train_settings
from cpplm.compress.settings import CompareSettings, QatSettings
from cpplm.core.run_log import LOG, read_run_log
from cpplm.core.storage import Storage
from cpplm.model.layers import Linear
from cpplm.model.quantized.layers import quantizable
from cpplm.model.quantized.recipe import Recipe
from cpplm.model.settings import QuantizationSettings
from cpplm.model.transformer import Transformer
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.save import write_checkpoint
from cpplm.train.pretrain import pretrain
from cpplm.train.torch_backend import torch_model
from cpplm.train.trainer import Callback, Trainer

TIMED = 8
"""Steps at the end of a run whose times count."""


class TorchaoLinear(Linear):
    """A linear layer with a fake quantiser of torchao."""

    def __init__(self, linear: nn.Linear, quantizer: nn.Module) -> None:
        super().__init__(linear.in_features, linear.out_features)
        self.weight, self.quantizer = linear.weight, quantizer

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.quantizer(self.weight).to(x.dtype))


def quantize_by_torchao(model: Transformer, recipe: str, *, symmetric: bool) -> None:
    """Put torchao's fake quantisers in front of the weights that a recipe names, in place."""
    from torchao.quantization.qat import IntxFakeQuantizeConfig  # noqa: PLC0415  (slow to import)
    from torchao.quantization.qat.fake_quantizer import FakeQuantizerBase  # noqa: PLC0415

    for name, weight_format in quantizable(model, Recipe.parse(recipe)).items():
        dtype = getattr(torch, f"int{weight_format.codebook.bits}")
        config = IntxFakeQuantizeConfig(dtype, group_size=weight_format.group_size, is_symmetric=symmetric)
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear), "torchao has no fake quantiser for embeddings"
        model.set_submodule(name, TorchaoLinear(linear, FakeQuantizerBase.from_config(config)))


class TorchaoBackend(DistillBackend):
    """As ours, with a model that torchao rounds."""

    def __init__(self, training: Any, qat: QatSettings, *, symmetric: bool) -> None:
        super().__init__(training, qat)
        self._recipe, self._symmetric = qat.recipe, symmetric

    def _module(self, model: Transformer, optimizer: Any, settings: Any) -> Any:
        quantize_by_torchao(model, self._recipe, symmetric=self._symmetric)
        return super()._module(model, optimizer, settings)


class KeepModel(Callback):
    """Keeps the model that is trained."""

    model: Transformer

    def on_start(self, trainer: Trainer) -> None:
        self.model = torch_model(trainer.train_module)


def train_by_torchao(settings: QatSettings, *, symmetric: bool) -> None:
    """The run of `cpplm compress qat` with torchao's rounding; its last checkpoint has rounded weights."""
    source = open_parent(settings.run)
    Storage(settings.out, create=True).write("tokenizer.json", source.tokenizer().to_json())
    plain = train_settings(settings, source, settings.lr_scale)
    plain = dataclasses.replace(plain, quantization=QuantizationSettings(), keep_last=1)
    keep = KeepModel()
    pretrain(plain, [keep], backend=TorchaoBackend(plain, settings, symmetric=symmetric))
    state = dict(keep.model.state_dict())
    for name, module in keep.model.named_modules():
        if isinstance(module, TorchaoLinear):
            state[f"{name}.weight"] = module.quantizer(module.weight).detach()
    state = {name: value for name, value in state.items() if ".quantizer." not in name}
    files = {name: source.read(name) for name in ("config.json", "settings.json", "tokenizer.json")}
    shutil.rmtree(settings.out / "checkpoints")
    write_checkpoint(
        Storage(settings.out / "checkpoints", create=True), settings.num_iterations,
        {"model.safetensors": state}, files,
    )  # fmt: skip


def train(args: Any, seed: int) -> list[str]:
    """The runs of one seed, ours first."""
    contenders: dict[str, Callable[[QatSettings], object]] = {"ours": train_quantized}
    if args.peer != "off":
        is_symmetric = args.peer == "symmetric"
        contenders[f"torchao-{args.peer}"] = partial(train_by_torchao, symmetric=is_symmetric)
    folders = []
    for name, run in contenders.items():
        out = args.work / f"{name}_{seed}"
        if not (out / "finished").exists():
            shutil.rmtree(out, ignore_errors=True)
            progress(f"{name}, seed {seed}")
            run(
                QatSettings(
                    (args.corpus,), args.run, out, recipe=args.recipe, num_iterations=args.steps,
                    lr_scale=args.lr_scale, seed=seed, device_type="cpu",
                )
            )  # fmt: skip
            (out / "finished").touch()
        folders.append(str(out))
    return folders


def summary(results: Sequence[Comparison], students: int) -> dict[str, Any]:
    """Divergences, and nats lost, by how the model was made."""
    teacher, *rounding = results[: len(results) - students]
    named = {each.name: [each] for each in rounding}
    for each in results[len(results) - students :]:
        named.setdefault(Path(each.name).name.rpartition("_")[0], []).append(each)
    return {
        name: {
            "divergence": Spread.of((each.divergence for each in group), 5),
            "nats_lost": Spread.of((each.cross_entropy - teacher.cross_entropy for each in group), 5),
            "same_top1": Spread.of((each.same_top1 for each in group), 4),
        }
        for name, group in named.items()
    }


def step_seconds(args: Any, name: str, quantization: QuantizationSettings) -> float:
    """The median time of the last steps of a run from scratch."""
    source = open_parent(args.run)
    out = args.work / name
    shutil.rmtree(out, ignore_errors=True)
    settings = QatSettings((args.corpus,), args.run, out, num_iterations=3 * TIMED, device_type="cpu")
    plain = train_settings(settings, source, 1.0)
    Storage(out, create=True).write("tokenizer.json", source.tokenizer().to_json())
    pretrain(dataclasses.replace(plain, quantization=quantization, eval_every=-1))
    steps = [record for record in read_run_log(out / LOG) if record["event"] == "step"]
    return Spread.of([each["step_seconds"] for each in steps[-TIMED:]], 4).median


def main() -> None:
    """The command line."""
    parser = command_line(
        __doc__, recipe="mlp=half2:g32,attn=half4:g32", peer="symmetric", seeds=3, steps=40, lr_scale=0.1,
        num_tokens=20_000, turns=3, threads=1,
    )  # fmt: skip
    parser.add_argument("corpus", help="corpus to train on")
    parser.add_argument("--run", required=True, help="run of 'cpplm train'")
    parser.add_argument("--held_out", help="corpus to compare on")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--step_time", action="store_true", help="measure steps instead")
    args = parser.parse_args()
    prepare_environment(args.threads)
    torch.set_num_threads(args.threads)
    settings = {name: str(value) for name, value in vars(args).items()}
    if args.step_time:
        contenders = {"plain": QuantizationSettings(), "quantized": QuantizationSettings(args.recipe)}
        seconds = {name: [] for name in contenders}
        for _ in range(args.turns):
            for name, quantization in contenders.items():
                seconds[name].append(step_seconds(args, name, quantization))
                progress(f"{name}: {seconds[name][-1]:.3f} s")
        figures = {"times_as_long": ratios(seconds["quantized"], seconds["plain"]), "seconds": seconds}
        publish("qat_step", {"settings": settings, **figures})
        return
    students = [folder for seed in range(args.seeds) for folder in train(args, seed)]
    results = compare(
        CompareSettings(args.run, args.held_out, tuple(students), (args.recipe,), num_tokens=args.num_tokens)
    )
    figures = summary(results, len(students))
    for name, each in figures.items():
        progress(f"{name:16} KL {each['divergence']}  nats lost {each['nats_lost']}")
    publish("qat", {"settings": settings, "models": figures, "all": [dataclasses.asdict(r) for r in results]})


if __name__ == "__main__":
    with refusals("qat.py"):
        main()
