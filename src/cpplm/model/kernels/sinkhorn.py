"""Doubly stochastic matrices of hyper-connections, as an operator of its own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def _normalization_steps(logits: Tensor, iterations: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each normalization: its dimension, the sums divided by, the matrix after it."""
    matrix = (logits - logits.amax(dim=(-2, -1), keepdim=True)).exp()
    for _ in range(iterations):
        for dim in (-2, -1):  # rows last: equal streams stay equal, however far it has converged
            sums = matrix.sum(dim, keepdim=True)
            matrix = matrix / sums
            yield dim, sums, matrix


@torch.library.custom_op("cpplm::sinkhorn", mutates_args=())
def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """The doubly stochastic matrix near exp(logits) (Sinkhorn and Knopp 1967).

    An operator of its own, because torch.compile takes minutes over the unrolled iterations of all layers.

    Args:
        logits: shape (..., N, N), float32.
        iterations: normalizations of columns, then rows.
    """
    *_, (_, _, matrix) = _normalization_steps(logits, iterations)
    return matrix


@torch.library.custom_op("cpplm::sinkhorn_backward", mutates_args=())
def _sinkhorn_backward(gradient: Tensor, logits: Tensor, iterations: int) -> Tensor:
    steps = list(_normalization_steps(logits, iterations))
    for dim, sums, matrix in reversed(steps):  # y = x / s: dx = (dy - sum(dy y)) / s
        gradient = (gradient - (gradient * matrix).sum(dim, keepdim=True)) / sums
    first = logits - logits.amax(dim=(-2, -1), keepdim=True)
    return gradient * first.exp()


@sinkhorn.register_fake
def _(logits: Tensor, iterations: int) -> Tensor:
    del iterations
    return torch.empty_like(logits)


@_sinkhorn_backward.register_fake
def _(gradient: Tensor, logits: Tensor, iterations: int) -> Tensor:
    del gradient, iterations
    return torch.empty_like(logits)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    del output
    logits, ctx.iterations = inputs
    ctx.save_for_backward(logits)


def _autograd_backward(ctx, gradient):  # type: ignore[no-untyped-def]
    return _sinkhorn_backward(gradient.contiguous(), *ctx.saved_tensors, ctx.iterations), None


sinkhorn.register_autograd(_autograd_backward, setup_context=_setup_context)
