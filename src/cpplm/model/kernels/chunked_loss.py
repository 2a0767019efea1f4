"""Cross-entropy over a large vocabulary without ever holding all logits.

A chunk of rows at a time: logits, their softmax and their gradient are computed, multiplied into the
gradients of hidden states and weight, and forgotten. For the mean the gradients are computed in the forward
pass, so that logits are computed once (as in Liger, Hsu et al. 2024, arXiv 2410.10989, section 3.2); for
losses of each row, whose upstream gradient comes later, they are computed in the backward pass.

The cap bounds every logit, so exp cannot overflow float32 and no maximum is taken out first; without a cap
(0) the row's largest product is taken out. The gradient in the product z = h W^T of row n is

    (p - onehot) * (1 - tanh(z / cap)^2),   p = softmax(cap * tanh(z / cap)),

and without a cap p - onehot, p = softmax(z).

The operator is opaque to torch.compile, whatever the number of chunks; only its elementwise part is compiled.
Forward and backward of 4096 rows, width 256, vocabulary 8192, on one thread of an AMD EPYC, torch 2.13,
2026-11-21: 0.74 s in float32 and 0.45 s in bfloat16, against 0.96 s and 0.57 s of compiled native logits. A
loop that the compiler unrolls was at best 10 percent faster, and took up to three times as long to compile.
Of 65,536 rows and a vocabulary of 8,192 it holds 1/24.6 of the memory that all logits take (docs/figures.md).

Shapes: N rows, C width, V vocabulary with its padding, U without (the rows of the weight that count), M rows
of a chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cpplm.model.kernels.registry import accum_dtype
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

Reduction = Literal["mean", "none"]
MAX_SOFTCAP = 60.0  # e^60 times any vocabulary fits float32
# Rows of a chunk. On CPUs 128 to 512 differ by less than the noise; GPUs want larger matrix products.
_CHUNK_ROWS = {"cpu": 256}
_CHUNK_ROWS_ELSEWHERE = 2048


class LossOptions(NamedTuple):
    """What a loss is besides its tensors; see `linear_cross_entropy`."""

    vocab_size: int
    softcap: float
    reduction: Reduction


def chunk_rows(device_type: str) -> int:
    """Rows of logits that are there at once on a device of this type, as torch names it."""
    return _CHUNK_ROWS.get(device_type, _CHUNK_ROWS_ELSEWHERE)


def chunked_loss(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, options: LossOptions) -> Tensor:
    """Compute `linear_cross_entropy` on any device, with a softcap up to 60 or none (0)."""
    vocab_size, softcap, reduction = options
    fused = torch.compiler.is_compiling()
    if reduction != "mean":
        return _each_loss(hidden_NC, weight_VC, targets_N, vocab_size, softcap, fused)
    gradients = torch.is_grad_enabled() and (hidden_NC.requires_grad or weight_VC.requires_grad)
    frozen = not weight_VC.requires_grad
    return _mean_loss(hidden_NC, weight_VC, targets_N, vocab_size, softcap, gradients, fused, frozen)[0]


# Custom operators, no torch.autograd.Function: a graph that has one is not kept in torch's cache on disk.


@torch.library.custom_op("cpplm::chunked_mean_loss", mutates_args=())
def _mean_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, softcap: float,
    gradients: bool, fused: bool, frozen: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss; for the backward pass, which only scales them: the gradients of the sum, how many it has.

    Of a `frozen` weight there is none.
    """
    counted = (targets != IGNORE_INDEX).to(accum_dtype(hidden.dtype))
    count = counted.sum().clamp(min=1)
    losses, of_hidden, of_weight = _chunks(
        hidden, weight, targets, counted, vocab_size, softcap, gradients, fused, frozen
    )
    return losses.sum() / count, of_hidden, of_weight, count


@_mean_loss.register_fake
def _(hidden, weight, targets, vocab_size, softcap, gradients, fused, frozen=False):  # type: ignore[no-untyped-def]
    del targets, vocab_size, softcap, fused
    losses, of_hidden, of_weight = _results(hidden, weight, gradients, frozen=frozen)
    return losses.new_empty(()), of_hidden, of_weight.to(weight.dtype), losses.new_empty(())


def _remember_gradients(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    del inputs
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _scale_gradients(ctx, upstream, *_):  # type: ignore[no-untyped-def]
    of_hidden, of_weight, count = ctx.saved_tensors
    factor = upstream / count
    return of_hidden * factor, of_weight * factor if of_weight.numel() else None, *[None] * 6


_mean_loss.register_autograd(_scale_gradients, setup_context=_remember_gradients)


@torch.library.custom_op("cpplm::chunked_each_loss", mutates_args=())
def _each_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, softcap: float, fused: bool
) -> Tensor:
    """Losses (N). Their gradients are made in the backward pass, weighted by what comes from above."""
    nothing = hidden.new_empty(0, dtype=accum_dtype(hidden.dtype))
    return _chunks(hidden, weight, targets, nothing, vocab_size, softcap, False, fused)[0]


@_each_loss.register_fake
def _(hidden, weight, targets, vocab_size, softcap, fused):  # type: ignore[no-untyped-def]
    del targets, vocab_size, softcap, fused
    return _results(hidden, weight, False)[0]


def _remember_inputs(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    del output
    hidden, weight, targets, *ctx.settings = inputs
    ctx.save_for_backward(hidden, weight, targets)


def _autograd_backward(ctx, upstream):  # type: ignore[no-untyped-def]
    hidden, weight, targets = ctx.saved_tensors
    scale = torch.where(targets != IGNORE_INDEX, upstream, 0.0)
    return *_gradients(hidden, weight, targets, scale, *ctx.settings), *[None] * 4


_each_loss.register_autograd(_autograd_backward, setup_context=_remember_inputs)


@torch.library.custom_op("cpplm::chunked_each_loss_backward", mutates_args=())
def _gradients(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor,
    vocab_size: int,
    softcap: float,
    fused: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of sum(scale * losses)."""
    return _chunks(hidden, weight, targets, scale, vocab_size, softcap, True, fused)[1:]


@_gradients.register_fake
def _(hidden, weight, targets, scale, vocab_size, softcap, fused):  # type: ignore[no-untyped-def]
    del targets, scale, vocab_size, softcap, fused
    return torch.empty_like(hidden), torch.empty_like(weight)


def _chunks(
    hidden: Tensor, weight: Tensor, targets: Tensor, scale: Tensor, vocab_size: int, softcap: float,
    gradients: bool, fused: bool, frozen: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Losses (N), and the gradients of sum(scale * losses), empty unless `gradients`, of the weight also if
    that is `frozen`.

    `fused` has the elementwise part compiled, for calls out of a compiled graph.
    """
    losses, of_hidden, of_weight = _results(hidden, weight, gradients, frozen=frozen)
    of_weight.zero_()
    used_weight = weight[:vocab_size].to(hidden.dtype)
    differentiate = _compiled_softmax_gradient() if fused and gradients else _softmax_gradient
    rows = chunk_rows(hidden.device.type)
    for chunk in (slice(first, first + rows) for first in range(0, hidden.size(0), rows)):
        counted_M = targets[chunk] != IGNORE_INDEX
        target_M1 = targets[chunk].clamp(min=0).unsqueeze(1)
        product_MU = hidden[chunk] @ used_weight.T
        own_M1, slope_M1 = _target_exponents(product_MU, target_M1, softcap)
        if not gradients:
            total_M1 = _sum_of_exponentials(product_MU, softcap).unsqueeze(1)
        else:
            # The target's own entry is written after the rest, so that p - 1 is rounded once.
            scale_M1 = scale[chunk].unsqueeze(1)
            total_M1, of_product_MU = differentiate(product_MU, scale_M1, softcap)
            excess_M1 = own_M1.exp() / total_M1 - 1.0
            of_target_M1 = scale_M1 * excess_M1 * slope_M1
            of_product_MU.scatter_(1, target_M1, of_target_M1.to(of_product_MU.dtype))
            torch.mm(of_product_MU, used_weight, out=of_hidden[chunk])
            if not frozen:
                accumulate(of_weight[:vocab_size], of_product_MU.T, hidden[chunk])
        losses[chunk] = torch.where(counted_M, (total_M1.log() - own_M1).squeeze(1), 0.0)
    return losses, of_hidden, of_weight.to(weight.dtype)


def _target_exponents(product_MU: Tensor, target_M1: Tensor, softcap: float) -> tuple[Tensor, Tensor | float]:
    """The targets' logits, less the row's largest without a cap, M1, and the slope of the cap there."""
    own_M1 = product_MU.gather(1, target_M1).to(accum_dtype(product_MU.dtype))
    if not softcap:
        return own_M1 - product_MU.amax(1, keepdim=True), 1.0
    capped_M1 = (own_M1 / softcap).tanh_()
    return softcap * capped_M1, 1.0 - capped_M1.square()


def _softmax_gradient(product_MU: Tensor, scale_M1: Tensor, softcap: float) -> tuple[Tensor, Tensor]:
    """Sums of exp(logits), M1, and scale * p * (1 - tanh^2) in the dtype of the product, MU.

    Without a cap, sums of exp(logits - the row's largest), and scale * p.
    """
    if not softcap:
        weights_MU = _without_largest(product_MU).exp_()
        total_M1 = weights_MU.sum(1, keepdim=True)
        return total_M1, weights_MU.mul_(scale_M1 / total_M1).to(product_MU.dtype)
    capped_MU = (product_MU.to(accum_dtype(product_MU.dtype)) * (1.0 / softcap)).tanh_()
    weights_MU = (capped_MU * softcap).exp_()
    total_M1 = weights_MU.sum(1, keepdim=True)
    weights_MU.mul_(scale_M1 / total_M1)
    weights_MU.addcmul_(weights_MU, capped_MU.square_(), value=-1.0)
    return total_M1, weights_MU.to(product_MU.dtype)


@functools.cache
def _compiled_softmax_gradient() -> Callable[..., Any]:
    """One kernel instead of seven, for all shapes; made when needed: the compiler takes seconds to import."""
    return torch.compile(_softmax_gradient, dynamic=True)


def _without_largest(product_MU: Tensor) -> Tensor:
    return product_MU.to(accum_dtype(product_MU.dtype)) - product_MU.amax(1, keepdim=True)


def _sum_of_exponentials(product_MU: Tensor, softcap: float) -> Tensor:
    if not softcap:
        return _without_largest(product_MU).exp_().sum(1)
    capped_MU = (product_MU.to(accum_dtype(product_MU.dtype)) * (1.0 / softcap)).tanh_()
    return capped_MU.mul_(softcap).exp_().sum(1)


def accumulate(sum_UC: Tensor, left_UM: Tensor, right_MC: Tensor) -> None:
    """Add a matrix product; the sum is float32 or better, the product in the dtype of its factors."""
    if sum_UC.dtype == right_MC.dtype:
        sum_UC.addmm_(left_UM, right_MC)
    else:
        sum_UC += left_UM @ right_MC


def _results(
    hidden: Tensor, weight: Tensor, gradients: bool, *, frozen: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Room for losses, gradient of hidden states, gradient of the weight."""
    losses = hidden.new_empty(hidden.size(0), dtype=accum_dtype(hidden.dtype))
    if not gradients:
        return losses, hidden.new_empty(0), weight.new_empty(0)
    of_weight = torch.empty(
        0 if frozen else weight.shape, dtype=accum_dtype(weight.dtype), device=weight.device
    )
    return losses, hidden.new_empty(hidden.shape), of_weight
