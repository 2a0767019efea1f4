"""The JAX model against the PyTorch model: every feature alone, all together, and random configurations."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from cpplm.jax.settings import RunSettings
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from tests.jax.twins import (
    EXACT,
    TWINS,
    assert_twins,
    by_jax,
    by_torch,
    checkpoint,
    make_batch,
    rounding,
    torch_model,
)
from tests.model.features import CONFIGS, random_config


def compare(config: ModelConfig, batch: dict[str, Any], run: RunSettings = EXACT, seed: int = 0) -> None:
    model = torch_model(config, seed)
    ours, theirs = by_jax(checkpoint(model), batch, config, run), by_torch(model, batch)
    assert_twins(ours, theirs, rounding(model, batch))


@pytest.mark.slow
def test_losses_and_gradients() -> None:
    """Of nearly all features, in one layer with dense attention and a loop over two with sparse attention."""
    config = dataclasses.replace(TWINS["all"], num_layers=3, window_pattern="L", value_embeddings=False)
    compare(config, make_batch(config, 3, 16, documents=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "documents"), [("plain", False), ("llama", False), ("all", True)])
def test_losses_and_gradients_of_more_layers(name: str, documents: bool) -> None:
    compare(TWINS[name], make_batch(TWINS[name], 3, 16, documents=documents))


@pytest.mark.slow
def test_indexers_warm_up_on_dense_attention() -> None:
    batch = make_batch(TWINS["sparse"], 2, 16)
    for dense in (False, True):
        compare(TWINS["sparse"], {**batch, "dense_attention": np.bool_(dense)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"remat": "full"}, {"remat": "dots", "jax_attention": "jax"}, {"remat": "attention"}],
    ids=str,
)
def test_how_it_is_computed_changes_nothing(change: dict[str, Any]) -> None:
    config = dataclasses.replace(TWINS["all"], mtp=None, dsa=None)  # layers that look for attention of a kind
    compare(config, make_batch(config, 3, 16), dataclasses.replace(EXACT, **change))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 3, 9])
def test_random_configurations(seed: int) -> None:
    config = random_config(seed)
    rows, length = 1 + seed % 3, 15 + seed % 8
    compare(config, make_batch(config, rows, length, documents=seed % 2 == 1, seed=seed), seed=seed)


@pytest.mark.slow
def test_half_precision_is_close() -> None:
    """To float32, nearly as close as PyTorch's; scalars of layers closer: they are not rounded themselves."""
    config = dataclasses.replace(CONFIGS["all"], window_pattern="SL", num_layers=6)
    half = dataclasses.replace(EXACT, compute_dtype="bfloat16")
    model, batch = torch_model(config), make_batch(config, 4, 32)
    exact = by_torch(model, batch)
    ours = by_jax(checkpoint(model), batch, config, half)
    rounded = Transformer(config, compute_dtype=torch.bfloat16)
    rounded.load_state_dict(model.state_dict())
    theirs = by_torch(rounded, batch)
    assert ours[0]["total"] == pytest.approx(exact[0]["total"], rel=5e-3)
    assert ours[0]["total"] != exact[0]["total"]

    def error(found: Any, weight: str) -> float:
        difference = np.linalg.norm(found[1][weight] - exact[1][weight])
        return float(difference / np.linalg.norm(exact[1][weight]))

    for weight in exact[1]:
        assert error(ours, weight) < max(0.1, 5 * error(theirs, weight)), weight
    for weight in ("residual_scales", "embedding_scales"):
        assert error(ours, weight) < max(0.05, 2 * error(theirs, weight)), weight
