"""Matrix products in 8 and 4 bits.

FP8 comes from torchao (`pip install 'cpplm[cuda]'`), which swaps the linear layers of the blocks; the weights
stay the float32 parameters that they were, under the names that they had, and are scaled and rounded before
each product. Embedding and output head are left alone. On GPUs none of this has been seen to run here; the
emulation, which rounds the same way and multiplies in the input's dtype, has.

NVFP4 comes from Transformer Engine (arXiv 2509.25149), whose linear layers take the place of ours and keep
their parameters. It was written from its documentation and has not been seen to run: no Blackwell GPU was at
hand.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cpplm.core.errors import UserError

Recipe = Literal["tensorwise", "rowwise"]
FP8_CAPABILITY = (8, 9)  # Ada; https://docs.nvidia.com/cuda/cublas, section on 8-bit floating point
NVFP4_CAPABILITY = (10, 0)  # Blackwell; https://nvidia.github.io/TransformerEngine/support_matrix.html
SIDE_MULTIPLE = 16  # of both sides of a matrix: what 8-bit tensor cores take


def convert_to_fp8(model: nn.Module, recipe: Recipe, *, emulate: bool = False) -> list[str]:
    """Have the linear layers inside `model.blocks` multiply in FP8 from now on, in place.

    Layers with a side that is no multiple of 16 stay as they are. Parameters are the same objects as before,
    so an optimizer may be made before or after, and checkpoints do not change.

    Args:
        model: a `Transformer`.
        recipe: one scale per tensor (faster) or one per row (more exact; Rowwise of torchao).
        emulate: round as FP8 does but multiply in the input's dtype: slow, anywhere.

    Returns:
        Names of the converted layers.

    Raises:
        UserError: torchao or a GPU that can do this is missing, or no layer could be converted.
    """
    require_fp8(emulate=emulate)
    try:
        float8 = importlib.import_module("torchao.float8")
    except ImportError as error:
        raise UserError(
            f"torchao does not load: {error}", fix="pip install --upgrade 'cpplm[cuda]'"
        ) from error
    config = replace(float8.Float8LinearConfig.from_recipe_name(recipe), emulate=emulate)
    layers = _convertible(model)
    if not layers:
        raise UserError(
            "FP8 found no linear layer in the blocks whose sides are multiples of 16",
            fix="Leave out --fp8, or make the model wider.",
        )
    float8.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda module, name: name in layers
    )
    return list(layers)


def _convertible(model: nn.Module) -> dict[str, nn.Linear]:
    return {
        name: module
        for name, module in model.named_modules()
        if name.startswith("blocks.")
        and isinstance(module, nn.Linear)
        and module.bias is None
        and module.in_features % SIDE_MULTIPLE == 0
        and module.out_features % SIDE_MULTIPLE == 0
    }


def require_fp8(*, emulate: bool = False) -> None:
    """Find out before anything is built. The emulation needs the package only.

    Raises:
        UserError: it names everything that is missing.
    """
    if missing := _missing_torchao() if emulate else missing_for_fp8():
        raise UserError(
            f"FP8 needs {' and '.join(missing)}",
            fix="Leave out --fp8, or fix that (pip install 'cpplm[cuda]' brings torchao).",
        )


def missing_for_fp8() -> list[str]:
    """The things that this machine lacks for FP8, in words."""
    return _missing_torchao() + _missing_gpu(FP8_CAPABILITY, "Ada, Hopper, Blackwell")


def _missing_torchao() -> list[str]:
    """Looked for and not imported, which takes seconds and prints about each part that does not load."""
    return [] if importlib.util.find_spec("torchao") else ["the package torchao"]


def require_nvfp4() -> Any:
    """The NVFP4 recipe of Transformer Engine (`NVFP4BlockScaling`), from its version 2.9 on.

    Raises:
        UserError: it names everything that is missing.
    """
    missing = _missing_gpu(NVFP4_CAPABILITY, "Blackwell")
    recipe = None
    try:
        recipe = getattr(
            importlib.import_module("transformer_engine.common.recipe"), "NVFP4BlockScaling", None
        )
        engine = importlib.import_module("transformer_engine.pytorch")
        if recipe is None or not hasattr(engine, "autocast"):
            missing.append("Transformer Engine 2.9 or newer")
    except Exception as error:  # its native part raises whatever the loader says
        missing.append(f"the package transformer_engine ({type(error).__name__}: {error})")
    if missing:
        raise UserError(f"NVFP4 needs {' and '.join(missing)}", fix="Use --fp8 or neither.")
    return recipe


def convert_to_nvfp4(model: nn.Module) -> list[str]:
    """Have the linear layers inside `model.blocks` multiply in NVFP4 from now on, in place.

    Layers with a side that is no multiple of 16 stay as they are. Parameters are the same objects as before;
    the layers' own `_extra_state` is empty for this recipe, and not part of our checkpoints.

    Returns:
        Names of the converted layers.

    Raises:
        UserError: Transformer Engine or a GPU that can do this is missing.
    """
    recipe = require_nvfp4()()
    engine = importlib.import_module("transformer_engine.pytorch")
    layers = _convertible(model)
    for name, linear in layers.items():
        model.set_submodule(name, _Nvfp4Linear(linear, engine, recipe))
    return list(layers)


class _Nvfp4Linear(nn.Module):
    """One linear layer that Transformer Engine computes, with the float32 weight of the layer before it."""

    def __init__(self, linear: nn.Linear, engine: Any, recipe: Any) -> None:
        super().__init__()
        inner = engine.Linear(
            linear.in_features, linear.out_features, bias=False, params_dtype=torch.float32,
            device=linear.weight.device,
        )  # fmt: skip
        inner.weight = linear.weight
        self.weight = linear.weight
        # Outside of the modules' tree: the state dictionary has the one weight, under the name that it had.
        self._compute = (engine, recipe, inner)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features) in the dtype of the input."""
        engine, recipe, inner = self._compute
        with torch.autocast(x.device.type, dtype=x.dtype), engine.autocast(enabled=True, recipe=recipe):
            return inner(x)


def _missing_gpu(needed: tuple[int, int], generations: str) -> list[str]:
    here = "there is none here"
    if torch.cuda.is_available():
        capability = torch.cuda.get_device_capability()
        if capability >= needed:
            return []
        here = f"this one has {capability[0]}.{capability[1]}"
    return [f"a GPU of compute capability {needed[0]}.{needed[1]} or newer ({generations}), {here}"]
