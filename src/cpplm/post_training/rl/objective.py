"""Policy gradients as losses of tokens, and the advantages that weigh them.

    loss = objective(tokens, settings).sum() / normalizer

The gradient of `reinforce` is that of a cross-entropy with signed weights; with one update for each batch of
rollouts `ppo` has the same one, and `gspo` too but for the length of each answer.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch
from torch import Tensor

from cpplm.post_training.rl.settings import AdvantageName, ObjectiveName, ObjectiveSettings


@dataclass(frozen=True)
class PolicyTokens:
    """Tokens of sampled answers; all tensors have the shape BT.

    Attributes:
        logprobs_BT: of the model that is trained, with a gradient; 0 where nothing was written.
        sampled_BT: noted by the engine while sampling (mu).
        old_BT: the trainer's own before the first update on these rollouts.
        advantages_BT: 0 where nothing was written.
        written_BT: 1 where the model wrote the token, float.
        answers_BT: number of the answer that a token belongs to, int64.
        num_answers: above all of them.
        reference_BT: of the model of --init_from; None without `kl`.
    """

    logprobs_BT: Tensor
    sampled_BT: Tensor
    old_BT: Tensor
    advantages_BT: Tensor
    written_BT: Tensor
    answers_BT: Tensor
    num_answers: int
    reference_BT: Tensor | None = None


def policy_loss(tokens: PolicyTokens, settings: ObjectiveSettings) -> Tensor:
    """The sum over tokens, or answers for gspo, that training minimizes, `kl` included; a scalar."""
    loss = _OBJECTIVES[settings.objective](tokens, settings)
    if tokens.reference_BT is not None:
        loss = loss + settings.kl * (k3(tokens.reference_BT, tokens.logprobs_BT) * tokens.written_BT).sum()
    return loss


def k3(reference: Tensor, logprobs: Tensor) -> Tensor:
    """An estimate of the divergence KL(pi, reference) from tokens of pi, never negative.

    Source: Schulman 2020, "Approximating KL divergence", estimator k3.
    """
    difference = reference - logprobs
    return difference.exp() - difference - 1


def advantages(rewards: Sequence[float], kind: AdvantageName) -> list[float]:
    """How much better each answer of a group is than the others.

    Raises:
        ValueError: all rewards are equal; there is nothing to learn from them.
    """
    if len(set(rewards)) < 2:  # not a deviation above 0, which rounding leaves to equal rewards
        raise ValueError("a group of equal rewards has no advantages")
    mean, count = fmean(rewards), len(rewards)
    scale = 1 / pstdev(rewards) if kind == "grpo" else count / (count - 1)
    return [scale * (reward - mean) for reward in rewards]


def _reinforce(tokens: PolicyTokens, settings: ObjectiveSettings) -> Tensor:
    ratio_BT = (tokens.logprobs_BT.detach() - tokens.sampled_BT).exp()
    weights_BT = ratio_BT.clamp(max=settings.max_importance_weight) * tokens.advantages_BT
    return -(weights_BT * tokens.logprobs_BT * tokens.written_BT).sum()


def _ppo(tokens: PolicyTokens, settings: ObjectiveSettings) -> Tensor:
    ratio_BT = (tokens.logprobs_BT - tokens.old_BT).exp()
    gain_BT = torch.minimum(
        ratio_BT * tokens.advantages_BT, ratio_BT.clamp(*settings.clip) * tokens.advantages_BT
    )
    mismatch_BT = (tokens.old_BT - tokens.sampled_BT).exp().clamp(max=settings.max_importance_weight)
    return -(mismatch_BT * gain_BT * tokens.written_BT).sum()


def _gspo(tokens: PolicyTokens, settings: ObjectiveSettings) -> Tensor:
    written = tokens.written_BT.flatten()
    answers = tokens.answers_BT.flatten()

    def means(values_BT: Tensor) -> Tensor:
        """Of each answer's written tokens."""
        sums = written.new_zeros(tokens.num_answers)
        counts = sums.index_add(0, answers, written).clamp(min=1)
        return sums.index_add(0, answers, values_BT.flatten() * written) / counts

    ratios = means(tokens.logprobs_BT - tokens.old_BT).exp()
    gains = means(tokens.advantages_BT)
    mismatches = means(tokens.old_BT - tokens.sampled_BT).exp().clamp(max=settings.max_importance_weight)
    clipped = ratios.clamp(*settings.clip)
    return -(mismatches * torch.minimum(ratios * gains, clipped * gains)).sum()


_OBJECTIVES: dict[ObjectiveName, Callable[[PolicyTokens, ObjectiveSettings], Tensor]] = {
    "reinforce": _reinforce,
    "ppo": _ppo,
    "gspo": _gspo,
}
