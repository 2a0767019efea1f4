"""Packed models: a run's weights rounded and written as a checkpoint that every command takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from cpplm.compress.held_out_rows import held_out_rows
from cpplm.compress.settings import QuantizeSettings
from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.storage import Storage
from cpplm.model.quantized.calibration import input_importances
from cpplm.model.quantized.layers import quantizable, quantize_layers
from cpplm.model.quantized.packing import packed_tensors, quantization_record, restore_layers
from cpplm.model.quantized.recipe import InitMethod, Recipe
from cpplm.model.transformer import Transformer
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint, json_bytes
from cpplm.train.checkpoint.parent import open_parent, parent_record
from cpplm.train.checkpoint.save import write_checkpoint
from cpplm.train.checkpoint.weights import load_model, load_tensors
from cpplm.train.quantization import train_scales_alone

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
        model, recipe = restore_trained(source), record["recipe"]
    else:
        recipe, corpus = settings.recipe, settings.data_dir
        rows = held_out_rows(source, corpus, settings.num_tokens) if corpus else ()
        model = rounded_model(source, Recipe.parse(recipe), settings.init, rows)
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


def restore_trained(source: Checkpoint) -> Transformer:
    """A model as quantisation-aware training left it."""
    model = Transformer(source.config())
    try:
        restore_layers(model, load_tensors(source, "model.safetensors"), source.json(QUANTIZATION))
    except RuntimeError as error:
        raise UserError(f"{source.path()}: weights do not fit the configuration: {error}") from error
    return model


def rounded_model(
    source: Checkpoint, recipe: Recipe, init: InitMethod, rows: Iterable[Tensor] = ()
) -> Transformer:
    """The model of a checkpoint, its weights rounded to the nearest levels; see `round_layers`."""
    model = load_model(source, device=torch.device("cpu"), compute_dtype=torch.float32)
    round_layers(model, recipe, init, rows)
    return model


def round_layers(
    model: nn.Module,
    recipe: Recipe,
    init: InitMethod,
    rows: Iterable[Tensor] = (),
    *,
    freeze_codes: bool = False,
) -> None:
    """Quantise the layers of a model, in place.

    Args:
        model: called with ids, BT; of transformers see `hf.load_for_rounding`.
        recipe: formats by role.
        init: rule for the first scales.
        rows: ids of each, whose activations count for `init="activation"`.
        freeze_codes: train scales alone.

    Raises:
        UserError: the recipe does not fit.
    """
    names, importances = quantizable(model, recipe), None
    if init == "activation":
        importances = input_importances(model, names, lambda: [model(ids_T[None]) for ids_T in rows])
    with progress_bar(len(names), "quantizing", "layer") as bar:
        quantize_layers(
            model, recipe, init=init, importances=importances, freeze_codes=freeze_codes,
            on_layer=lambda: bar.update(1),
        )  # fmt: skip
    if freeze_codes:
        train_scales_alone(model)
