"""Importances of the inputs of linear layers: the mean squares of their activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


@torch.no_grad()
def input_importances(model: nn.Module, names: Iterable[str], run: Callable[[], object]) -> dict[str, Tensor]:
    """Mean squares of the inputs of linear layers, float32, one for each input, by the names of the layers.

    Args:
        model: whose layers they are.
        names: of layers; those that are not linear are passed over.
        run: calls the model on texts that it is made for.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def note(name: str, inputs: Tensor) -> None:
        squares_NI = inputs.flatten(0, -2).float().square()
        sums[name] = sums.get(name, 0.0) + squares_NI.sum(0)
        counts[name] = counts.get(name, 0) + len(squares_NI)

    linear = {name: model.get_submodule(name) for name in names}
    handles = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: note(name, inputs[0]))
        for name, module in linear.items()
        if isinstance(module, nn.Linear)
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return {name: squares_I / counts[name] for name, squares_I in sums.items()}
