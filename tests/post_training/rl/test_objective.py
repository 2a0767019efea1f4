"""Objectives against exact enumeration: all answers of a vocabulary of four tokens."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.post_training.rl.objective import PolicyTokens, advantages, k3, policy_loss
from cpplm.post_training.rl.settings import ObjectiveSettings

VOCAB = 4


class TablePolicy:
    """The first token by one row of logits, the second by the row of the first."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(1 + VOCAB, VOCAB, generator=generator, dtype=torch.float64)
        self.logits.requires_grad_()

    def logprobs(self, answer: Sequence[int]) -> Tensor:
        table = self.logits.log_softmax(-1)
        rows = [0, *(1 + token for token in answer[:-1])]
        return torch.stack([table[row, token] for row, token in zip(rows, answer, strict=True)])


def reward(answer: Sequence[int]) -> float:
    return (sum(answer) % 3) / 2


def exact_gradient(policy: TablePolicy, length: int) -> Tensor:
    answers = itertools.product(range(VOCAB), repeat=length)
    expected = sum(policy.logprobs(each).sum().exp() * reward(each) for each in answers)
    (gradient,) = torch.autograd.grad(expected, policy.logits)
    return gradient


def tokens_of(
    policy: TablePolicy, group: Sequence[Sequence[int]], sampled: TablePolicy, kind: str = "rloo"
) -> PolicyTokens | None:
    rewards = [reward(each) for each in group]
    if len(set(rewards)) == 1:
        return None
    logprobs = torch.stack([policy.logprobs(each) for each in group])
    mu = torch.stack([sampled.logprobs(each) for each in group]).detach()
    weights = torch.tensor(advantages(rewards, kind), dtype=torch.float64)[:, None].expand_as(mu)
    answers = torch.arange(len(group))[:, None].expand_as(mu)
    return PolicyTokens(
        logprobs, mu, logprobs.detach(), weights, torch.ones_like(mu), answers.clone(), len(group)
    )


def expected_gradient(
    policy: TablePolicy, sampled: TablePolicy, settings: ObjectiveSettings, length: int, group_size: int = 2
) -> Tensor:
    """Of minus the loss per answer, over all groups that can be sampled."""
    total = torch.zeros_like(policy.logits)
    answers = list(itertools.product(range(VOCAB), repeat=length))
    for group in itertools.product(answers, repeat=group_size):
        tokens = tokens_of(policy, group, sampled, settings.advantage)
        if tokens is not None:
            (gradient,) = torch.autograd.grad(-policy_loss(tokens, settings) / group_size, policy.logits)
            total += tokens.sampled_BT.sum().exp() * gradient
    return total


@pytest.mark.parametrize(("objective", "scale"), [("reinforce", 1), ("ppo", 1), ("gspo", 2)])
def test_the_gradient_is_that_of_the_expected_reward(objective: str, scale: int) -> None:
    """On policy, leave-one-out groups are unbiased; gspo divides by the length of the answer."""
    policy = TablePolicy()
    settings = ObjectiveSettings(objective=objective)
    found = expected_gradient(policy, policy, settings, length=2)
    torch.testing.assert_close(scale * found, exact_gradient(policy, 2), rtol=1e-9, atol=1e-12)


def test_importance_weights_correct_for_another_sampler() -> None:
    """Exact for single tokens, as long as no weight is truncated."""
    policy, sampled = TablePolicy(0), TablePolicy(1)
    exact = exact_gradient(policy, 1)
    settings = ObjectiveSettings(max_importance_weight=1e9)
    torch.testing.assert_close(expected_gradient(policy, sampled, settings, 1), exact, rtol=1e-9, atol=1e-12)
    truncated = expected_gradient(policy, sampled, ObjectiveSettings(max_importance_weight=0.5), 1)
    assert not torch.allclose(truncated, exact)
    ignored = expected_gradient(policy, sampled, ObjectiveSettings(max_importance_weight=0.0), 1)
    assert not ignored.any()


def test_a_deviation_scales_each_group_alone() -> None:
    rewards = [0.0, 1.0, 1.0, 0.5]
    rloo, grpo = advantages(rewards, "rloo"), advantages(rewards, "grpo")
    assert rloo == pytest.approx([each - (sum(rewards) - each) / 3 for each in rewards])
    assert sum(each**2 for each in grpo) / 4 == pytest.approx(1.0)
    assert sum(rloo) == pytest.approx(0.0)
    assert advantages([0.1, 0.0], "rloo") == pytest.approx([0.1, -0.1])  # not blown up to 1


def test_equal_rewards_are_no_group() -> None:
    """Also such whose deviation is not 0 in floating point."""
    with pytest.raises(ValueError, match="equal"):
        advantages([0.1] * 3, "grpo")


@pytest.mark.parametrize("gain", [1.0, -1.0])
@pytest.mark.parametrize(("objective", "inside", "outside"), [("ppo", 1.1, 1.5), ("gspo", 1.0001, 1.01)])
def test_ratios_are_clipped_where_they_would_go_on(
    objective: str, inside: float, outside: float, gain: float
) -> None:
    settings = ObjectiveSettings(objective=objective)
    for ratio, is_clipped in ((inside, False), (outside, True), (2 - inside, False), (2 - outside, True)):
        logprobs = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
        one = torch.ones(1, 1, dtype=torch.float64)
        old = logprobs.detach() - torch.tensor(ratio).log()
        tokens = PolicyTokens(logprobs, old, old, gain * one, one, torch.zeros(1, 1, dtype=torch.int64), 1)
        (gradient,) = torch.autograd.grad(policy_loss(tokens, settings), logprobs)
        goes_on = (ratio > 1) == (gain > 0)
        assert bool(gradient.any()) == (not (is_clipped and goes_on)), (ratio, gain)


def test_what_was_not_written_has_no_gradient() -> None:
    for objective in ("reinforce", "ppo", "gspo"):
        logprobs = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
        written = torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
        zeros = torch.zeros(1, 4, dtype=torch.float64)
        tokens = PolicyTokens(
            logprobs, zeros, zeros, written, written, torch.zeros(1, 4, dtype=torch.int64), 1, zeros - 0.5
        )
        loss = policy_loss(tokens, ObjectiveSettings(objective=objective, kl=0.1))
        (gradient,) = torch.autograd.grad(loss, logprobs)
        assert gradient[0, 1] == gradient[0, 3] == 0 != gradient[0, 0]


def test_all_advantages_one_is_supervised() -> None:
    policy = TablePolicy()
    answers = torch.stack([policy.logprobs(each) for each in ((0, 1), (2, 3))])
    one = torch.ones_like(answers).detach()
    tokens = PolicyTokens(
        answers, answers.detach(), answers.detach(), one, one, torch.zeros(2, 2, dtype=torch.int64), 1
    )
    (found,) = torch.autograd.grad(policy_loss(tokens, ObjectiveSettings()), policy.logits, retain_graph=True)
    (expected,) = torch.autograd.grad(-answers.sum(), policy.logits)
    torch.testing.assert_close(found, expected)


def test_k3_is_the_divergence_in_the_mean() -> None:
    """And its gradient pulls towards the reference: only that of the whole table vanishes."""
    policy, reference = TablePolicy(0), TablePolicy(1)
    ours, theirs = policy.logits[0].log_softmax(-1), reference.logits[0].log_softmax(-1)
    divergence = (ours.exp() * (ours - theirs)).sum()
    estimate = (ours.exp() * k3(theirs, ours)).sum()
    torch.testing.assert_close(estimate, divergence)
    assert (k3(theirs, ours) >= 0).all()


@pytest.mark.parametrize(
    "wrong", [{"kl": -1.0}, {"updates_per_rollout": 0}, {"clip_high": -0.5}, {"anchor_weight": float("nan")}]
)
def test_settings_that_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError):
        ObjectiveSettings(**wrong)
