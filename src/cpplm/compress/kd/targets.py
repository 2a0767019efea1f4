"""The likeliest tokens of a teacher in each row, which are all that a cache holds of its distributions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cpplm.compress.kd.sparse_head import OutputHead, capped_logits, logit_chunks, logsumexp_inplace


class TeacherTargets(NamedTuple):
    """A teacher's distribution in N rows, without all of it.

    Attributes:
        topk_ids_NK: its likeliest tokens, the first one first, int64.
        topk_logprobs_NK: their log-probabilities over the whole vocabulary, at temperature 1, float32.
        tail_logprob_N: the log of what the others have together; -inf where there is none.
        negative_ids_NR: tokens drawn uniformly from all, int64; None if none were.
    """

    topk_ids_NK: Tensor
    topk_logprobs_NK: Tensor
    tail_logprob_N: Tensor
    negative_ids_NR: Tensor | None = None


@torch.no_grad()
def teacher_targets(teacher: OutputHead, topk: int) -> TeacherTargets:
    """The likeliest `topk` tokens of each row, without ever holding the logits of all rows."""
    rows, device = len(teacher.hidden_NC), teacher.hidden_NC.device
    ids_NK = torch.empty(rows, topk, dtype=torch.int64, device=device)
    logprobs_NK = torch.empty(rows, topk, dtype=torch.float32, device=device)
    tail_N = torch.empty(rows, dtype=torch.float32, device=device)
    for chunk in logit_chunks(teacher):
        logits_RU = capped_logits(teacher, chunk)
        top_RK, ids_NK[chunk] = logits_RU.topk(topk, dim=1)
        rest_R = logsumexp_inplace(logits_RU.scatter_(1, ids_NK[chunk], -torch.inf))
        total_R = torch.logaddexp(top_RK.logsumexp(1), rest_R)
        logprobs_NK[chunk], tail_N[chunk] = top_RK - total_R[:, None], rest_R - total_R
    if topk == teacher.vocab_size:
        tail_N.fill_(-torch.inf)
    return TeacherTargets(ids_NK, logprobs_NK, tail_N)
