"""The arithmetic of one update, on plain tensors: no schedules, no state of its own, no ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adamw import adamw

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

    Polar Express (Amsel et al. 2025, arXiv 2505.16932): x becomes a x + (b g + c g^2) x with g = x x^T, five
    times. Tall matrices multiply from the right instead, so that g is always the smaller square.

    Args:
        matrices: shape (..., rows, columns). bfloat16 is enough; float32 where it is faster.
    """
    rows, columns = matrices.shape[-2:]
    x = matrices.reshape(-1, rows, columns)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT if rows <= columns else x.mT @ x
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # one pass: sums ride on the products
        x = torch.baddbmm(x, factor, x, beta=a) if rows <= columns else torch.baddbmm(x, x, factor, beta=a)
    return x.view(matrices.shape)


def normalize_variance(directions: Tensor, second_moment: Tensor, beta2: float) -> Tensor:
    """Each row (of wide matrices: column) over the root of its running mean square (NorMuon, Li et al. 2025,
    arXiv 2510.05491, algorithm 1), then the whole scaled back to the Frobenius norm that it came with.

    The paper always takes rows and a fixed norm. Here the longer side has one value per line, and the norm is
    kept, so that a learning rate means the same with and without.

    Args:
        directions: shape (count, rows, columns).
        second_moment: as `variance_like` gives it; updated in place.
        beta2: its decay per step. It needs no bias correction: the rescaling divides any common factor out.
    """
    dim = _reduced(directions)
    mean_square = directions.norm(dim=dim, keepdim=True).square() / directions.size(dim)
    second_moment.lerp_(mean_square, 1 - beta2)
    inverse = second_moment.clamp_min(1e-10).reciprocal()  # the square of each line's factor
    before = mean_square.sum(dim=(-2, -1), keepdim=True)
    after = (mean_square * inverse).sum(dim=(-2, -1), keepdim=True)
    return directions * (inverse * before / after.clamp_min(1e-10)).sqrt()


def variance_like(matrix: Tensor) -> Tensor:
    """Zeros for NorMuon's second moment of one matrix: shape (rows, 1), of a wide one (1, columns)."""
    return torch.zeros_like(matrix.narrow(_reduced(matrix), 0, 1), memory_format=torch.contiguous_format)


def _reduced(matrices: Tensor) -> int:
    """The dimension along which squares are averaged: the shorter one."""
    return -1 if matrices.size(-2) >= matrices.size(-1) else -2


def cautious_step_(
    parameters: tuple[Tensor, ...], directions: tuple[Tensor, ...], *, rate: float, decay: float
) -> None:
    """Against each direction by `rate`, and towards 0 by the share `decay` wherever both have the same sign.

    Cautious weight decay (arXiv 2510.12402): decay never works against the update. A GPU takes all parameters
    at once.
    """
    if decay:
        together = torch._foreach_mul(directions, parameters)
        torch._foreach_sign_(together)
        torch._foreach_clamp_min_(together, 0.0)
        torch._foreach_addcmul_(parameters, parameters, together, value=-decay)
    torch._foreach_add_(parameters, directions, alpha=-rate)


def adamw_(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    *,
    rate: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> None:
    """One step of AdamW (Loshchilov and Hutter 2019, algorithm 2) in place, in one pass over memory.

    Args:
        parameter: any shape.
        gradient: as `parameter`.
        state: "first_moment" and "second_moment" as `parameter`, and "step", a float32 scalar beside it.
        rate: learning rate.
        beta1, beta2: decay of the two moments.
        weight_decay: per step and unit of rate.
    """
    if gradient.stride() != parameter.stride():  # torch's fused kernel walks memory and looks at no strides
        gradient = torch.empty_like(parameter).copy_(gradient)
    adamw(
        [parameter],
        [gradient],
        [state["first_moment"]],
        [state["second_moment"]],
        [],
        [state["step"]],
        fused=True,
        amsgrad=False,
        maximize=False,
        beta1=beta1,
        beta2=beta2,
        lr=rate,
        weight_decay=weight_decay,
        eps=1e-10,
    )


def adamw_rows_(
    parameter: Tensor, rows: Tensor, gradient: Tensor, state: dict[str, Tensor], **rates: float
) -> None:
    """`adamw_` on some rows; all else, moments included, stays untouched.

    As torch.optim.SparseAdam: the count of steps is that of the whole table. Weight decay is lazy too.

    Args:
        parameter: shape (rows, ...).
        rows: which of them have a gradient, each once.
        gradient: shape (len(rows), ...).
        state, **rates: as for `adamw_`.
    """
    tables = [parameter, state["first_moment"], state["second_moment"]]
    touched, first, second = (table.index_select(0, rows) for table in tables)
    moments = {"first_moment": first, "second_moment": second, "step": state["step"]}
    adamw_(touched, gradient, moments, **rates)
    for table, values in zip(tables, (touched, first, second), strict=True):
        table.index_copy_(0, rows, values)
