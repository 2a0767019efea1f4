"""Quantised models against the model before: divergence, cross-entropy and size, beside plain rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cpplm.compress.quantize import rounded_model
from cpplm.compress.sample_rows import sample_rows
from cpplm.compress.settings import CompareSettings
from cpplm.core.errors import UserError
from cpplm.core.html_page import render
from cpplm.core.progress import progress_bar
from cpplm.model.quantized.packing import packed_tensors
from cpplm.model.quantized.recipe import Recipe
from cpplm.model.transformer import Transformer
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.weights import load_model

_CPU = torch.device("cpu")


@dataclass
class Comparison:
    """One model on the same tokens as the others.

    Attributes:
        name: of the run, or how it was rounded.
        recipe: its formats; "" for the teacher.
        cross_entropy: nats per token.
        bits_per_byte: the same by bytes of text.
        divergence: mean KL(teacher, model) in nats per token.
        same_top1: share of tokens where both find the same one likeliest.
        weight_bytes: of all weights in a packed file; of the teacher in bfloat16.
    """

    name: str
    recipe: str
    cross_entropy: float
    bits_per_byte: float
    divergence: float
    same_top1: float
    weight_bytes: int


def compare(settings: CompareSettings) -> list[Comparison]:
    """The teacher, then for each recipe both ways of rounding, then the students.

    Raises:
        UserError: runs that are missing, or have another tokenizer.
    """
    source = open_parent(settings.teacher)
    teacher = load_model(source, device=_CPU, compute_dtype=torch.float32)
    students = [open_parent(run) for run in settings.students]
    for run, student in zip(settings.students, students, strict=True):
        if student.tokenizer().hash != source.tokenizer().hash:
            raise UserError(f"{run} has another tokenizer than {settings.teacher}", fix="Leave it out.")
    rows = list(sample_rows(source, settings.data_dir, settings.num_tokens))
    num_bytes = sum(len(source.tokenizer().decode_bytes(row[1:].tolist())) for row in rows)
    meter = _Meter(teacher, rows, num_bytes)
    results = [meter.measure(teacher, "teacher", "", bfloat16_bytes(teacher))]
    recipes = [*(_recipe_of(student) for student in students), *settings.recipes]
    for recipe in dict.fromkeys(filter(None, recipes)):
        for init in ("absmax", "mse"):
            model = rounded_model(source, Recipe.parse(recipe), init)
            results.append(meter.measure(model, f"rounding, {init}", recipe, packed_bytes(model)))
    for run, student in zip(settings.students, students, strict=True):
        model = load_model(student, device=_CPU, compute_dtype=torch.float32)
        size = sum(
            entry["bytes"] for name, entry in student.files.items()
            if name.startswith("model") and student.is_packed
        )  # fmt: skip
        results.append(meter.measure(model, run, _recipe_of(student), size))
    return results


def _recipe_of(checkpoint: Checkpoint) -> str:
    return checkpoint.json(QUANTIZATION)["recipe"] if QUANTIZATION in checkpoint.files else ""


def bfloat16_bytes(model: Transformer) -> int:
    """Bytes of the weights, two each."""
    return 2 * sum(parameter.numel() for parameter in model.parameters())


def packed_bytes(model: Transformer) -> int:
    """Bytes of the tensors of a packed file."""
    return sum(tensor.nbytes for tensor in packed_tensors(model).values())


class _Meter:
    """Runs models over rows, and compares their distributions with the teacher's."""

    def __init__(self, teacher: Transformer, rows: Sequence[Tensor], num_bytes: int) -> None:
        self._teacher, self._rows, self._num_bytes = teacher, rows, num_bytes

    @torch.no_grad()
    def measure(self, model: Transformer, name: str, recipe: str, size: int) -> Comparison:
        sums, count = torch.zeros(3, dtype=torch.float64), 0
        with progress_bar(len(self._rows), name, "row") as bar:
            for row in self._rows:
                before_TV = self._teacher(row[:-1].unsqueeze(0))[0].log_softmax(-1)
                after_TV = model(row[:-1].unsqueeze(0))[0].log_softmax(-1)
                nats = F.nll_loss(after_TV, row[1:], reduction="sum")
                divergence = F.kl_div(after_TV, before_TV, reduction="sum", log_target=True)
                same = (after_TV.argmax(-1) == before_TV.argmax(-1)).sum()
                sums += torch.stack([nats, divergence, same]).double()
                count += len(row) - 1
                bar.update(1)
        nats, divergence, same = (sums / count).tolist()
        bits = float(sums[0]) / math.log(2) / self._num_bytes
        return Comparison(name, recipe, nats, bits, divergence, same, size)


def table(results: Sequence[Comparison]) -> str:
    """The comparison in aligned columns."""
    first = results[0]
    width = max(len(each.name) for each in results)
    rows = [f"{'model':{width}}  nats/token  bits/byte        KL  same top-1        MB  smaller  recipe"]
    for each in results:
        smaller = f"{first.weight_bytes / each.weight_bytes:5.2f} x" if each.weight_bytes else "      -"
        rows.append(
            f"{each.name:{width}}  {each.cross_entropy:10.4f}  {each.bits_per_byte:9.4f}  "
            f"{each.divergence:8.5f}  {each.same_top1:10.2%}  {each.weight_bytes / 1e6:8.2f}  {smaller}  "
            f"{each.recipe}"
        )
    return "\n".join(rows)


def page(results: Sequence[Comparison], settings: CompareSettings) -> str:
    """The comparison as one HTML page."""
    largest = max(each.divergence for each in results) or 1.0
    return render(
        "cpplm.compress", "comparison.html.jinja", {}, results=results, largest=largest,
        teacher=settings.teacher, data=settings.data_dir, tokens=f"{settings.num_tokens:,}",
    )  # fmt: skip


def records(results: Sequence[Comparison]) -> list[dict[str, object]]:
    """For `--json`."""
    return [asdict(each) for each in results]
