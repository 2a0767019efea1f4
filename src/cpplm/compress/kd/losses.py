"""Losses of distillation, from hidden states and an output head: all logits of all rows are never there.

The student's logits of candidates are computed once for all losses that need them, so that a head that learns
gets one dense gradient from all of those.

Shapes: N rows, C width, V vocabulary with its padding, K likeliest tokens of the teacher, M candidates, R
negatives.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cpplm.compress.kd.full_kl import full_kl
from cpplm.compress.kd.settings import KDLossSettings
from cpplm.compress.kd.sparse_head import OutputHead, rest_logsumexp, sparse_logits
from cpplm.compress.kd.targets import TeacherTargets, teacher_targets
from cpplm.model.kernels.chunked_loss import MAX_SOFTCAP
from cpplm.model.kernels.loss import linear_cross_entropy
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

ANCHOR_ROWS = 16
"""Rows on which a student is held near its starting model."""


class CandidateLogits(NamedTuple):
    """The student's logits of the tokens that a `TeacherTargets` names, and of each row's label."""

    topk_NK: Tensor
    negatives_NR: Tensor
    label_N: Tensor


class DistillationLoss(NamedTuple):
    """The loss, and its parts before they are weighted, detached, by name."""

    total: Tensor
    parts: dict[str, Tensor]


def distillation_loss(
    head: OutputHead,
    labels_N: Tensor,
    teacher: TeacherTargets | OutputHead,
    settings: KDLossSettings,
    *,
    progress: float,
    anchor: tuple[Tensor, TeacherTargets] | None = None,
) -> DistillationLoss:
    """The loss of one batch: a mean over the rows whose label counts, 0 where there is none.

    Args:
        head: the student's.
        labels_N: the text's own next tokens; rows of `IGNORE_INDEX` count nothing.
        teacher: of the same rows, what a cache holds of it or, where it runs beside, all of it.
        settings: the losses and their weights, which that teacher has all for (`check_teacher`).
        progress: share of the run that is over.
        anchor: the student's states of the rows that it is held to, and the starting model's distributions
            there.
    """
    weights = {
        name: weight
        for name, weight in settings.weights(progress).items()
        if weight and (name != "anchor_weight" or anchor)
    }
    if isinstance(teacher, OutputHead):
        parts = _online_parts(head, labels_N, teacher, settings, weights)
    else:
        parts = _cached_parts(head, labels_N, teacher, settings, weights)
    if "hard_full_weight" in weights:
        parts["hard_full_weight"] = cross_entropy(head, labels_N)
    if anchor and "anchor_weight" in weights:
        parts["anchor_weight"] = anchor_kl(head._replace(hidden_NC=anchor[0]), anchor[1])
    total = 0.0 * head.hidden_NC.sum()  # a gradient of 0 if no part has one
    for name, part in parts.items():
        total = total + weights[name] * part
    return DistillationLoss(
        total, {name.removesuffix("_weight"): part.detach() for name, part in parts.items()}
    )


def _online_parts(
    head: OutputHead,
    labels_N: Tensor,
    teacher: OutputHead,
    settings: KDLossSettings,
    weights: dict[str, float],
) -> dict[str, Tensor]:
    parts, counted_N = {}, labels_N != IGNORE_INDEX
    teacher = teacher._replace(vocab_size=head.vocab_size)  # the same tokens, perhaps with other padding
    if "kd_weight" in weights:
        parts["kd_weight"] = full_kl(head, teacher, counted_N, settings.temperature)
    if "hard_top1_weight" in weights:
        top1_N = teacher_targets(teacher, 1).topk_ids_NK[:, 0]
        parts["hard_top1_weight"] = cross_entropy(head, top1_N.where(counted_N, IGNORE_INDEX))
    return parts


def _cached_parts(
    head: OutputHead,
    labels_N: Tensor,
    targets: TeacherTargets,
    settings: KDLossSettings,
    weights: dict[str, float],
) -> dict[str, Tensor]:
    parts, counted_N = {}, labels_N != IGNORE_INDEX
    logits = candidate_logits(head, labels_N.clamp(min=0), targets)
    top1_N = targets.topk_ids_NK[:, 0]
    if "kd_weight" in weights and settings.kd_loss == "topk":
        values_N = topk_kl(logits.topk_NK, targets, settings.temperature)
        parts["kd_weight"] = _mean(values_N, counted_N)
    elif "kd_weight" in weights:
        rest_N = rest_logsumexp(head, targets.topk_ids_NK)
        parts["kd_weight"] = _mean(topk_tail_kl(logits.topk_NK, rest_N, targets), counted_N)
    if "hard_top1_weight" in weights and settings.no_full_logits:
        values_N = sampled_ce(head.vocab_size, logits, targets, top1_N, logits.topk_NK[:, 0])
        parts["hard_top1_weight"] = _mean(values_N, counted_N)
    elif "hard_top1_weight" in weights:
        parts["hard_top1_weight"] = cross_entropy(head, top1_N.where(counted_N, IGNORE_INDEX))
    if "sampled_ce_weight" in weights:
        values_N = sampled_ce(head.vocab_size, logits, targets, labels_N, logits.label_N)
        parts["sampled_ce_weight"] = _mean(values_N, counted_N)
    return parts


def _mean(values_N: Tensor, counted_N: Tensor) -> Tensor:
    """Over the rows that count; 0 if none does."""
    return values_N.where(counted_N, 0.0).sum() / counted_N.sum().clamp(min=1)


def candidate_logits(head: OutputHead, labels_N: Tensor, targets: TeacherTargets) -> CandidateLogits:
    """Compute what the losses of few tokens need."""
    negatives_NR = targets.negative_ids_NR
    ids = [targets.topk_ids_NK, *([] if negatives_NR is None else [negatives_NR]), labels_N[:, None]]
    logits_NM = sparse_logits(head, torch.cat(ids, 1))
    topk = targets.topk_ids_NK.size(1)
    return CandidateLogits(logits_NM[:, :topk], logits_NM[:, topk:-1], logits_NM[:, -1])


def topk_kl(logits_NK: Tensor, targets: TeacherTargets, temperature: float = 1.0) -> Tensor:
    """T^2 KL(teacher, student) at temperature T, N, both renormalised within the teacher's likeliest."""
    goals_NK = (targets.topk_logprobs_NK.to(logits_NK.dtype) / temperature).log_softmax(1)
    logprobs_NK = (logits_NK / temperature).log_softmax(1)
    return temperature**2 * (goals_NK.exp() * (goals_NK - logprobs_NK)).sum(1)


def topk_tail_kl(logits_NK: Tensor, rest_N: Tensor, targets: TeacherTargets) -> Tensor:
    """KL(teacher, student) over the likeliest tokens and all others taken as one, N.

    Args:
        logits_NK: the student's, of the teacher's likeliest tokens.
        rest_N: of the others the log of the sum of exp, from `rest_logsumexp`.
        targets: the teacher's.
    """
    tail_N1 = targets.tail_logprob_N.unsqueeze(1)
    goals = torch.cat([targets.topk_logprobs_NK, tail_N1], 1).to(logits_NK.dtype).log_softmax(1)
    goals = goals.clamp(min=torch.finfo(goals.dtype).min)  # where there are no others: 0 times this is 0
    logprobs = torch.cat([logits_NK, rest_N.unsqueeze(1)], 1).log_softmax(1)
    return (goals.exp() * (goals - logprobs)).sum(1)


def sampled_ce(
    vocab_size: int, logits: CandidateLogits, targets: TeacherTargets, target_N: Tensor,
    target_logit_N: Tensor,
) -> Tensor:  # fmt: skip
    """Cross-entropy whose sum over the vocabulary is estimated, N.

    The target and the teacher's likeliest tokens count as they are, each once. Negatives stand for all other
    tokens: with q = 1 / V the probability of drawing one, exp(logit) / (R q) estimates their sum without bias
    (logQ correction, Bengio and Senecal 2008). Those that are the target or among the likeliest are left out:
    they are in the sum already.
    """
    others = logits.topk_NK.masked_fill(targets.topk_ids_NK == target_N[:, None], -torch.inf)
    terms = [target_logit_N.unsqueeze(1), others]
    if targets.negative_ids_NR is not None:
        ids_NR = targets.negative_ids_NR
        counted_twice = (ids_NR == target_N[:, None]) | _contained(ids_NR, targets.topk_ids_NK)
        expected = math.log(ids_NR.size(1)) - math.log(vocab_size)
        terms.append((logits.negatives_NR - expected).masked_fill(counted_twice, -torch.inf))
    return torch.cat(terms, 1).logsumexp(1) - target_logit_N


def _contained(ids_NR: Tensor, within_NK: Tensor) -> Tensor:
    """True where an id is among those of its row, NR, without comparing each with each at once."""
    ascending_NK = within_NK.sort(1).values
    places_NR = torch.searchsorted(ascending_NK, ids_NR).clamp(max=within_NK.size(1) - 1)
    return ascending_NK.gather(1, places_NR) == ids_NR


def cross_entropy(head: OutputHead, targets_N: Tensor) -> Tensor:
    """Over the whole vocabulary, the mean over the targets that are not `IGNORE_INDEX`."""
    if head.softcap and head.softcap <= MAX_SOFTCAP:
        return linear_cross_entropy(
            head.hidden_NC, head.head_VC, targets_N, vocab_size=head.vocab_size, softcap=head.softcap
        )
    target_N1 = targets_N.clamp(min=0).unsqueeze(1)
    values_N = rest_logsumexp(head, None) - sparse_logits(head, target_N1)[:, 0]
    return _mean(values_N, targets_N != IGNORE_INDEX)


def anchor_kl(head: OutputHead, reference: TeacherTargets) -> Tensor:
    """The divergence from the starting model at temperature 1, the mean over all rows."""
    return topk_kl(sparse_logits(head, reference.topk_ids_NK), reference).mean()
