"""The model that is trained by rewards, and the copy of it that writes answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.dataloader.loader import Batch
from cpplm.generate.engine import Engine
from cpplm.generate.load import prepare_for_inference
from cpplm.model.transformer import Transformer
from cpplm.optim.muon import MuonAdamW
from cpplm.post_training.rl.batches import RolloutBatch
from cpplm.post_training.rl.objective import PolicyTokens, k3, policy_loss
from cpplm.post_training.rl.settings import ObjectiveSettings
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.backend import StepLosses, StepPlan
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.weights import load_model
from cpplm.train.distributed import TorchDistContext
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import TorchBackend, TorchTrainModule


@dataclass
class PolicyFigures:
    """How far the engine and the updates are from the trainer, means over tokens that were written.

    Attributes:
        importance_weight: mean of a token's probability over the one that it was sampled with.
        truncated: share of tokens whose weight is above the limit.
        mismatch: mean k3 divergence of engine and trainer at equal weights, in nats.
        kl: from the model of --init_from, in nats; 0 without --kl.
        tokens: written, on which the step has trained.
    """

    importance_weight: float = 1.0
    truncated: float = 0.0
    mismatch: float = 0.0
    kl: float = 0.0
    tokens: int = 0


def decoding_engine(model: Transformer, tokenizer: Tokenizer) -> Engine:
    """An engine with a copy of the present weights, made ready to decode; nothing that was read is kept."""
    with torch.device("meta"):
        copy = Transformer(model.config, compute_dtype=model.compute_dtype)
    copy.to_empty(device=model.device)
    copy.load_state_dict(model.state_dict())
    prepare_for_inference(copy)
    return Engine(copy, tokenizer)


class PolicyTrainModule(TorchTrainModule):
    """Trains on `RolloutBatch`es."""

    def __init__(
        self,
        model: Transformer,
        optimizer: MuonAdamW,
        dist: TorchDistContext,
        settings: ObjectiveSettings,
        *,
        rows: int,
        constant: int,
        reference: Transformer | None = None,
    ) -> None:
        """Nothing is compiled: answers come in passes of any number of rows.

        Args:
            model: to train.
            optimizer: of it.
            dist: the ranks.
            settings: the objective.
            rows: of a forward pass, at most.
            constant: what the sum over tokens is divided by, where that is a constant.
            reference: what `kl` is measured from.
        """
        super().__init__(model, optimizer, model.training_losses, dist)
        self._settings, self._rows, self._constant, self._reference = settings, rows, constant, reference
        self.figures = PolicyFigures()

    @override
    def step(self, batches: Iterator[Batch], count: int, plan: StepPlan) -> StepLosses:
        """As that of the base class; without a group to learn from, nothing changes.

        The rate follows the square root of the share of groups that there are: Muon and Adam are free of
        scale, so that a nearly empty batch would move the weights as far as a full one.
        """
        (batch,) = batches
        assert isinstance(batch, RolloutBatch)  # noqa: S101  (for mypy)
        self.figures = PolicyFigures()
        if not batch.groups:
            return StepLosses(0.0, 0.0, 0.0, 0.0, 0.0)
        plan = replace(
            plan, learning_rate=plan.learning_rate * math.sqrt(min(1.0, batch.groups / batch.num_wanted))
        )
        self._set_plan(plan)
        self.model.dense_attention = False
        passes = list(_passes(batch, self._rows, self.device))
        written = self._mean_over_ranks(sum(float(each.tokens.written_BT.sum()) for each in passes))
        constant = self._constant / self._dist.world_size
        normalizer = written if self._settings.normalizer == "tokens" else constant
        losses = StepLosses(0.0, 0.0, 0.0, 0.0, 0.0)
        for update in range(self._settings.updates_per_rollout):
            parts = torch.zeros(2, device=self.device)
            for number, each in enumerate(passes):
                passes[number], part = self._backward(each, max(1.0, normalizer), first=update == 0)
                parts += part
            self._add_anchor(batch.anchor)
            if update == 0:
                self._measure(passes, written)
            total, likelihood = self._dist.mean(parts).tolist()
            norm = self._update()
            losses = StepLosses(total, likelihood / max(1.0, written), 0.0, 0.0, norm)
        return losses

    def _mean_over_ranks(self, value: float) -> float:
        """Gradients are averaged over ranks, so sums are divided by the mean over ranks, not by the whole."""
        return float(self._dist.mean(torch.tensor([value], dtype=torch.float64, device=self.device)))

    def _backward(self, part: _Pass, normalizer: float, *, first: bool) -> tuple[_Pass, Tensor]:
        """Gradients of one pass; the pass with the probabilities before the first update, and its losses."""
        tokens = part.tokens
        with self.phases.record("forward"):
            logprobs_BT = -self.model.loss(part.inputs_BT, part.targets_BT, "none", tokens.answers_BT)
        old_BT = logprobs_BT.detach() if first else tokens.old_BT
        if first and self._reference is not None:
            with torch.no_grad():
                losses_BT = self._reference.loss(part.inputs_BT, part.targets_BT, "none", tokens.answers_BT)
            tokens = replace(tokens, reference_BT=-losses_BT)
        tokens = replace(tokens, old_BT=old_BT)
        loss = policy_loss(replace(tokens, logprobs_BT=logprobs_BT), self._settings) / normalizer
        with self.phases.record("backward"):
            loss.backward()
        likelihood = -(old_BT * tokens.written_BT).sum()
        return replace(part, tokens=tokens), torch.stack([loss.detach(), likelihood])

    def _add_anchor(self, anchor: Batch | None) -> None:
        """Gradients of the cross-entropy of gold answers, a mean over their own tokens."""
        if anchor is None:
            return
        inputs_BT, targets_BT = anchor.inputs.to(self.device), anchor.targets.to(self.device)
        documents_BT = None if anchor.documents is None else anchor.documents.to(self.device)
        counted = self._mean_over_ranks(float((targets_BT != IGNORE_INDEX).sum()))
        losses_BT = self.model.loss(inputs_BT, targets_BT, "none", documents_BT)
        (self._settings.anchor_weight * losses_BT.sum() / max(1.0, counted)).backward()

    def _measure(self, passes: list[_Pass], written: float) -> None:
        sums = torch.zeros(4, device=self.device)
        for part in (each.tokens for each in passes):
            ratio_BT = (part.old_BT - part.sampled_BT).exp()
            above_BT = (ratio_BT > self._settings.max_importance_weight).float()
            # KL(mu, pi) from tokens of mu, the engine's.
            mismatch_BT = k3(part.old_BT, part.sampled_BT)
            reference_BT = part.old_BT if part.reference_BT is None else part.reference_BT
            kl_BT = k3(reference_BT, part.old_BT)
            columns = (ratio_BT, above_BT, mismatch_BT, kl_BT)
            sums += torch.stack([(each * part.written_BT).sum() for each in columns])
        weight, truncated, mismatch, kl = (self._dist.mean(sums) / max(1.0, written)).tolist()
        tokens = round(written * self._dist.world_size)
        self.figures = PolicyFigures(weight, truncated, mismatch, kl, tokens)


@dataclass(frozen=True)
class _Pass:
    """Some rows of a batch, shape BT; all probabilities are those of sampling until others are known."""

    inputs_BT: Tensor
    targets_BT: Tensor
    tokens: PolicyTokens


def _passes(batch: RolloutBatch, rows: int, device: torch.device) -> Iterator[_Pass]:
    assert batch.documents is not None  # noqa: S101  (answers share rows)
    for start in range(0, len(batch.inputs), rows):

        def part(column_BT: Tensor, start: int = start) -> Tensor:
            return column_BT[start : start + rows].to(device)

        targets_BT, sampled_BT = part(batch.targets), part(batch.logprobs)
        tokens = PolicyTokens(
            sampled_BT, sampled_BT, sampled_BT, part(batch.advantages), (targets_BT != IGNORE_INDEX).float(),
            part(batch.documents), num_answers=int(batch.documents.max()) + 1,
        )  # fmt: skip
        yield _Pass(part(batch.inputs), targets_BT, tokens)


class PolicyBackend(TorchBackend):
    """Makes `PolicyTrainModule`s."""

    def __init__(self, settings: TrainSettings, objective: ObjectiveSettings, *, constant: int) -> None:
        """Args: settings of the run, its objective, and the constant that may divide sums over tokens.

        Raises:
            UserError: as `TorchBackend`.
        """
        super().__init__(settings)
        self._objective, self._constant = objective, constant

    @override
    def _module(self, model: Transformer, optimizer: MuonAdamW, settings: TrainSettings) -> PolicyTrainModule:
        reference = None
        if self._objective.kl:
            parent = open_parent(settings.init_from)
            reference = load_model(parent, device=model.device, compute_dtype=model.compute_dtype)
        return PolicyTrainModule(
            model, optimizer, self._dist, self._objective,
            rows=settings.device_batch_size, constant=self._constant, reference=reference,
        )  # fmt: skip


def refuse_jax(backend: str, device_type: str) -> None:
    """Refuse to train by rewards with JAX, with UserError."""
    if backend == "jax" or device_type == "tpu":
        raise UserError(
            "reinforcement learning needs the engine of --backend torch to sample answers",
            fix="Use --backend torch on a CPU or GPU; 'cpplm sft' trains with JAX.",
        )
