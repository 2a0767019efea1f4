"""Layers with quantised weights, for training: each use of `weight` gives the rounded one.

The weights that an optimizer moves are `latent_weight`; `weight` is computed from them and the scales, so
that whatever reads it (products, losses, lookups) meets the numbers that a packed file holds. With frozen
codes only the scales learn, and the latent weights are gone.

Shapes: O rows, I columns, G groups of a row, R rank of the scales, N weights that share a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.core.errors import UserError
from cpplm.model.quantized.recipe import GROUP_SIZE, InitMethod, Recipe, WeightFormat, role_of
from cpplm.model.quantized.rounding import (
    TINY,
    fake_quantize,
    grouped,
    init_scales,
    levels_table,
    low_rank,
    nearest_codes,
    to_half,
)

LATENT, CODES, SCALES = "latent_weight", "codes", "scales"
LOW_RANK = ("scale_left", "scale_right", "rank_magnitude")
"""Tensors of scales of a rank: vectors OR and RG, of length 1 at the start, and how much each counts, R."""


def plain_name(name: str) -> str:
    """The name that a parameter has in a model of plain layers, if it has one there."""
    return f"{name.removesuffix(LATENT)}weight" if name.endswith(f".{LATENT}") else name


class QuantizedLinear(nn.Linear):
    """A linear layer whose weight is rounded, with a gradient to latent weights and scales."""

    def __init__(
        self,
        weight_OI: Tensor,
        weight_format: WeightFormat,
        *,
        init: InitMethod = "mse",
        importance_I: Tensor | None = None,
        bias: nn.Parameter | None = None,
        freeze_codes: bool = False,
    ) -> None:
        """Quantise a weight.

        Args:
            weight_OI: on its device; it may be meta, for a state to be loaded.
            weight_format: how.
            init: how the first scales are found.
            importance_I: of the inputs (`calibration.input_importances`), for `init="activation"`.
            bias: of the layer, if any.
            freeze_codes: keep the first codes, and train scales alone.
        """
        nn.Module.__init__(self)  # that of nn.Linear would make a weight
        self.out_features, self.in_features = weight_OI.shape
        self.format, self._codebook = weight_format, weight_format.codebook
        self.bias = bias  # type: ignore[assignment]  # None where there is none, as in nn.Linear
        scales_OG = init_scales(weight_OI, weight_format, init, importance_I)
        if weight_format.rank:
            for name, part in zip(LOW_RANK, low_rank(scales_OG, weight_format.rank), strict=True):
                setattr(self, name, nn.Parameter(part))
        else:
            self.scales = nn.Parameter(scales_OG)
        if freeze_codes:
            groups_OGN = grouped(weight_OI, weight_format.group_size)
            codes_OGN = nearest_codes(groups_OGN / self.group_scales().unsqueeze(-1), self._codebook)
            self.register_buffer(CODES, codes_OGN.view_as(weight_OI))
        else:
            self.latent_weight = nn.Parameter(weight_OI.detach().float())

    def group_scales(self) -> Tensor:
        """The scales, OG, as the packed file's numbers give them."""
        if not self.format.rank:
            return to_half(self.scales)
        left_OR, right_RG, magnitude_R = (to_half(self.get_parameter(name)) for name in LOW_RANK)
        return ((left_OR * magnitude_R) @ right_RG).clamp(min=TINY)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The rounded weight, OI, float32."""
        scales_OG1 = self.group_scales().unsqueeze(-1)
        if hasattr(self, LATENT):
            groups_OGN = grouped(self.latent_weight, self.format.group_size)
            return fake_quantize(groups_OGN, scales_OG1, self._codebook).flatten(1)
        levels_OI = levels_table(self._codebook, scales_OG1.device)[self.get_buffer(CODES).long()]
        return (grouped(levels_OI, self.format.group_size) * scales_OG1).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features) in the dtype of the input."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class QuantizedEmbedding(nn.Embedding):
    """A table whose rows are rounded when they are looked up; its scales do not learn.

    Weights share scales in the order of memory: of narrow rows, neighbouring ones have theirs in common.
    """

    def __init__(
        self,
        weight_OI: Tensor,
        weight_format: WeightFormat,
        *,
        init: InitMethod = "mse",
        sparse: bool = False,
    ) -> None:
        """Quantise a table; see `QuantizedLinear`."""
        nn.Module.__init__(self)  # that of nn.Embedding would make a weight
        self.num_embeddings, self.embedding_dim = weight_OI.shape
        self.padding_idx = self.max_norm = None
        self.norm_type, self.scale_grad_by_freq, self.sparse = 2.0, False, sparse
        self.format, self._codebook = weight_format, weight_format.codebook
        self.latent_weight = nn.Parameter(weight_OI.detach().float())
        blocks_BN = in_blocks(weight_OI, weight_format.group_size)
        method: InitMethod = "absmax" if init == "absmax" else "mse"
        scales_B = init_scales(blocks_BN, weight_format, method).flatten().half().float()
        self.register_buffer(SCALES, scales_B)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The rounded table, OI, float32."""
        blocks_BN = in_blocks(self.latent_weight, self.format.group_size)
        rounded_BN = fake_quantize(blocks_BN, self.get_buffer(SCALES).unsqueeze(-1), self._codebook)
        return rounded_BN.flatten()[: self.latent_weight.numel()].view_as(self.latent_weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Rows of the rounded table: (...) to (..., embedding_dim), float32."""
        rows = F.embedding(ids, self.latent_weight, sparse=self.sparse)
        first = ids.unsqueeze(-1) * self.embedding_dim
        places = first + torch.arange(self.embedding_dim, device=ids.device)
        return fake_quantize(rows, self.get_buffer(SCALES)[places // self.format.group_size], self._codebook)


def moving_scales(model: nn.Module, target: str) -> dict[str, nn.Parameter]:
    """The scales of linear layers that are trained, of a rank their magnitudes, by parameter name.

    Args:
        model: with quantised layers.
        target: "mlp" for those of MLPs alone, or "all".
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and name.rpartition(".")[2] in (SCALES, "rank_magnitude")
        and (target == "all" or role_of(name.rpartition(".")[0]) == target)
        and isinstance(model.get_submodule(name.rpartition(".")[0]), QuantizedLinear)
    }


def in_blocks(weight: Tensor, group_size: int) -> Tensor:
    """The weights in the order of memory, as many in a row as share a scale; the last row filled up by 0."""
    flat = weight.flatten()
    return F.pad(flat, (0, -len(flat) % group_size)).view(-1, group_size)


def quantize_layers(
    model: nn.Module,
    recipe: Recipe,
    *,
    init: InitMethod = "mse",
    importances: Mapping[str, Tensor] | None = None,
    freeze_codes: bool = False,
    on_layer: Callable[[], object] = lambda: None,
) -> dict[str, WeightFormat]:
    """Put quantised layers in the place of those that a recipe names, in place.

    Args:
        model: with its weights, or on the meta device.
        recipe: formats by role.
        init: how the first scales are found.
        importances: of the inputs of each linear layer, by its name, for `init="activation"`; a layer
            without takes "mse".
        freeze_codes: train scales alone.
        on_layer: called after each of them.

    Returns:
        Formats by the names of the layers.

    Raises:
        UserError: a role has no layer that it fits, or a rank is above a matrix's width.
    """
    formats = quantizable(model, recipe)
    for name, weight_format in formats.items():
        module = model.get_submodule(name)
        replacement: nn.Module
        if isinstance(module, nn.Linear):
            importance_I = None if importances is None else importances.get(name)
            method: InitMethod = "mse" if init == "activation" and importance_I is None else init
            replacement = QuantizedLinear(
                module.weight.detach(), weight_format, init=method, importance_I=importance_I,
                bias=module.bias, freeze_codes=freeze_codes,
            )  # fmt: skip
        else:
            assert isinstance(module, nn.Embedding)  # noqa: S101  (that is how it was found)
            replacement = QuantizedEmbedding(
                module.weight.detach(), weight_format, init=init, sparse=module.sparse
            )
        model.set_submodule(name, replacement)
        on_layer()
    return formats


def quantizable(model: nn.Module, recipe: Recipe) -> dict[str, WeightFormat]:
    """Formats by name of the layers that a recipe quantises; too small ones are left out.

    Raises:
        UserError: a role has no layer that it fits, or a rank is above a matrix's width.
    """
    formats: dict[str, WeightFormat] = {}
    for name, module in model.named_modules():
        weight_format = recipe.format_of(name) if isinstance(module, nn.Linear | nn.Embedding) else None
        if weight_format is None:
            continue
        assert isinstance(module, nn.Linear | nn.Embedding)  # noqa: S101  (see above)
        rows, columns = module.weight.shape
        if isinstance(module, nn.Embedding):
            weight_format = WeightFormat(
                weight_format.codebook_name, max(weight_format.group_size, GROUP_SIZE)
            )
            if rows * columns >= weight_format.group_size**2:
                formats[name] = weight_format
        elif weight_format.fits(rows, columns):
            _check_rank(name, weight_format, rows, columns)
            formats[name] = weight_format
    idle = {role for role, _ in recipe.formats} - {role_of(name) for name in formats}
    if idle and not recipe.names_all:
        raise UserError(
            f"the recipe {recipe} names {min(idle)}, and no layer of the model has that role and rows of "
            "whole groups",
            fix="Leave it out, or make groups smaller.",
        )
    if not formats:
        raise UserError(f"the recipe {recipe} fits no layer of this model", fix="Make its groups smaller.")
    return formats


def _check_rank(name: str, weight_format: WeightFormat, rows: int, columns: int) -> None:
    most = min(rows, columns // weight_format.group_size)
    if weight_format.rank > most:
        raise UserError(
            f"rank {weight_format.rank} of the scales of {name}, which are {rows} x "
            f"{columns // weight_format.group_size}",
            fix=f"Use at most r{most}, or leave it out for a scale per group.",
        )
