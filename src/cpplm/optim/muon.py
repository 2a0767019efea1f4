"""Muon for matrices and AdamW for everything else, as one optimizer.

Muon (Jordan et al. 2024): momentum, then the nearest orthogonal matrix by Polar Express iterations (Amsel et
al. 2025, arXiv 2505.16932), so that every singular direction of a weight learns at one rate. Weight decay
is cautious (arXiv 2510.12402): it acts only where it does not work against the update.
AdamW (Loshchilov and Hutter 2019) without decay for embedding, head and scalars.

State is addressed by parameter name, so that a checkpoint can be read without the optimizer's history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Five steps for singular values down to about 1e-3, safety factor 2 % (arXiv 2505.16932, appendix).
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def orthogonalize(matrices: Tensor) -> Tensor:
    """The orthogonal polar factor, approximately: singular values near 1, singular vectors kept.

    Args:
        matrices: shape (..., rows, columns). bfloat16 is enough; float32 where it is faster.
    """
    wide = matrices.size(-2) <= matrices.size(-1)
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x if wide else x.mT


@dataclass(frozen=True)
class Group:
    """Parameters that share their rates. `muon` says by which of the two rules they learn."""

    names: tuple[str, ...]
    muon: bool
    learning_rate: float
    beta1: float = 0.95
    """Momentum (Muon) or decay of the first moment (AdamW)."""
    beta2: float = 0.95
    """Decay of the second moment (AdamW only)."""
    weight_decay: float = 0.0
    """Per step and unit of learning rate (Muon only)."""


class MuonAdamW(torch.optim.Optimizer):
    """One optimizer over named parameters.

    Schedules set `lr_multiplier`, `weight_decay_multiplier` and `muon_momentum` (None: each group's own)
    between steps.
    """

    def __init__(
        self, model: nn.Module, groups: Iterable[Group], *, product_dtype: torch.dtype = torch.float32
    ) -> None:
        """Every parameter of `model` must be in exactly one group.

        Args:
            model: whose named parameters are trained.
            groups: what learns how.
            product_dtype: of Muon's matrix products; bfloat16 suffices where the hardware has it.
        """
        parameters = dict(model.named_parameters())
        groups = list(groups)
        named = [name for group in groups for name in group.names]
        if sorted(named) != sorted(parameters):
            raise ValueError(f"groups must name each parameter once: {set(named) ^ set(parameters)}")
        super().__init__(
            [{"params": [parameters[name] for name in group.names], "group": group} for group in groups], {}
        )
        self._parameters = parameters
        self._product_dtype = product_dtype
        self.lr_multiplier = 1.0
        self.weight_decay_multiplier = 1.0
        self.muon_momentum: float | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        if closure is not None:
            raise ValueError("closures are not supported")
        for entry in self.param_groups:
            group: Group = entry["group"]
            parameters = [parameter for parameter in entry["params"] if parameter.grad is not None]
            if group.muon:
                by_shape: dict[torch.Size, list[Tensor]] = {}
                for parameter in parameters:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
                for alike in by_shape.values():
                    self._muon_step(alike, group)
            else:
                for parameter in parameters:
                    self._adamw_step(parameter, group)

    def _muon_step(self, parameters: list[Tensor], group: Group) -> None:
        """Matrices of one shape at once: few large products instead of many small ones."""
        beta = group.beta1 if self.muon_momentum is None else self.muon_momentum
        updates = []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            gradient = parameter.grad
            assert gradient is not None  # noqa: S101  (step() filtered)
            state["momentum"].lerp_(gradient, 1 - beta)
            updates.append(torch.lerp(gradient, state["momentum"], beta))  # Nesterov
        directions = orthogonalize(torch.stack(updates).to(self._product_dtype)).to(parameters[0].dtype)
        rows, columns = parameters[0].shape
        rate = group.learning_rate * self.lr_multiplier * max(1.0, rows / columns) ** 0.5
        decay = group.weight_decay * self.weight_decay_multiplier * rate
        for parameter, direction in zip(parameters, directions, strict=True):
            if decay:
                parameter.sub_(decay * parameter * (direction * parameter > 0))
            parameter.sub_(direction, alpha=rate)

    def _adamw_step(self, parameter: Tensor, group: Group) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["first_moment"] = torch.zeros_like(parameter)
            state["second_moment"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None  # noqa: S101  (step() filtered)
        state["step"] += 1
        count = int(state["step"])
        state["first_moment"].lerp_(gradient, 1 - group.beta1)
        state["second_moment"].lerp_(gradient.square(), 1 - group.beta2)
        first = state["first_moment"] / (1 - group.beta1**count)
        second = state["second_moment"] / (1 - group.beta2**count)
        parameter.addcdiv_(first, second.sqrt().add_(1e-10), value=-group.learning_rate * self.lr_multiplier)

    def named_state(self) -> dict[str, Tensor]:
        """All state tensors as "parameter name/state name"."""
        return {
            f"{name}/{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self.state[parameter].items()
        }

    def load_named_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `named_state` gave; the next step is then the one that would have followed.

        Raises:
            ValueError: tensors of only some of the parameters, or of others.
        """
        self.state.clear()
        if tensors and {key.rpartition("/")[0] for key in tensors} != set(self._parameters):
            raise ValueError("the optimizer state is not that of these parameters")
        for key, value in tensors.items():
            name, _, kind = key.rpartition("/")
            parameter = self._parameters[name]
            self.state[parameter][kind] = (
                value.clone() if kind == "step" else value.to(parameter.device, copy=True)
            )
