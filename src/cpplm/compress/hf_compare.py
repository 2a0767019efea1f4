"""Quantised models of the transformers library against the model before, beside plain rounding."""

from __future__ import annotations

from typing import Any

import torch

from cpplm.compress.compare import Comparison, MeasuredModel, Meter, bfloat16_bytes, packed_bytes
from cpplm.compress.held_out_rows import text_rows
from cpplm.compress.hf import load_for_rounding, open_hf
from cpplm.compress.quantize import round_layers
from cpplm.compress.settings import CompareSettings
from cpplm.core.errors import UserError
from cpplm.evaluate.texts import read_texts
from cpplm.model.quantized.directory import is_packed, read_packed
from cpplm.model.quantized.recipe import InitMethod, Recipe
from cpplm.post_training.hf_folder import HfFolder
from cpplm.post_training.hf_states import HfStates


def compare_hf(settings: CompareSettings) -> list[Comparison]:
    """The teacher, then for each recipe both ways of rounding, then the students.

    Raises:
        UserError: directories that are missing, or have another tokenizer.
    """
    source, students = open_hf(settings.teacher), [HfFolder(location) for location in settings.students]
    tokens = source.tokenizer().tokens
    for student in students:
        if student.tokenizer().hash != tokens.hash:
            raise UserError(
                f"{student.folder} has another tokenizer than {source.folder}", fix="Leave it out."
            )
    texts = [text.text for text in read_texts(settings.data_dir)]
    encode, context = source.tokenizer().encode_batch, source.row_length(-1)
    rows = list(text_rows(encode, context, texts, settings.num_tokens))
    before = source.load(torch.float32).eval()
    teacher = _halves(before, source)
    meter = Meter(teacher, rows, sum(len(tokens.bytes_of(row[1:].tolist())) for row in rows))
    results = [meter.measure(teacher, "teacher", "", bfloat16_bytes(before))]
    recipes = [_recipe_of(student) for student in students]
    methods: tuple[InitMethod, ...] = ("absmax", "mse")
    for recipe in dict.fromkeys(filter(None, (*recipes, *settings.recipes))):
        for init in methods:
            model = load_for_rounding(source)
            round_layers(model, Recipe.parse(recipe), init)
            halves, size = _halves(model, source), packed_bytes(model)
            results.append(meter.measure(halves, f"rounding, {init}", recipe, size))
    for location, student, recipe in zip(settings.students, students, recipes, strict=True):
        halves = _halves(student.load(torch.float32).eval(), student)
        size = sum(path.stat().st_size for path in student.folder.glob("*.safetensors"))
        results.append(meter.measure(halves, location, recipe, size))
    return results


def _recipe_of(source: HfFolder) -> str:
    return str(read_packed(source.folder)[1]["recipe"]) if is_packed(source.folder) else ""


@torch.no_grad()
def _halves(model: Any, source: HfFolder) -> MeasuredModel:
    states = HfStates(model, str(source.folder))
    head_VC = states.head_VC
    return MeasuredModel(lambda ids_1T: states(ids_1T, None), lambda hidden_1TC: hidden_1TC @ head_VC.T)
