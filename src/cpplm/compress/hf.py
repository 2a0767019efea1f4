"""Causal models of the transformers library in few bits: rounded, packed into a directory, measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.compress.held_out_rows import text_rows
from cpplm.compress.quantize import round_layers
from cpplm.compress.settings import QuantizeSettings
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.evaluate.texts import read_texts
from cpplm.export.atomic_directory import atomic_directory
from cpplm.export.hf_files import copy_companions, is_of_folder, write_weights
from cpplm.model.quantized.directory import RECORD, STEM, is_packed
from cpplm.model.quantized.packing import packed_tensors, quantization_record
from cpplm.model.quantized.recipe import Recipe
from cpplm.post_training.hf_folder import PARENT, HfFolder


class TiedHead(nn.Module):
    """An output head whose weight is that of the embedding, whatever layer that is by now."""

    def __init__(self, embedding: Callable[[], Any]) -> None:
        super().__init__()
        self._embedding = embedding

    @property
    def weight(self) -> Tensor:
        """The embedding's."""
        return self._embedding().weight

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., vocabulary) in the dtype of the input."""
        return F.linear(x, self.weight.to(x.dtype))


def open_hf(location: str) -> HfFolder:
    """The directory of hf:DIR, to be quantised.

    Raises:
        UserError: it is none, or its weights have few bits already.
    """
    source = HfFolder(location)
    if source.is_quantized:
        raise UserError(f"{source.folder} is quantised already", fix="Name the model that it was made from.")
    return source


def load_for_rounding(source: HfFolder) -> Any:
    """A model whose layers may be replaced: a head that shares the embedding's matrix looks it up there."""
    model = source.load(torch.float32).eval()
    if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
        model.set_output_embeddings(TiedHead(model.get_input_embeddings))
    return model


def quantize_hf(settings: QuantizeSettings) -> int:
    """Round a model and write it as a packed directory; returns the bytes of its weights.

    Raises:
        UserError: no such model, a recipe that does not fit it, or `out` holds something else.
    """
    source, recipe = open_hf(settings.run), Recipe.parse(settings.recipe)
    model = load_for_rounding(source)
    texts = [text.text for text in read_texts(settings.data_dir)] if settings.data_dir else []
    rows = text_rows(source.tokenizer().encode_batch, source.row_length(-1), texts, settings.num_tokens)
    round_layers(model, recipe, settings.init, rows)
    with atomic_directory(settings.out, overwrite=is_packed(settings.out), known=is_of_folder) as folder:
        write_packed(folder, source, model, settings.recipe, source.record())
    return sum(path.stat().st_size for path in settings.out.glob("*.safetensors"))


def write_packed(folder: Path, source: HfFolder, model: Any, recipe: str, parent: dict[str, Any]) -> None:
    """Fill a folder with a model of rounded layers, and what the directory that it comes from has beside."""
    storage = Storage(folder)
    write_weights(storage, packed_tensors(model, source.dtype), STEM)
    storage.write_json(RECORD, quantization_record(model, recipe, packed=True))
    storage.write("config.json", (source.folder / "config.json").read_bytes())
    storage.write_json(PARENT, parent)
    copy_companions(source.folder, folder)
