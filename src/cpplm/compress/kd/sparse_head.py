"""Logits of an output head where few of them are needed, and sums over all of them a few rows at a time.

    logits = softcap * tanh(hidden @ head[:vocab_size].T / softcap),   without a softcap: hidden @ head.T

Gathered weights of M candidates for each of N rows would be an [N, M, C] tensor, at a usual width more than
all logits. An embedding bag takes the weighted sum of such rows without making it, which is the gradient of
the hidden states; its own gradient by those weights are the products themselves. Of 256 rows, 192 candidates,
width 1,024 and vocabulary 151,936 that took 0.02 s of one core where chunks of gathered rows and a batched
product took 0.08 s (torch 2.13, 2026-11-25).

Shapes: N rows, C width, V vocabulary with its padding, U without, M candidates, R rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cpplm.model.kernels.chunked_loss import accumulate
from cpplm.model.kernels.registry import accum_dtype

# Bytes of one tensor of a chunk; there are two at a time in `rest_logsumexp`. GPUs want larger products.
_CHUNK_BYTES = {"cpu": 16 << 20}
_CHUNK_BYTES_ELSEWHERE = 256 << 20
# Of the head's gradient, which is summed from the candidates' shares.
_SHARE_BYTES = 4 << 20


class OutputHead(NamedTuple):
    """States before an output head, and that head: logits that are not there yet.

    Attributes:
        hidden_NC: the states.
        head_VC: the head's weight; rows from `vocab_size` on are padding.
        vocab_size: tokens.
        softcap: logits lie between this and its negative; 0 or None for no bound.
    """

    hidden_NC: Tensor
    head_VC: Tensor
    vocab_size: int
    softcap: float | None = None


def sparse_logits(head: OutputHead, ids_NM: Tensor) -> Tensor:
    """Logits of some tokens in each row, NM, in float32 or better.

    The products are in the dtype of the head. Neither [N, M, C] nor [N, V] is made, forward or backward; of a
    head that needs a gradient there is a dense one. Ids, int64, may be repeated.
    """
    products_NM: Tensor = _SparseProducts.apply(  # type: ignore[no-untyped-call]
        head.hidden_NC, head.head_VC, ids_NM
    )
    return head.softcap * torch.tanh(products_NM / head.softcap) if head.softcap else products_NM


class _SparseProducts(torch.autograd.Function):
    """The products of hidden states with rows of the head."""

    @staticmethod
    def forward(ctx: Any, hidden_NC: Tensor, head_VC: Tensor, ids_NM: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_NC, head_VC, ids_NM)
        with torch.enable_grad():
            weights_NM = torch.ones(ids_NM.shape, dtype=head_VC.dtype, device=ids_NM.device).requires_grad_()
            sums_NC = _weighted_sums(head_VC.detach(), ids_NM, weights_NM)
        [products_NM] = torch.autograd.grad(sums_NC, weights_NM, hidden_NC.to(head_VC.dtype))
        return products_NM.to(accum_dtype(head_VC.dtype))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NC, head_VC, ids_NM = ctx.saved_tensors
        of_products_NM = upstream[0].to(head_VC.dtype)
        of_hidden_NC = of_head_VC = None
        if ctx.needs_input_grad[0]:
            of_hidden_NC = _weighted_sums(head_VC, ids_NM, of_products_NM).to(hidden_NC.dtype)
        if ctx.needs_input_grad[1]:
            of_head_VC = _head_gradient(hidden_NC, head_VC, ids_NM, of_products_NM)
        return of_hidden_NC, of_head_VC, None


def _weighted_sums(head_VC: Tensor, ids_NM: Tensor, weights_NM: Tensor) -> Tensor:
    return F.embedding_bag(ids_NM, head_VC, per_sample_weights=weights_NM, mode="sum")


def _head_gradient(hidden_NC: Tensor, head_VC: Tensor, ids_NM: Tensor, of_products_NM: Tensor) -> Tensor:
    of_head_VC = torch.zeros_like(head_VC, dtype=accum_dtype(head_VC.dtype))
    hidden_NC = hidden_NC.to(of_head_VC.dtype)
    rows = max(1, _SHARE_BYTES // (ids_NM.size(1) * hidden_NC.size(1) * of_head_VC.element_size()))
    for chunk in _chunks(len(hidden_NC), rows):
        shares_RMC = of_products_NM[chunk].unsqueeze(2).to(hidden_NC.dtype) * hidden_NC[chunk].unsqueeze(1)
        of_head_VC.index_add_(0, ids_NM[chunk].flatten(), shares_RMC.flatten(0, 1))
    return of_head_VC.to(head_VC.dtype)


def rest_logsumexp(head: OutputHead, left_out_NK: Tensor | None) -> Tensor:
    """The log of the sum of exp(logits) over the vocabulary, N, without the tokens `left_out_NK`.

    Where none is left it is the least number of its dtype. Chunks of logits are there at most; they are
    computed again in the backward pass.
    """
    rest_N: Tensor = _RestLogSumExp.apply(  # type: ignore[no-untyped-call]
        head.hidden_NC, head.head_VC, left_out_NK, head.vocab_size, head.softcap
    )
    return rest_N


class _RestLogSumExp(torch.autograd.Function):
    """`rest_logsumexp`; its gradient is the softmax of what is not left out."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NC: Tensor, head_VC: Tensor, left_out_NK: Tensor | None, vocab_size: int,
        softcap: float | None,
    ) -> Tensor:  # fmt: skip
        head = OutputHead(hidden_NC, head_VC, vocab_size, softcap)
        rest_N = torch.empty(len(hidden_NC), dtype=accum_dtype(hidden_NC.dtype), device=hidden_NC.device)
        for chunk in logit_chunks(head):
            logits_RU = capped_logits(head, chunk)
            if left_out_NK is not None:
                logits_RU.scatter_(1, left_out_NK[chunk], -torch.inf)
            rest_N[chunk] = logsumexp_inplace(logits_RU)
        ctx.save_for_backward(hidden_NC, head_VC, left_out_NK, rest_N)
        ctx.vocab_size, ctx.softcap = vocab_size, softcap
        return rest_N

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NC, head_VC, left_out_NK, rest_N = ctx.saved_tensors
        head = OutputHead(hidden_NC, head_VC, ctx.vocab_size, ctx.softcap)
        gradients = HeadGradients(head, ctx.needs_input_grad[1])
        for chunk in logit_chunks(head):
            logits_RU = capped_logits(head, chunk)
            of_logits_RU = (logits_RU - rest_N[chunk, None]).exp_().mul_(upstream[0][chunk, None])
            uncap_gradient(of_logits_RU, logits_RU, ctx.softcap)
            if left_out_NK is not None:  # last, since they may have overflowed
                of_logits_RU.scatter_(1, left_out_NK[chunk], 0.0)
            gradients.add(chunk, of_logits_RU)
        return *gradients.results(), None, None, None


def logit_chunks(head: OutputHead) -> Iterator[slice]:
    """Slices of rows, so that the logits of one take few bytes."""
    bytes_of_row = head.vocab_size * accum_dtype(head.hidden_NC.dtype).itemsize
    budget = _CHUNK_BYTES.get(head.hidden_NC.device.type, _CHUNK_BYTES_ELSEWHERE)
    return _chunks(len(head.hidden_NC), max(1, budget // bytes_of_row))


def _chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(first, first + size) for first in range(0, count, size))


def capped_logits(head: OutputHead, rows: slice) -> Tensor:
    """All logits of some rows, RU, in float32 or better; a fresh tensor."""
    hidden_RC, cap = head.hidden_NC[rows], head.softcap
    product_RU = hidden_RC @ head.head_VC[: head.vocab_size].to(hidden_RC.dtype).T
    logits_RU = product_RU.to(accum_dtype(product_RU.dtype))
    return logits_RU.div_(cap).tanh_().mul_(cap) if cap else logits_RU


def uncap_gradient(of_logits_RU: Tensor, logits_RU: Tensor, softcap: float | None) -> None:
    """Turn the gradient of capped logits into that of the products, in place; the logits are used up."""
    if softcap:
        of_logits_RU.addcmul_(of_logits_RU, logits_RU.square_(), value=-1 / softcap**2)


def logsumexp_inplace(logits_RU: Tensor) -> Tensor:
    """The log of the sum of exp over each row, R; the logits are used up."""
    least = torch.finfo(logits_RU.dtype).min
    high_R1 = logits_RU.amax(1, keepdim=True).clamp(min=least)
    return (logits_RU.sub_(high_R1).exp_().sum(1).log() + high_R1[:, 0]).clamp(min=least)


class HeadGradients:
    """Gradients of hidden states and head, from those of the products, chunk after chunk."""

    def __init__(self, head: OutputHead, of_head: bool) -> None:
        """Room for them; with `of_head` also for the head's."""
        self._head = head
        self._of_hidden_NC = torch.empty_like(head.hidden_NC)
        self._of_head_VC = None
        if of_head:
            self._of_head_VC = torch.zeros_like(head.head_VC, dtype=accum_dtype(head.head_VC.dtype))

    def add(self, chunk: slice, of_products_RU: Tensor) -> None:
        """The share of a chunk of rows."""
        head, hidden_RC = self._head, self._head.hidden_NC[chunk]
        of_products_RU = of_products_RU.to(hidden_RC.dtype)
        head_UC = head.head_VC[: head.vocab_size].to(hidden_RC.dtype)
        torch.mm(of_products_RU, head_UC, out=self._of_hidden_NC[chunk])
        if self._of_head_VC is not None:
            accumulate(self._of_head_VC[: head.vocab_size], of_products_RU.T, hidden_RC)

    def results(self) -> tuple[Tensor, Tensor | None]:
        """Both, in the dtypes of what they are gradients of."""
        of_head = self._of_head_VC
        return self._of_hidden_NC, None if of_head is None else of_head.to(self._head.head_VC.dtype)
