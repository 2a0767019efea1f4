"""Packed models: a run's weights rounded and written as a checkpoint that every command takes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from cpplm.compress.sample_rows import sample_rows
from cpplm.compress.settings import QuantizeSettings
from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.storage import Storage
from cpplm.model.quantized.calibration import input_importances
from cpplm.model.quantized.layers import quantizable, quantize_layers
from cpplm.model.quantized.packing import (
    packed_tensors,
    quantization_record,
    restore_layers,
)
from cpplm.model.quantized.recipe import InitMethod, Recipe
from cpplm.model.transformer import Transformer
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint, json_bytes
from cpplm.train.checkpoint.parent import open_parent, parent_record
from cpplm.train.checkpoint.save import write_checkpoint
from cpplm.train.checkpoint.weights import load_model, load_tensors

_ALSO = ("config.json", "settings.json", "tokenizer.json", "imported.json")


def quantize_run(settings: QuantizeSettings) -> Checkpoint:
    """Quantise a run's newest checkpoint, or pack what quantisation-aware training has made of it.

    Raises:
        UserError: no such run, a recipe that does not fit it, or `out` holds something else.
    """
    source = open_parent(settings.run)
    folder = settings.out / "checkpoints"
    if folder.exists():
        _refuse_other(settings.out, Storage(folder))
    if QUANTIZATION in source.files:
        record = source.json(QUANTIZATION)
        if record["packed"]:
            raise UserError(f"{source.path()} is packed already", fix="Name the run that it was made from.")
        if settings.recipe not in (type(settings).recipe, record["recipe"]):
            raise UserError(
                f"{source.path()} was trained for {record['recipe']}, not {settings.recipe}",
                fix="Leave --recipe out.",
            )
        model, recipe = _trained_model(source), record["recipe"]
    else:
        recipe, importances = settings.recipe, None
        if settings.init == "activation":
            importances = calibrate(source, Recipe.parse(recipe), settings.data_dir, settings.num_tokens)
        model = rounded_model(source, Recipe.parse(recipe), settings.init, importances)
    tensors = {"model.safetensors": packed_tensors(model)}
    files = {name: source.read(name) for name in _ALSO if name in source.files}
    files[QUANTIZATION] = json_bytes(quantization_record(model, recipe, packed=True))
    files["parent.json"] = json_bytes(parent_record(source))
    return write_checkpoint(Storage(folder, create=True), source.step, tensors, files)


def _refuse_other(folder: Path, storage: Storage) -> None:
    """Refuse a folder with checkpoints that are no packed ones of ours."""
    for name in storage.list_names():
        if name.endswith("/settings.json") and not storage.exists(name.replace("settings", "quantization")):
            raise UserError(f"{folder} holds a run", fix="Name another --out.")


def _trained_model(source: Checkpoint) -> Transformer:
    """A model as quantisation-aware training left it."""
    model = Transformer(source.config())
    try:
        restore_layers(model, load_tensors(source, "model.safetensors"), source.json(QUANTIZATION))
    except RuntimeError as error:
        raise UserError(f"{source.path()}: weights do not fit the configuration: {error}") from error
    return model


def rounded_model(
    source: Checkpoint, recipe: Recipe, init: InitMethod, importances: dict[str, Tensor] | None = None
) -> Transformer:
    """The model of a checkpoint, its weights rounded to the nearest levels.

    Raises:
        UserError: the recipe does not fit.
    """
    model = load_model(source, device=torch.device("cpu"), compute_dtype=torch.float32)
    with progress_bar(len(quantizable(model, recipe)), "quantizing", "layer") as bar:
        quantize_layers(model, recipe, init=init, importances=importances, on_layer=lambda: bar.update(1))
    return model


def calibrate(source: Checkpoint, recipe: Recipe, location: str, num_tokens: int) -> dict[str, Tensor]:
    """Importances of the inputs of the layers that a recipe quantises, by their names."""
    model = load_model(source, device=torch.device("cpu"), compute_dtype=torch.float32)

    def run() -> None:
        for ids_T in sample_rows(source, location, num_tokens):
            model(ids_T.unsqueeze(0))

    return input_importances(model, quantizable(model, recipe), run)
