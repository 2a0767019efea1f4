"""Quantised models against the model before: divergence, cross-entropy and size, beside plain rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.compress.held_out_rows import held_out_rows
from cpplm.compress.quantize import restore_trained, rounded_model
from cpplm.compress.settings import CompareSettings
from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.run_log import LOG
from cpplm.core.storage import Storage, split_step
from cpplm.evaluate.run import Evaluation
from cpplm.evaluate.settings import (
    BpbSettings,
    EvalTarget,
    EvaluatedModel,
    FimEvalSettings,
    LikelihoodSettings,
)
from cpplm.model.lora import ADAPTER_WEIGHTS
from cpplm.model.quantized.packing import packed_tensors
from cpplm.model.quantized.recipe import Recipe
from cpplm.model.transformer import Transformer
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint, open_base, step_folder
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.weights import load_model
from cpplm.train.report.html import COMPRESSION, write_page

_CPU = torch.device("cpu")
_EVALUATED_BYTES = 1_000_000


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
        weight_bytes: of all weights in a packed file, also of a run that is yet to be packed, and of an
            adapter beside it; of what has none, in bfloat16.
        tasks: `task_scores` of a run, if they were asked for.
    """

    name: str
    recipe: str
    cross_entropy: float
    bits_per_byte: float
    divergence: float
    same_top1: float
    weight_bytes: int
    tasks: dict[str, Any] | None = None


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
    rows = list(held_out_rows(source, settings.data_dir, settings.num_tokens))
    num_bytes = sum(len(source.tokenizer().decode_bytes(row[1:].tolist())) for row in rows)
    before = _halves(teacher)
    meter = Meter(before, rows, num_bytes)
    results = [meter.measure(before, "teacher", "", bfloat16_bytes(teacher))]
    recipes = [*(_recipe_of(student) for student in students), *settings.recipes]
    for recipe in dict.fromkeys(filter(None, recipes)):
        for init in ("absmax", "mse"):
            model = rounded_model(source, Recipe.parse(recipe), init)
            results.append(meter.measure(_halves(model), f"rounding, {init}", recipe, packed_bytes(model)))
    for run, student in zip(settings.students, students, strict=True):
        model = load_model(student, device=_CPU, compute_dtype=torch.float32)
        results.append(meter.measure(_halves(model), run, _recipe_of(student), _size(student, model)))
    if settings.evaluate:
        runs = dict(zip(settings.students, results[-len(students) :], strict=True)) if students else {}
        for run, result in {settings.teacher: results[0], **runs}.items():
            result.tasks = task_scores(run, settings.data_dir)
    for run, student in zip(settings.students, students, strict=True):
        _show_on_page(results, settings, run, student)
    return results


def _size(student: Checkpoint, model: Transformer) -> int:
    if student.is_adapter:
        return _size(open_base(student), model) + student.files[ADAPTER_WEIGHTS]["bytes"]
    if student.is_packed:
        return sum(entry["bytes"] for name, entry in student.files.items() if name.startswith("model"))
    return packed_bytes(restore_trained(student)) if QUANTIZATION in student.files else bfloat16_bytes(model)


def _show_on_page(
    results: Sequence[Comparison], settings: CompareSettings, run: str, student: Checkpoint
) -> None:
    """Show the comparison on the page of a run; of a packed model, on that of the run that trained it."""
    folder, parent = Path(split_step(run)[0]).expanduser(), student.parent
    if student.is_packed and parent is not None:
        checkpoints = Path(parent["location"])
        if (checkpoints / step_folder(parent["step"]) / QUANTIZATION).exists():
            folder = checkpoints.parent
    if (folder / LOG).exists():
        Storage(folder).write_json(COMPRESSION, page_values(results, settings))
        write_page(folder)


def task_scores(run: str, data_dir: str) -> dict[str, Any]:
    """Scores of a run by `cpplm evaluate`: of what this machine runs, in bfloat16 where it has that.

    Returns:
        "bits_per_byte" of held-out documents, with at least half the context before each token.
        "bug_ranking", the share of HumanEval's problems whose right solution is likelier than the buggy one,
        and "bug_ranking_interval", 95 %. "exact_match", the share of holes in held-out documents that are
        filled with what stood there, "exact_match_error", None of a single document, and "holes".
    """
    location, step = split_step(run)
    evaluation = Evaluation(EvalTarget(EvaluatedModel(location, -1 if step is None else step)))
    bits = evaluation.bits_per_byte(BpbSettings(data_dir, eval_bytes=_EVALUATED_BYTES, context_bytes=0))
    bugs = evaluation.likelihood(LikelihoodSettings())["bug_ranking"]
    holes = evaluation.fim(FimEvalSettings(problems="", files=data_dir))
    exact = holes["files"]["all"]["exact_match"]
    return {
        "bits_per_byte": bits["bits_per_byte"],
        "bug_ranking": bugs["share"], "bug_ranking_interval": bugs["interval"],
        "exact_match": exact["value"], "exact_match_error": exact["error"], "holes": holes["holes"],
    }  # fmt: skip


def _recipe_of(checkpoint: Checkpoint) -> str:
    checkpoint = open_base(checkpoint) if checkpoint.is_adapter else checkpoint
    return checkpoint.json(QUANTIZATION)["recipe"] if QUANTIZATION in checkpoint.files else ""


def _halves(model: Transformer) -> MeasuredModel:
    return MeasuredModel(model.hidden_states, model.logits)


def bfloat16_bytes(model: nn.Module) -> int:
    """Bytes of the weights, two each."""
    return 2 * sum(parameter.numel() for parameter in model.parameters())


def packed_bytes(model: nn.Module) -> int:
    """Bytes of the tensors of a packed file."""
    return sum(tensor.nbytes for tensor in packed_tensors(model).values())


class MeasuredModel(NamedTuple):
    """A model by its two halves: hidden states 1TC of ids 1T, and float32 logits 1TV of those."""

    states: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]


class Meter:
    """Runs models over rows, and compares their distributions with the teacher's."""

    def __init__(self, teacher: MeasuredModel, rows: Sequence[Tensor], num_bytes: int) -> None:
        self._teacher, self._rows, self._num_bytes = teacher, rows, num_bytes
        with torch.no_grad(), progress_bar(len(rows), "teacher", "row") as bar:
            self._hidden = []
            for row in rows:
                self._hidden.append(teacher.states(row[:-1].unsqueeze(0)))
                bar.update(1)

    @torch.no_grad()
    def measure(self, model: MeasuredModel, name: str, recipe: str, size: int) -> Comparison:
        """Compare one model; `size` is that of its weights in bytes."""
        sums, count = torch.zeros(3, dtype=torch.float64), 0
        with progress_bar(len(self._rows), name, "row") as bar:
            for row, hidden_BTC in zip(self._rows, self._hidden, strict=True):
                before_TV = self._teacher.logits(hidden_BTC)[0].log_softmax(-1)
                after_TV = before_TV
                if model is not self._teacher:
                    after_TV = model.logits(model.states(row[:-1].unsqueeze(0)))[0].log_softmax(-1)
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
    evaluated = [(each, each.tasks) for each in results if each.tasks]
    if evaluated:
        rows += ["", f"{'evaluated':{width}}  bits/byte  bug ranking (95 %)    holes filled exactly"]
    for each, tasks in evaluated:
        low, high = tasks["bug_ranking_interval"]
        error = "" if tasks["exact_match_error"] is None else f" ± {tasks['exact_match_error']:.1%}"
        rows.append(
            f"{each.name:{width}}  {tasks['bits_per_byte']:9.4f}  {tasks['bug_ranking']:5.1%} "
            f"({low:.1%}-{high:.1%})  {tasks['exact_match']:.1%}{error} of {tasks['holes']}"
        )
    return "\n".join(rows)


def page_values(results: Sequence[Comparison], settings: CompareSettings) -> dict[str, Any]:
    """The values of a page, by the names that its template uses."""
    return {
        "teacher": settings.teacher,
        "data": settings.data_dir,
        "tokens": settings.num_tokens,
        "models": [asdict(each) for each in results],
    }
