"""Checks of the quantised layers of a checkpoint: levels in use, scales that float16 does not hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cpplm.compress.settings import CheckSettings
from cpplm.core.errors import UserError
from cpplm.model.quantized.layers import LOW_RANK, SCALES
from cpplm.train.checkpoint.format import QUANTIZATION
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.weights import load_quantized


@dataclass(frozen=True)
class LayerCheck:
    """One layer.

    Attributes:
        name: of the layer.
        format: of its weight.
        snapped: whether float16 holds each of its scales exactly, as it does after they were frozen.
        float16_distance: largest difference of a scale from the nearest number of float16.
        overflow: scales that are no numbers in float16.
        levels_used: share of the codebook's levels that some weight has.
        outermost: share of the weights at the first or last level.
    """

    name: str
    format: str
    snapped: bool
    float16_distance: float
    overflow: int
    levels_used: float
    outermost: float


def check_run(settings: CheckSettings) -> list[LayerCheck]:
    """Every quantised layer of a run's checkpoint.

    Raises:
        UserError: it is not quantised, or damaged.
    """
    checkpoint = open_parent(settings.run)
    if QUANTIZATION not in checkpoint.files:
        raise UserError(f"{checkpoint.path()} is not quantised", fix="Use 'cpplm compress quantize' first.")
    (tensors, weights), checks = load_quantized(checkpoint), []
    for name, weight in weights.items():
        parts = [tensors[f"{name}.{part}"] for part in (SCALES, *LOW_RANK) if f"{name}.{part}" in tensors]
        scales = torch.cat([part.float().flatten() for part in parts])
        in_half = scales.half().float()
        distance = float((in_half - scales)[in_half.isfinite()].abs().max())
        levels = len(weight.format.codebook.levels)
        counts = torch.bincount(weight.codes.flatten().long(), minlength=levels)
        checks.append(
            LayerCheck(
                name, str(weight.format), distance == 0, distance, int((~in_half.isfinite()).sum()),
                float((counts > 0).float().mean()), float((counts[0] + counts[-1]) / counts.sum()),
            )
        )  # fmt: skip
    return checks


def table(checks: list[LayerCheck]) -> str:
    """The layers in aligned columns, and what they are together."""
    width = max(len(each.name) for each in checks)
    rows = [f"{'layer':{width}}  {'format':14}  float16   distance  levels used  outermost"]
    for each in checks:
        state = "overflow" if each.overflow else "yes" if each.snapped else "no"
        rows.append(
            f"{each.name:{width}}  {each.format:14}  {state:8}  {each.float16_distance:8.1e}  "
            f"{each.levels_used:11.0%}  {each.outermost:9.1%}"
        )
    snapped = sum(each.snapped for each in checks)
    return "\n".join([*rows, f"{snapped} of {len(checks)} layers have scales that float16 holds exactly"])
