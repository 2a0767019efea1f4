"""Scales for weights, and rounding to the levels of a codebook.

Shapes: O rows (outputs), I columns (inputs), G groups of a row, R rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cpplm.model.quantized.codebooks import Codebook
from cpplm.model.quantized.recipe import GROUP_SIZE, InitMethod, WeightFormat

TINY = 1e-8  # of a scale: a group of zeros has none
_CLIP_STEPS, _LEAST_CLIP, _REFINEMENTS = 12, 0.4, 3


def levels_table(book: Codebook, device: torch.device | None = None) -> Tensor:
    """The levels, float32."""
    return torch.tensor(book.levels, device=device)


def nearest_codes(values: Tensor, book: Codebook) -> Tensor:
    """Codes of the nearest levels, uint8, of `values` in any shape."""
    if book.unit:
        return _nearest_steps(values, book).to(torch.uint8)
    levels = levels_table(book, values.device)
    return torch.bucketize(values, (levels[1:] + levels[:-1]) / 2).to(torch.uint8)


def nearest_levels(values: Tensor, book: Codebook) -> Tensor:
    """The nearest levels themselves, in the dtype of `values`; without a gradient."""
    values = values.detach()
    if book.unit:  # arithmetic that a compiler fuses
        return (_nearest_steps(values, book) - book.zero) / book.unit
    return levels_table(book, values.device)[nearest_codes(values, book).long()].to(values.dtype)


def _nearest_steps(values: Tensor, book: Codebook) -> Tensor:
    return (values * book.unit + book.zero).round().clamp(0, len(book.levels) - 1)


def grouped(weight_OI: Tensor, group_size: int) -> Tensor:
    """A view of shape (O, G, group_size)."""
    return weight_OI.unflatten(-1, (-1, group_size))


def absmax_scales(weight_OI: Tensor, book: Codebook, group_size: int = GROUP_SIZE) -> Tensor:
    """Scales, OG, by which the largest magnitude of each group is the outermost level.

    Of a codebook that reaches further down than up the scale has the sign that brings that weight down.
    """
    groups_OGN = grouped(weight_OI, group_size)
    largest_OG = groups_OGN.gather(-1, groups_OGN.abs().argmax(-1, keepdim=True)).squeeze(-1)
    return largest_OG.abs() if book.is_symmetric else -largest_OG


def fitted_scales(
    weight_OI: Tensor, book: Codebook, group_size: int = GROUP_SIZE, importance_I: Tensor | None = None
) -> Tensor:
    """Scales, OG, of the least squared error after rounding, of those that were tried.

    Each group tries shares of its largest magnitude, then the best line through its levels, a few times.

    Args:
        weight_OI: the weights.
        book: their levels.
        group_size: inputs that share a scale.
        importance_I: weight of each input's error, as the mean square of its activation (AWQ, Lin et al.
            2023, arXiv 2306.00978, section 3); None for 1.
    """
    groups_OGN = grouped(weight_OI.float(), group_size)
    factor_GN = 1.0 if importance_I is None else grouped(importance_I.float(), group_size)
    largest_OG = absmax_scales(weight_OI.float(), book, group_size)
    best_OG, least_OG = largest_OG, torch.full_like(largest_OG, float("inf"))

    def attempt(scales_OG: Tensor) -> None:
        nonlocal best_OG, least_OG
        rounded_OGN = fake_quantize(groups_OGN, scales_OG.unsqueeze(-1), book)
        error_OG = (factor_GN * (rounded_OGN - groups_OGN).square()).sum(-1)
        best_OG = torch.where(error_OG < least_OG, scales_OG, best_OG)
        least_OG = torch.minimum(error_OG, least_OG)

    for share in torch.linspace(1.0, _LEAST_CLIP, _CLIP_STEPS).tolist():
        attempt(largest_OG * share)
    for _ in range(_REFINEMENTS):
        levels_OGN = nearest_levels(groups_OGN / nonzero_scales(best_OG).unsqueeze(-1), book)
        norm_OG = (factor_GN * levels_OGN.square()).sum(-1)
        attempt((factor_GN * levels_OGN * groups_OGN).sum(-1) / norm_OG.clamp(min=TINY))
    return best_OG


def init_scales(
    weight_OI: Tensor, weight_format: WeightFormat, method: InitMethod, importance_I: Tensor | None = None
) -> Tensor:
    """Scales, OG, by a method, before any low-rank form; with a scale per weight, of groups of 32.

    Raises:
        ValueError: "activation" without importances.
    """
    group_size = max(weight_format.group_size, GROUP_SIZE if weight_format.group_size == 1 else 1)
    book = weight_format.codebook
    if method == "activation" and importance_I is None:
        raise ValueError("scales by activations need the importance of inputs")
    if method == "absmax":
        scales_OG = absmax_scales(weight_OI, book, group_size)
    else:
        scales_OG = fitted_scales(weight_OI, book, group_size, importance_I)
    repeats = group_size // weight_format.group_size
    return scales_OG.float().repeat_interleave(repeats, dim=-1)


def low_rank(scales_OG: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Left vectors OR and right vectors RG of unit length, and magnitudes R: the nearest product."""
    left_OK, magnitude_K, right_KG = torch.linalg.svd(scales_OG.float(), full_matrices=False)
    return left_OK[:, :rank].contiguous(), right_KG[:rank].contiguous(), magnitude_K[:rank].clone()


def nonzero_scales(scales: Tensor) -> Tensor:
    """Scales by which one may divide: those of groups of zeros become tiny."""
    return torch.where(scales.abs() < TINY, torch.full_like(scales, TINY), scales)


def fake_quantize(weight: Tensor, scales: Tensor, book: Codebook) -> Tensor:
    """`levels * scales` nearest to the weights, with the gradients of LSQ (Esser et al. 2019, arXiv
    1902.08153, equation 3): straight through for weights within the levels' range, none outside it.

    Args:
        weight: any shape.
        scales: broadcasts to it; gets the gradient of rounding errors within, and of the outermost levels.
        book: the levels.
    """
    scales = nonzero_scales(scales)
    inside = (weight / scales).clamp(book.levels[0], book.levels[-1])
    return (nearest_levels(inside, book) + (inside - inside.detach())) * scales  # exactly the level, forward


def to_half(scales: Tensor) -> Tensor:
    """Scales as a packed file stores them, rounded to float16, with the gradient of the identity."""
    return scales + (scales.detach().half().float() - scales).detach()
