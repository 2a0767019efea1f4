"""Several residual streams with learned, doubly stochastic mixing.

Manifold-constrained hyper-connections (mHC, Xie et al. 2025, arXiv 2512.24880, section 4). A sublayer reads a
weighted sum of the streams, and what it writes is added to each stream with another weight; the streams
themselves are mixed by a matrix whose rows and columns sum to 1, so that no signal grows or fades over the
layers. All weights depend on the token alone, so the mixing is causal.

Shapes: B batch, T tokens, N streams, C model_dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cpplm.model.config import HyperConnectionsConfig
from cpplm.model.kernels.sinkhorn import sinkhorn
from cpplm.model.layers import Linear, norm

LEADING_READ_WEIGHT = 0.7  # at the start, of the stream that a sublayer reads most
INITIAL_EXCHANGE_LOGIT = -2.0  # of two streams at the start; far below it Sinkhorn is slow
INITIAL_SCALE = 0.01  # of the part of the weights that depends on the token (section 4.2)


class HyperConnection(nn.Module):
    """The streams around one sublayer.

    At the start the sublayer reads weights that sum to 1 and writes to all streams alike, so equal streams
    stay equal and the model is the plain one; each sublayer reads another stream most, which tells them
    apart.
    """

    def __init__(self, config: HyperConnectionsConfig, model_dim: int, index: int) -> None:
        super().__init__()
        self.num_streams = config.num_streams
        self.iterations = config.sinkhorn_iterations
        self.index = index
        self.scores = Linear(self.num_streams * model_dim, self.num_streams * (2 + self.num_streams))
        self.bias = nn.Parameter(torch.empty(self.num_streams * (2 + self.num_streams)))
        self.scales = nn.Parameter(torch.empty(3))

    @torch.no_grad()
    def init_constants(self) -> None:
        """Weights that do not depend on the token yet."""
        count = self.num_streams
        read = torch.full((count,), (1 - LEADING_READ_WEIGHT) / (count - 1))
        read[self.index % count] = LEADING_READ_WEIGHT
        exchange = torch.full((count, count), INITIAL_EXCHANGE_LOGIT).fill_diagonal_(0.0)
        self.bias.copy_(torch.cat((torch.logit(read), torch.zeros(count), exchange.flatten())))
        self.scales.fill_(INITIAL_SCALE)
        self.scores.weight.zero_()

    def weights(self, x_BTNC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reading weights BTN, writing weights BTN, mixing matrices BTNN (equations 7 and 8), float32."""
        scores = self.scores(norm(x_BTNC.flatten(-2))).float()
        count = self.num_streams
        read, write, mix = scores.split([count, count, count * count], dim=-1)
        bias_read, bias_write, bias_mix = self.bias.split([count, count, count * count])
        mixing = sinkhorn((self.scales[2] * mix + bias_mix).unflatten(-1, (count, count)), self.iterations)
        reading = torch.sigmoid(self.scales[0] * read + bias_read)
        return reading, 2 * torch.sigmoid(self.scales[1] * write + bias_write), mixing

    def forward(self, x_BTNC: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The streams after `sublayer`, which maps BTC to BTC."""
        reading, writing, mixing = (weights.to(x_BTNC.dtype) for weights in self.weights(x_BTNC))
        read_BTC = (reading.unsqueeze(-2) @ x_BTNC).squeeze(-2)
        written_BT1C = sublayer(read_BTC).unsqueeze(-2)
        return mixing @ x_BTNC + writing.unsqueeze(-1) * written_BT1C


def expand_streams(x_BTC: Tensor, config: HyperConnectionsConfig | None) -> Tensor:
    """The residual stream, or as many copies of it as there are streams, shape BTNC."""
    return x_BTC if config is None else x_BTC.unsqueeze(-2).expand(-1, -1, config.num_streams, -1)


def reduce_streams(x: Tensor, config: HyperConnectionsConfig | None) -> Tensor:
    """One residual stream again: the mean of all."""
    return x if config is None else x.mean(-2)
