"""The divergence from a teacher over the whole vocabulary, a few rows of logits at a time.

Gradients are computed in the forward pass, as those of the mean cross-entropy are
(`cpplm.model.kernels.chunked_loss`), so that the logits of both models are computed once.

Shapes: N rows, C width (the teacher's may be another), V vocabulary with its padding, U without, R rows of a
chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cpplm.compress.kd.sparse_head import (
    HeadGradients,
    OutputHead,
    capped_logits,
    logit_chunks,
    uncap_gradient,
)
from cpplm.model.kernels.registry import accum_dtype


def full_kl(student: OutputHead, teacher: OutputHead, counted_N: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(teacher, student) at temperature T, the mean over the rows that count; 0 where there is none.

    The teacher gets no gradient.
    """
    gradients = torch.is_grad_enabled()
    loss: Tensor = _FullKL.apply(  # type: ignore[no-untyped-call]
        student.hidden_NC, student.head_VC, student, teacher, counted_N, temperature, gradients
    )
    return loss


class _FullKL(torch.autograd.Function):
    """`full_kl`; the backward pass scales gradients that are there."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NC: Tensor, head_VC: Tensor, student: OutputHead, teacher: OutputHead,
        counted_N: Tensor, temperature: float, gradients: bool,
    ) -> Tensor:  # fmt: skip
        sums = HeadGradients(student, gradients and ctx.needs_input_grad[1])
        shares_N = counted_N.to(accum_dtype(hidden_NC.dtype))
        shares_N /= shares_N.sum().clamp(min=1)
        total = shares_N.new_zeros(())
        for chunk in logit_chunks(student):
            logits_RU = capped_logits(student, chunk)
            goals_RU = (capped_logits(teacher, chunk) / temperature).log_softmax(1)
            logprobs_RU = (logits_RU / temperature).log_softmax(1)
            probs_RU = goals_RU.exp()
            divergences_R = goals_RU.sub_(logprobs_RU).mul_(probs_RU).sum(1)
            total += temperature**2 * (divergences_R * shares_N[chunk]).sum()
            if gradients:
                of_logits_RU = logprobs_RU.exp_().sub_(probs_RU).mul_(temperature * shares_N[chunk, None])
                uncap_gradient(of_logits_RU, logits_RU, student.softcap)
                sums.add(chunk, of_logits_RU)
        ctx.save_for_backward(*sums.results())
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden_NC, of_head_VC = ctx.saved_tensors
        of_head_VC = None if of_head_VC is None else of_head_VC * upstream[0].to(of_head_VC.dtype)
        return of_hidden_NC * upstream[0].to(of_hidden_NC.dtype), of_head_VC, *[None] * 5
