"""The loss of a step is one mean over all of its targets, however they are divided into passes."""

import dataclasses

import pytest
import torch
from torch import Tensor

from cpplm.dataloader.loader import Batch
from cpplm.dataloader.loader_state import LoaderState
from cpplm.model.config import ModelConfig
from cpplm.optim.groups import build_optimizer
from cpplm.optim.schedules import LearningRates
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from cpplm.train.backend import StepLosses, StepPlan
from cpplm.train.distributed import SINGLE_PROCESS
from cpplm.train.torch_backend import TorchTrainModule
from tests.model.features import CONFIGS, random_model

PLAN = StepPlan(
    learning_rate=1.0, weight_decay=0.0, momentum=0.9, multi_token_weight=0.3, dense_attention=False
)


def step_over(config: ModelConfig, passes: list[tuple[Tensor, Tensor]]) -> StepLosses:
    """One step of a new model; the norm of its gradient is that before the step."""
    model = random_model(config)
    module = TorchTrainModule(
        model,
        build_optimizer(model, LearningRates(), batch_tokens=2**12),
        model.training_losses,
        SINGLE_PROCESS,
    )
    batches = [Batch(ids, targets, LoaderState()) for ids, targets in passes]
    return module.step(iter(batches), len(batches), PLAN)


@pytest.mark.parametrize("name", ["plain", "further"])
def test_any_split_into_passes_is_the_same_step(name: str) -> None:
    config = CONFIGS[name]
    chance = torch.Generator().manual_seed(1)
    ids = torch.randint(0, config.vocab_size, (6, 17), generator=chance)
    targets = ids[:, 1:].clone()
    targets[0] = IGNORE_INDEX  # a pass with nothing to learn
    targets[1, 2:] = IGNORE_INDEX
    targets[4, ::2] = IGNORE_INDEX
    whole = dataclasses.astuple(step_over(config, [(ids[:, :-1], targets)]))
    for rows in (1, 2, 3):
        split = step_over(config, list(zip(ids[:, :-1].split(rows), targets.split(rows), strict=True)))
        assert dataclasses.astuple(split) == pytest.approx(whole, rel=1e-6, abs=1e-7)
