"""Layers that every part of the model is made of.

Shapes: B batch, T tokens, C model_dim, H heads, D head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.model.kernels.small_batch_linear import rms_norm, supports


class Linear(nn.Linear):
    """A bias-free matrix product in the dtype of its input."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return F.linear(x, self.weight.to(x.dtype))


def norm(x: Tensor) -> Tensor:
    """RMSNorm over the last dimension, without weights (Zhang and Sennrich 2019)."""
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and supports(x):
        return rms_norm(x)
    return F.rms_norm(x, (x.size(-1),))


Angles = tuple[Tensor, Tensor]
"""Cosines and sines, each of shape (T, D / 2) or (B, 1, T, D / 2), float32."""


def rotary_angles(positions: Tensor, head_dim: int, base: float) -> Angles:
    """Angles of positions, float32, of shape T or, where rows differ, BT."""
    if torch.compiler.is_compiling():
        return _opaque_cos_and_sin(positions, head_dim, base)
    return _cos_and_sin(positions, head_dim, base)


def _cos_and_sin(positions: Tensor, head_dim: int, base: float) -> Angles:
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.unsqueeze(-1) * base**-exponents
    if positions.dim() == 2:
        angles = angles.unsqueeze(1)
    return angles.cos(), angles.sin()


@torch.library.custom_op("cpplm::rotary_angles", mutates_args=())
def _opaque_cos_and_sin(positions: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Computed once, where a compiled graph would compute it for every head of every layer."""
    return _cos_and_sin(positions, head_dim, base)


_opaque_cos_and_sin.register_fake(_cos_and_sin)


def rotate(x_BHTD: Tensor, angles: Angles) -> Tensor:
    """Turn pairs (i, i + D/2) by the position's angles (RoFormer, Su et al. 2021, section 3.2)."""
    cos, sin = angles
    first, second = x_BHTD.to(torch.promote_types(x_BHTD.dtype, cos.dtype)).chunk(2, dim=-1)
    turned = torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)
    return turned.to(x_BHTD.dtype)


class SwiGLU(nn.Module):
    """Two matrices around a product of one hidden layer with the SiLU of another (Shazeer 2020, arXiv
    2002.05202, equation 6)."""

    def __init__(self, model_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate = Linear(model_dim, hidden_dim)
        self.up = Linear(model_dim, hidden_dim)
        self.down = Linear(hidden_dim, model_dim)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """BTC to BTC, each token alone."""
        return self.down(F.silu(self.gate(x_BTC)) * self.up(x_BTC))


class MLP(nn.Module):
    """Two matrices around a squared ReLU (Primer, So et al. 2021)."""

    def __init__(self, model_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.up = Linear(model_dim, hidden_dim)
        self.down = Linear(hidden_dim, model_dim)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """BTC to BTC, each token alone."""
        return self.down(F.relu(self.up(x_BTC)).square())


def within_document(rows_BTX: Tensor, documents_BT: Tensor | None, distance: int) -> Tensor:
    """Rows of the tokens `distance` places before, but zero where such a token is of another document."""
    if documents_BT is None or distance == 0:
        return rows_BTX
    earlier_BT = F.pad(documents_BT, (distance, 0), value=-1)[:, : documents_BT.size(1)]
    return rows_BTX * (earlier_BT == documents_BT).unsqueeze(-1)
