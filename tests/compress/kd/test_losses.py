"""Losses of distillation against plain ones that hold all logits, in float64."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cpplm.compress.kd import sparse_head
from cpplm.compress.kd.full_kl import full_kl
from cpplm.compress.kd.losses import (
    anchor_kl,
    candidate_logits,
    cross_entropy,
    distillation_loss,
    sampled_ce,
    topk_kl,
    topk_tail_kl,
)
from cpplm.compress.kd.settings import KDLossSettings
from cpplm.compress.kd.sparse_head import OutputHead, rest_logsumexp, sparse_logits
from cpplm.compress.kd.targets import TeacherTargets, teacher_targets
from cpplm.core.errors import UserError
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

N, C, V, PADDED, K, R = 23, 6, 37, 40, 5, 7
CAPS = [None, 2.5]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Three rows of logits at a time, and two of the head's gradient."""
    monkeypatch.setattr(sparse_head, "_CHUNK_BYTES", {"cpu": 3 * V * 8})
    monkeypatch.setattr(sparse_head, "_SHARE_BYTES", 2 * (K + R + 1) * C * 8)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def student(seed: int = 0, softcap: float | None = None) -> OutputHead:
    hidden_NC, head_VC = drawn(N, C, seed=seed), drawn(PADDED, C, seed=seed + 1)
    return OutputHead(hidden_NC.requires_grad_(), head_VC.requires_grad_(), V, softcap)


def all_logits(head: OutputHead) -> Tensor:
    logits_NV = head.hidden_NC @ head.head_VC[: head.vocab_size].T
    return head.softcap * torch.tanh(logits_NV / head.softcap) if head.softcap else logits_NV


def online_teacher(softcap: float | None = None) -> OutputHead:
    return OutputHead(drawn(N, 4, seed=7), drawn(PADDED, 4, seed=8), V, softcap)


def labels() -> Tensor:
    labels_N = torch.randint(V, (N,), generator=torch.Generator().manual_seed(3))
    labels_N[::4] = IGNORE_INDEX
    return labels_N


def with_negatives(targets: TeacherTargets, count: int = R) -> TeacherTargets:
    ids_NR = torch.randint(V, (N, count), generator=torch.Generator().manual_seed(4))
    return targets._replace(negative_ids_NR=ids_NR)


def gradients(value: Tensor, head: OutputHead) -> tuple[Tensor, Tensor]:
    return torch.autograd.grad(value, (head.hidden_NC, head.head_VC))


def assert_same(ours: Tensor, plain: Tensor, head: OutputHead) -> None:
    """The values and both gradients, for an upstream gradient that differs by row."""
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-10)
    upstream = drawn(*ours.shape, seed=9)
    for one, other in zip(
        gradients((ours * upstream).sum(), head), gradients((plain * upstream).sum(), head), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("softcap", CAPS)
def test_sparse_logits_are_those_of_gathered_rows(softcap):
    head = student(softcap=softcap)
    ids_NM = torch.randint(V, (N, K + R), generator=torch.Generator().manual_seed(2))
    ids_NM[:, 0] = ids_NM[:, 1]  # repeated in a row
    plain = torch.einsum("nc,nmc->nm", head.hidden_NC, head.head_VC[ids_NM])
    plain = softcap * torch.tanh(plain / softcap) if softcap else plain
    assert_same(sparse_logits(head, ids_NM), plain, head)


def test_sparse_logits_of_half_precision_states_are_float32():
    head = student()
    ids_NM = torch.arange(V).expand(N, V)
    half = head.hidden_NC.detach().bfloat16().requires_grad_()
    ours = sparse_logits(OutputHead(half, head.head_VC.detach().float(), V), ids_NM)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(
        ours.double(), half.double() @ head.head_VC[:V].T, rtol=1e-5, atol=1e-5, check_dtype=False
    )
    ours.sum().backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("softcap", CAPS)
def test_sum_of_the_rest(softcap):
    head = student(softcap=softcap)
    left_out_NK = teacher_targets(online_teacher(), K).topk_ids_NK
    plain = all_logits(head).scatter(1, left_out_NK, -torch.inf).logsumexp(1)
    assert_same(rest_logsumexp(head, left_out_NK), plain, head)
    assert_same(rest_logsumexp(head, None), all_logits(head).logsumexp(1), head)


def test_large_logits_do_not_overflow():
    head = student()
    head = head._replace(hidden_NC=(1e4 * head.hidden_NC).detach().requires_grad_())
    targets = teacher_targets(online_teacher(), K)
    likeliest = targets._replace(topk_ids_NK=all_logits(head).topk(K, 1).indices)  # e^large is left out
    value = topk_tail_kl(
        candidate_logits(head, labels().clamp(min=0), likeliest).topk_NK,
        rest_logsumexp(head, likeliest.topk_ids_NK),
        likeliest,
    ).sum()
    assert all(torch.isfinite(each).all() for each in (value, *gradients(value, head)))


@pytest.mark.parametrize("softcap", CAPS)
def test_teacher_targets_are_a_distribution(softcap):
    teacher = online_teacher(softcap)
    logprobs_NV = all_logits(teacher).log_softmax(1)
    targets = teacher_targets(teacher, K)
    top = logprobs_NV.topk(K, 1)
    assert torch.equal(targets.topk_ids_NK, top.indices)
    torch.testing.assert_close(targets.topk_logprobs_NK, top.values.float())
    torch.testing.assert_close(targets.tail_logprob_N.exp(), (1 - top.values.exp().sum(1)).float())


@pytest.mark.parametrize("softcap", CAPS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_full_kl_with_gradients(softcap, temperature):
    head, teacher, counted_N = student(softcap=softcap), online_teacher(1.5), labels() != IGNORE_INDEX
    goals = (all_logits(teacher) / temperature).log_softmax(1)
    plain = F.kl_div(
        (all_logits(head) / temperature).log_softmax(1), goals, reduction="none", log_target=True
    )
    plain = temperature**2 * plain.sum(1)[counted_N].mean()
    assert_same(full_kl(head, teacher, counted_N, temperature), plain, head)


def exact_targets(teacher: OutputHead, topk: int) -> TeacherTargets:
    """In float64."""
    top = all_logits(teacher).log_softmax(1).topk(topk, 1)
    tail_N = (1 - top.values.exp().sum(1)).clamp(min=0).log() if topk < V else torch.full((N,), -torch.inf)
    return TeacherTargets(top.indices, top.values, tail_N)


@pytest.mark.parametrize("softcap", CAPS)
@pytest.mark.parametrize("loss", ["topk", "topk_tail"])
def test_of_all_tokens_the_likeliest_are_the_full_divergence(loss, softcap):
    head, teacher = student(softcap=softcap), online_teacher()
    targets, everywhere_N = exact_targets(teacher, V), torch.ones(N, dtype=torch.bool)
    logits_NK = sparse_logits(head, targets.topk_ids_NK)
    if loss == "topk":
        ours = topk_kl(logits_NK, targets)
    else:
        ours = topk_tail_kl(logits_NK, rest_logsumexp(head, targets.topk_ids_NK), targets)
    assert_same(ours.mean(), full_kl(head, teacher, everywhere_N), head)


def test_topk_kl_is_renormalised_at_its_temperature():
    head, teacher = student(), online_teacher()
    targets = exact_targets(teacher, K)
    goals = all_logits(teacher).gather(1, targets.topk_ids_NK) / 2
    logprobs = (all_logits(head).gather(1, targets.topk_ids_NK) / 2).log_softmax(1)
    plain = 4 * F.kl_div(logprobs, goals.log_softmax(1), reduction="none", log_target=True).sum(1)
    ours = topk_kl(candidate_logits(head, labels().clamp(min=0), targets).topk_NK, targets, 2.0)
    assert_same(ours, plain, head)


def test_tail_is_one_bucket():
    head, teacher = student(softcap=2.5), online_teacher()
    targets = exact_targets(teacher, K)

    def buckets(logits_NV: Tensor) -> Tensor:
        probs = logits_NV.softmax(1).gather(1, targets.topk_ids_NK)
        return torch.cat([probs, 1 - probs.sum(1, keepdim=True)], 1).log()

    plain = F.kl_div(
        buckets(all_logits(head)), buckets(all_logits(teacher)), reduction="none", log_target=True
    ).sum(1)
    logits_NK = candidate_logits(head, labels().clamp(min=0), targets).topk_NK
    assert_same(topk_tail_kl(logits_NK, rest_logsumexp(head, targets.topk_ids_NK), targets), plain, head)


def sampled(head: OutputHead, targets: TeacherTargets, target_N: Tensor) -> Tensor:
    logits = candidate_logits(head, target_N, targets)
    return sampled_ce(V, logits, targets, target_N, logits.label_N)


def test_sampled_ce_of_each_token_once_is_the_exact_one():
    """With all of V drawn, each stands for itself; the target and the likeliest are not counted twice."""
    head, target_N = student(), labels().clamp(min=0)
    everything = torch.stack([torch.randperm(V) for _ in range(N)])
    targets = exact_targets(online_teacher(), K)._replace(negative_ids_NR=everything)
    plain = F.cross_entropy(all_logits(head), target_N, reduction="none")
    assert_same(sampled(head, targets, target_N), plain, head)


def test_sampled_ce_of_many_negatives_has_the_gradient_of_the_exact_one():
    head, target_N = student(), labels().clamp(min=0)
    targets = with_negatives(exact_targets(online_teacher(), K), 20_000)
    exact = gradients(F.cross_entropy(all_logits(head), target_N), head)
    for estimate, one in zip(gradients(sampled(head, targets, target_N).mean(), head), exact, strict=True):
        assert (estimate - one).norm() < 0.02 * one.norm()
    none = targets._replace(negative_ids_NR=None)
    [biased, _] = gradients(sampled(head, none, target_N).mean(), head)
    assert (biased - exact[0]).norm() > 0.1 * exact[0].norm()  # so that the test could have failed


@pytest.mark.parametrize("softcap", [None, 2.5, 100.0])
def test_exact_cross_entropy(softcap):
    head = student(softcap=softcap)
    plain = F.cross_entropy(all_logits(head), labels(), ignore_index=IGNORE_INDEX)
    assert_same(cross_entropy(head, labels()), plain, head)


def test_anchor_of_the_model_itself_is_0_with_a_gradient_of_0():
    head = student()
    same = OutputHead(head.hidden_NC.detach(), head.head_VC.detach(), V)
    value = anchor_kl(head, exact_targets(same, K))
    assert abs(value.item()) < 1e-12
    assert max(each.abs().max() for each in gradients(value, head)) < 1e-12


def loss_of(teacher: Any, settings: KDLossSettings, labels_N: Tensor, head: OutputHead, **more: Any) -> Any:
    return distillation_loss(head, labels_N, teacher, settings, **{"progress": 0.0, **more})


def test_weights_sum_the_parts_and_change_over_the_run():
    head, targets = student(softcap=2.5), with_negatives(teacher_targets(online_teacher(), K))
    settings = KDLossSettings(
        kd_loss="topk_tail", hard_top1_weight="0.2:0", hard_full_weight="0.3", sampled_ce_weight="0:0.5",
        anchor_weight=".1",
    )  # fmt: skip
    anchor = (drawn(4, C, seed=5), TeacherTargets(*(each[:4] for each in targets[:3])))
    start = loss_of(targets, settings, labels(), head, anchor=anchor)
    parts = start.parts
    assert list(parts) == ["kd", "hard_top1", "hard_full", "anchor"]
    expected = parts["kd"] + 0.2 * parts["hard_top1"] + 0.3 * parts["hard_full"] + 0.1 * parts["anchor"]
    torch.testing.assert_close(start.total.detach(), expected)
    end = loss_of(targets, settings, labels(), head, progress=1.0)
    assert list(end.parts) == ["kd", "sampled_ce", "hard_full"]
    torch.testing.assert_close(
        end.total.detach(), parts["kd"] + 0.5 * end.parts["sampled_ce"] + 0.3 * parts["hard_full"]
    )
    assert not any(part.requires_grad for part in parts.values())


def test_rows_that_do_not_count_have_no_gradient():
    everything = KDLossSettings(hard_top1_weight="1", hard_full_weight="1", sampled_ce_weight="1")
    targets = with_negatives(teacher_targets(online_teacher(), K))
    online = KDLossSettings(kd_loss="full", hard_top1_weight="1")
    for teacher, settings in ((targets, everything), (online_teacher(), online)):
        head = student(softcap=2.5)
        [of_hidden, _] = gradients(loss_of(teacher, settings, labels(), head).total, head)
        assert (of_hidden[::4] == 0).all()
        assert (of_hidden[1::4].norm(dim=1) > 0).all()
        nothing = torch.full((N,), IGNORE_INDEX)
        total = loss_of(teacher, settings, nothing, head).total
        assert total.item() == 0
        assert all((each == 0).all() for each in gradients(total, head))


class ShapeSpy(TorchDispatchMode):
    """Notes the shape of every tensor that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, Tensor):
                self.shapes.add(tuple(each.shape))
        return result


@pytest.mark.parametrize("trains_head", [True, False])
def test_sparse_mode_makes_neither_all_logits_nor_gathered_rows(trains_head):
    settings = KDLossSettings(
        no_full_logits=True, hard_top1_weight="0.2", sampled_ce_weight="1", anchor_weight="1"
    )
    targets = with_negatives(teacher_targets(online_teacher(), K))
    head = student(softcap=2.5)
    head.head_VC.requires_grad_(trains_head)
    with ShapeSpy() as spy:
        loss = loss_of(targets, settings, labels(), head, anchor=(head.hidden_NC, targets))
        loss.total.backward()
    assert len(loss.parts) == 4
    assert (N, K + R + 1) in spy.shapes  # it sees what there is
    assert not [shape for shape in spy.shapes if shape[-1:] in ((V,), (PADDED,))]
    gathered = {(N, each) for each in (K, R, K + R, K + R + 1)} | {
        (N * each,) for each in (K, R, K + R, K + R + 1)
    }
    assert not [shape for shape in spy.shapes if shape[-1:] == (C,) and shape[:-1] in gathered]


def test_exact_losses_never_hold_the_logits_of_all_rows():
    settings = KDLossSettings(kd_loss="topk_tail", hard_top1_weight="1")
    for teacher, chosen in (
        (teacher_targets(online_teacher(), K), settings),
        (online_teacher(), KDLossSettings(kd_loss="full", hard_top1_weight="1")),
    ):
        head = student(softcap=None)
        with ShapeSpy() as spy:
            loss_of(teacher, chosen, labels(), head).total.backward()
        rows = {shape[0] for shape in spy.shapes if len(shape) == 2 and shape[1] in (V, PADDED)}
        assert 3 in rows
        assert max(rows - {C, 4, V, PADDED}) == 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kd_loss": "topk_tail", "temperature": 2.0}, "--temperature 1"),
        ({"kd_loss": "full", "no_full_logits": True}, "--kd_loss topk"),
        ({"kd_loss": "topk_tail", "no_full_logits": True}, "--kd_loss topk"),
        ({"hard_full_weight": "0:1", "no_full_logits": True}, "--sampled_ce_weight"),
        ({"kd_weight": "-1"}, "0.2:0"),
        ({"kd_weight": "nan"}, "0.2:0"),
        ({"kd_weight": "0", "anchor_weight": "1"}, "--kd_weight 1"),
        ({"temperature": 0.0}, "positive"),
    ],
)
def test_settings_that_contradict_each_other(values, words):
    with pytest.raises(UserError, match=words):
        KDLossSettings(**values)


def test_losses_that_a_teacher_cannot_give():
    for cached, values, words in (
        (True, {"kd_loss": "full"}, "--kd_loss topk"),
        (False, {"kd_loss": "topk"}, "--kd_loss full"),
        (False, {"kd_weight": "0", "hard_top1_weight": "1", "no_full_logits": True}, "cache build"),
        (True, {"sampled_ce_weight": "1"}, "--negatives"),
    ):
        with pytest.raises(UserError, match=words):
            KDLossSettings(**values).check_teacher(cached=cached, negatives=False)
