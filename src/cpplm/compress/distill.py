"""A model that learns the distributions of a teacher, which runs beside it or has written a cache."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from cpplm.compress.held_out_rows import held_out_rows
from cpplm.compress.kd.cache import KDBatch
from cpplm.compress.kd.losses import ANCHOR_ROWS, distillation_loss
from cpplm.compress.kd.settings import KDLossSettings
from cpplm.compress.kd.sparse_head import OutputHead
from cpplm.compress.kd.targets import TeacherTargets, teacher_targets
from cpplm.compress.kd.teacher import TeacherForward, output_head, states_of
from cpplm.core.errors import UserError
from cpplm.dataloader.loader import Batch
from cpplm.model.transformer import Transformer
from cpplm.optim.muon import MuonAdamW
from cpplm.train.backend import StepLosses, StepPlan
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.compile import LossFunction
from cpplm.train.distributed import TorchDistContext
from cpplm.train.torch_backend import TorchTrainModule

_ANCHOR_TOPK = 128  # likeliest tokens of the starting model, as the seed method keeps them


class Anchor(NamedTuple):
    """Rows on which the student stays near the model that it was: ids BT, and what that one said."""

    ids_BT: Tensor
    reference: TeacherTargets


@torch.no_grad()
def make_anchor(start: Transformer, checkpoint: Checkpoint, location: str) -> Anchor:
    """Rows of held-out documents, with the likeliest tokens of the starting model.

    Raises:
        UserError: too few documents are held out.
    """
    length, count = start.config.max_seq_len, ANCHOR_ROWS
    found = held_out_rows(checkpoint, location, 2 * count * length)
    ids = list(chain.from_iterable(row.tolist() for row in found))
    rows = min(count, len(ids) // length)
    if not rows:
        raise UserError(
            f"--anchor_weight needs {length} held-out tokens, {location} has {len(ids)}", fix="Leave it out."
        )
    ids_BT = torch.tensor(ids[: rows * length], device=start.device).view(rows, length)
    head = output_head(start, start.hidden_states(ids_BT))
    return Anchor(ids_BT, teacher_targets(head, min(_ANCHOR_TOPK, start.config.vocab_size)))


def teacher_of(
    batch: Batch, ids_BT: Tensor, documents_BT: Tensor | None, teacher: TeacherForward | None
) -> TeacherTargets | OutputHead:
    """The teacher's distributions of a batch: from a cache, or of the one that runs beside."""
    if isinstance(batch, KDBatch):
        return batch.flat_teacher(ids_BT.device)
    assert teacher is not None  # noqa: S101  (one of the two)
    return teacher(ids_BT, documents_BT)


class DistillTrainModule(TorchTrainModule):
    """Trains a model towards the distributions of a teacher."""

    def __init__(
        self,
        model: Transformer,
        optimizer: MuonAdamW,
        dist: TorchDistContext,
        settings: KDLossSettings,
        *,
        teacher: TeacherForward | None,
        anchor: Anchor | None,
        compiling: bool,
    ) -> None:
        """Nothing is compiled yet.

        Args:
            model: the student.
            optimizer: of it.
            dist: the ranks.
            settings: how the two are compared.
            teacher: that runs beside; None where batches come from a cache.
            anchor: see there.
            compiling: whether to use torch.compile.
        """
        super().__init__(model, optimizer, model.training_losses, dist)
        self._settings, self._teacher, self._anchor = settings, teacher, anchor
        self._compiling = compiling
        self._student_states = states_of(model, compiling=self._compiling)
        self._progress = 0.0
        self.parts: dict[str, float] = {}
        """Parts of the last step's loss, by name."""

    @override
    def compile_losses(self) -> LossFunction:
        self._student_states = states_of(self.model, compiling=self._compiling)
        return self.model.training_losses

    @override
    def step(self, batches: Iterator[Batch], count: int, plan: StepPlan) -> StepLosses:
        self._progress = plan.progress
        return super().step(batches, count, plan)

    @override
    def _forward_backward(self, passes: list[Batch], count: int, multi_token_weight: float) -> Tensor:
        sums = torch.zeros(4, device=self.device)
        shares = self._target_shares(passes)
        self.parts = {}
        for batch, share in zip(passes, shares, strict=True):
            with self.phases.record("forward"):
                loss, parts = self._loss_of(batch)
            with self.phases.record("backward"):
                (share[0] * loss / count).backward()
            for name, value in parts.items():
                self.parts[name] = self.parts.get(name, 0.0) + float(share[0] * value) / count
            sums[:2] += share[0] * loss.detach() / count
        return sums

    def _loss_of(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one pass, and its parts."""
        ids_BT = batch.inputs.to(self.device)
        documents_BT = None if batch.documents is None else batch.documents.to(self.device)
        hidden_BTC, divergence = self._student_states(ids_BT, documents_BT)
        anchor = None
        if self._anchor is not None:
            anchored_BTC, _ = self._student_states(self._anchor.ids_BT, None)
            anchor = (anchored_BTC.flatten(0, 1), self._anchor.reference)
        loss = distillation_loss(
            output_head(self.model, hidden_BTC), batch.targets.to(self.device).flatten(),
            teacher_of(batch, ids_BT, documents_BT, self._teacher), self._settings,
            progress=self._progress, anchor=anchor,
        )  # fmt: skip
        return loss.total + divergence, loss.parts
