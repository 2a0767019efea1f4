"""Several residual streams: doubly stochastic, dependent on the token, the identity at the start."""

import dataclasses

import pytest
import torch

from cpplm.model.config import HyperConnectionsConfig
from cpplm.model.hyper_connections import HyperConnection
from cpplm.model.kernels.sinkhorn import sinkhorn
from cpplm.model.transformer import Transformer
from tests.model.features import CONFIGS, PLAIN, random_ids, random_model


def connection_of(model: Transformer) -> HyperConnection:
    return model.blocks[1].connections["attention"]


def test_rows_and_columns_sum_to_one() -> None:
    x = torch.randn(2, 6, 3, 32, generator=torch.Generator().manual_seed(0))
    _, _, mixing = connection_of(random_model(CONFIGS["streams"])).weights(x)
    assert mixing.shape == (2, 6, 3, 3)
    assert torch.all(mixing > 0)
    torch.testing.assert_close(mixing.sum(-1), torch.ones(2, 6, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(mixing.sum(-2), torch.ones(2, 6, 3), atol=1e-4, rtol=0)


def test_scores_change_the_mix() -> None:
    """The first system's could not: its scores had rank one, and every weight was 1/n whatever they were."""
    connection = connection_of(random_model(CONFIGS["streams"]))
    x = torch.randn(1, 2, 3, 32, generator=torch.Generator().manual_seed(0))
    for weights in connection.weights(x):
        assert (weights[:, 0] - weights[:, 1]).abs().max() > 1e-4  # two tokens are mixed differently
    _, _, before = connection.weights(x)
    with torch.no_grad():
        connection.bias[2 * 3 + 1] += 3.0  # from the second stream into the first
    _, _, after = connection.weights(x)
    assert torch.all(after[..., 0, 1] > before[..., 0, 1] + 0.05)


def test_sinkhorn_gradient() -> None:
    logits = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 20), (logits,))
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 1), (logits,))


@pytest.mark.parametrize("count", [2, 4, 5])
def test_the_plain_model_at_the_start(count: int) -> None:
    """With blocks that do something (their output matrices start at zero) but connections as they start."""
    plain = random_model(PLAIN)
    streams = Transformer(dataclasses.replace(PLAIN, hyper_connections=HyperConnectionsConfig(count)))
    streams.init_weights()
    streams.load_state_dict(plain.state_dict(), strict=False)
    ids = random_ids(2, 16)
    torch.testing.assert_close(streams(ids), plain(ids), atol=1e-4, rtol=1e-4)


def test_equal_streams_learn_different_weights() -> None:
    model = Transformer(CONFIGS["streams"])
    model.init_weights()
    model.load_state_dict(random_model(PLAIN).state_dict(), strict=False)
    ids = random_ids(4, 16)
    model.training_losses(ids, ids.roll(-1, dims=1)).total.backward()
    reading = connection_of(model).bias.grad[:3]
    assert reading.abs().min() > 0
    assert reading.unique().numel() > 1
    assert connection_of(model).scores.weight.grad.abs().max() > 0
