"""Parts of a cpplm model: what it keeps of earlier tokens, memories of n-grams, several residual streams.

Shapes: B batch, T new tokens, Q some of them, S keys in reach, C hidden_size, N streams, K tables, X
anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .configuration_cpplm import CpplmConfig

HASH_BITS = 32


def norm(x: Tensor) -> Tensor:
    """RMSNorm over the last dimension, without weights."""
    return F.rms_norm(x, (x.size(-1),))


def with_all_layers(cache: DynamicCache, config: CpplmConfig) -> None:
    """Give a cache of `transformers` a layer for everything that the model keeps.

    Behind the layers of keys and values come those of `CpplmConfig.kept_rows`, with rows as keys and nothing
    as values, so that everything that `transformers` does to a cache (reordering, cropping) is done to them.
    """
    if not isinstance(cache, DynamicCache):
        raise TypeError(f"this model keeps what it needs in a DynamicCache, not in {type(cache).__name__}")
    rows = config.kept_rows()
    if len(cache.layers) == config.num_hidden_layers + len(rows):
        return
    if cache.get_seq_length() > 0:
        raise ValueError("this cache was not filled by this model")
    recording = any(getattr(layer, "record_past", False) for layer in cache.layers)
    reaches = [config.earlier(layer) for layer in range(config.num_hidden_layers)] + list(rows.values())
    cache.layers = [
        DynamicLayer() if reach is None else DynamicSlidingWindowLayer(sliding_window=reach + 1)
        for reach in reaches
    ]
    if recording:
        cache.activate_past_recording()


class Past:
    """The tokens of one forward pass and those before them, which a cache may hold."""

    def __init__(
        self, config: CpplmConfig, cache: DynamicCache | None, length: int, padding_mask: Tensor | None
    ) -> None:
        """Look at a cache.

        Args:
            config: of the model.
            cache: what came before; takes in what is new.
            length: new tokens.
            padding_mask: over all tokens so far, 0 for padding, which may only stand in front.
        """
        self.cache, self.length = cache, length
        self.first = 0 if cache is None else cache.get_seq_length()
        self._places = {
            name: config.num_hidden_layers + place for place, name in enumerate(config.kept_rows())
        }
        self._real_BS: Tensor | None = None
        if padding_mask is not None:
            if padding_mask.dim() != 2 or padding_mask.size(1) != self.first + length:
                raise ValueError(
                    f"attention_mask has the shape {tuple(padding_mask.shape)}; it must have a row per text "
                    f"and a column for each of the {self.first + length} tokens so far"
                )
            if not bool(padding_mask.all()):
                self._real_BS = padding_mask.bool()

    def distances(self, window: int | None, device: torch.device, rows: slice = slice(None)) -> Tensor:
        """How far each key in reach lies before some of the new tokens, shape QS."""
        earlier = self.first if window is None else min(self.first, window)
        keys_S = torch.arange(earlier + self.length, device=device)
        return keys_S[earlier:][rows].unsqueeze(1) - keys_S

    def visible(self, window: int | None, distance_QS: Tensor) -> Tensor:
        """True where a query may look, shape (1 or B, 1, Q, S); padding sees itself."""
        mask = distance_QS >= 0
        if window is not None:
            mask = mask & (distance_QS <= window)
        mask = mask[None, None]
        if self._real_BS is None:
            return mask
        return (mask & self._real_BS[:, None, None, -distance_QS.size(1) :]) | (distance_QS == 0)

    def mask(self, window: int | None, device: torch.device) -> Tensor | None:
        """`visible` for all queries; None where each of them sees all keys up to itself."""
        earlier = self.first if window is None else min(self.first, window)
        whole = self.length == 1 or (earlier == 0 and (window is None or self.length <= window + 1))
        if self._real_BS is None and whole:
            return None
        return self.visible(window, self.distances(window, device))

    def kept(self, name: str, rows_BTX: Tensor) -> Tensor:
        """The new rows behind those that the cache still holds; it takes them in."""
        if self.cache is None:
            return rows_BTX
        rows_B1TX = rows_BTX.unsqueeze(1)
        rows_B1SX, _ = self.cache.update(rows_B1TX, rows_B1TX[..., :0], self._places[name])
        return rows_B1SX.squeeze(1)

    def recent(self, name: str, rows_BTX: Tensor, count: int) -> Tensor:
        """The new rows behind the `count` before them: zero for padding and before the start."""
        if self._real_BS is not None:
            rows_BTX = rows_BTX.masked_fill(~self._real_BS[:, -self.length :, None], 0)
        rows_BSX = self.kept(name, rows_BTX)
        return F.pad(rows_BSX, (0, 0, count + self.length - rows_BSX.size(1), 0))


class NgramMemory(nn.Module):
    """Hashed n-gram embeddings, gated by the hidden state (Cheng et al. 2026, arXiv 2601.07372).

    `canonical_V` maps each id to the one that stands for its like.
    """

    def __init__(self, config: CpplmConfig, layer: int) -> None:
        super().__init__()
        settings: dict[str, Any] = config.ngrams or {}
        place = settings["layers"].index(layer)
        rows = torch.tensor(settings["table_rows"][place])
        self.longest = max(settings["orders"])
        self._ids, self._gated = f"ids {layer}", f"gated {layer}"
        width = settings["head_dim"]
        self.table = nn.Embedding(sum(settings["table_rows"][place]), width)
        self.key = nn.Linear(width * len(rows), config.hidden_size, bias=False)
        self.value = nn.Linear(width * len(rows), config.hidden_size, bias=False)
        self.taps = nn.Parameter(torch.zeros(settings["taps"], config.hidden_size))
        self.register_buffer("canonical_V", torch.arange(config.vocab_size))
        self.register_buffer("rows_K", rows)
        self.register_buffer("offsets_K", rows.cumsum(0) - rows)
        self.register_buffer("multipliers_KN", torch.tensor(settings["multipliers"][place]))
        self.canonical_V: Tensor
        self.rows_K: Tensor
        self.offsets_K: Tensor
        self.multipliers_KN: Tensor

    def forward(self, x_BTC: Tensor, ids_BT: Tensor, past: Past) -> Tensor:
        """What the memory adds to the residual stream, shape BTC."""
        found_BTX = self.table(self._addresses(ids_BT, past)).flatten(-2)
        score_BT1 = (x_BTC * norm(self.key(found_BTX))).sum(-1, keepdim=True) * x_BTC.size(-1) ** -0.5
        gated_BTC = score_BT1.float().sigmoid().to(x_BTC.dtype) * self.value(found_BTX)
        return gated_BTC + F.silu(self._convolve(norm(gated_BTC), past))

    def _addresses(self, ids_BT: Tensor, past: Past) -> Tensor:
        """Rows of the tables, shape BTK: products, their exclusive or, mixed, modulo the sizes."""
        back, length = self.longest - 1, ids_BT.size(1)
        ids_BS1 = past.recent(self._ids, self.canonical_V[ids_BT].unsqueeze(-1), back)
        hashed_BTK = torch.zeros((), dtype=torch.int64, device=ids_BT.device)
        for distance in range(self.longest):
            ids_BT1 = ids_BS1[:, back - distance : back - distance + length] + 1
            hashed_BTK = hashed_BTK ^ ((ids_BT1 * self.multipliers_KN[:, distance]) & (2**HASH_BITS - 1))
        hashed_BTK = hashed_BTK ^ (hashed_BTK >> 15)
        return hashed_BTK % self.rows_K + self.offsets_K

    def _convolve(self, x_BTC: Tensor, past: Past) -> Tensor:
        """Each channel alone, over the token itself and every `longest`-th before it."""
        count, length = self.taps.size(0), x_BTC.size(1)
        reach = self.longest * (count - 1)
        rows_BSC = past.recent(self._gated, x_BTC, reach) if reach else x_BTC
        total = self.taps[0] * rows_BSC[:, reach : reach + length]
        for tap in range(1, count):
            first = reach - self.longest * tap
            total = total + self.taps[tap] * rows_BSC[:, first : first + length]
        return total


class Induction(nn.Module):
    """Tells each token what followed the longest earlier match of the last tokens (arXiv 2401.12973)."""

    def __init__(self, config: CpplmConfig) -> None:
        super().__init__()
        self.lengths: list[int] = config.induction_lengths or []
        self.mix = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.scales = nn.Parameter(torch.ones(len(self.lengths)))

    def find(self, ids_BT: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        """The token that followed the match, and which length matched, from 1; 0 for none. Both BT."""
        # 0 stands before the start, and for padding
        ids_BS = past.recent("induction ids", ids_BT.unsqueeze(-1) + 1, past.first).squeeze(-1)
        places_S = torch.arange(ids_BS.size(1), device=ids_BS.device)
        matched_BTS = places_S[past.first :, None] > places_S
        found_BT = lengths_BT = torch.zeros_like(ids_BT)
        for back in range(max(self.lengths)):
            earlier_BS = F.pad(ids_BS, (back, 0), value=-1)[:, : ids_BS.size(1)]
            matched_BTS = matched_BTS & (earlier_BS[:, past.first :, None] == earlier_BS[:, None])
            if back + 1 in self.lengths:
                latest_BT = (matched_BTS * (places_S + 1)).amax(-1)
                followed_BT = ids_BS.gather(1, latest_BT)
                found_BT = torch.where(latest_BT > 0, followed_BT, found_BT)
                number = self.lengths.index(back + 1) + 1
                lengths_BT = torch.where(latest_BT > 0, number, lengths_BT)
        return (found_BT - 1).clamp(min=0), lengths_BT

    def forward(self, told_BTC: Tensor, lengths_BT: Tensor) -> Tensor:
        """What the embeddings take in, shape BTC, of the embeddings of what followed."""
        return F.pad(self.scales, (1, 0))[lengths_BT].unsqueeze(-1) * self.mix(told_BTC)


class NgramBranch(nn.Module):
    """Weighted sums of the last n states, for each order n, in a bottleneck."""

    def __init__(self, config: CpplmConfig, layer: int) -> None:
        super().__init__()
        settings: dict[str, Any] = config.ngrams or {}
        self.orders: list[int] = settings["orders"]
        self._states = f"states {layer}"
        width = settings["bottleneck_dim"]
        self.reduce = nn.Linear(config.hidden_size, width, bias=False)
        self.expand = nn.Linear(width, config.hidden_size, bias=False)
        self.taps = nn.Parameter(torch.zeros(sum(self.orders), width))

    def forward(self, x_BTC: Tensor, ids_BT: Tensor, past: Past) -> Tensor:
        """What the branch adds to the residual stream, shape BTC."""
        del ids_BT  # it looks at states alone
        reach, length = max(self.orders) - 1, x_BTC.size(1)
        rows_BSX = past.recent(self._states, self.reduce(x_BTC), reach)
        back_BTX = [rows_BSX[:, reach - back : reach - back + length] for back in range(reach + 1)]
        total = torch.zeros((), dtype=x_BTC.dtype, device=x_BTC.device)
        for order, taps in zip(self.orders, self.taps.split(self.orders), strict=True):
            weighted = torch.stack([back_BTX[back] * taps[back] for back in range(order)])
            total = total + F.silu(weighted.sum(0))
        return self.expand(total)


class Connection(nn.Module):
    """Residual streams around one sublayer, mixed by doubly stochastic matrices (mHC, arXiv 2512.24880)."""

    def __init__(self, config: CpplmConfig) -> None:
        super().__init__()
        settings: dict[str, int] = config.streams or {}
        self.count, self.iterations = settings["count"], settings["iterations"]
        weights = self.count * (2 + self.count)
        self.scores = nn.Linear(self.count * config.hidden_size, weights, bias=False)
        self.bias = nn.Parameter(torch.zeros(weights))
        self.scales = nn.Parameter(torch.zeros(3))

    def forward(self, x_BTNC: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The streams after `sublayer`, which maps BTC to BTC."""
        sizes = [self.count, self.count, self.count**2]
        scores = self.scores(norm(x_BTNC.flatten(-2))).float().split(sizes, dim=-1)
        read, write, mix = (
            scale * score + bias
            for scale, score, bias in zip(
                self.scales.float(), scores, self.bias.float().split(sizes), strict=True
            )
        )
        mixing = self._doubly_stochastic(mix.unflatten(-1, (self.count, self.count))).to(x_BTNC.dtype)
        reading = read.sigmoid().to(x_BTNC.dtype).unsqueeze(-2)
        writing = (2 * write.sigmoid()).to(x_BTNC.dtype).unsqueeze(-1)
        return mixing @ x_BTNC + writing * sublayer((reading @ x_BTNC).squeeze(-2)).unsqueeze(-2)

    def _doubly_stochastic(self, logits: Tensor) -> Tensor:
        """Columns and rows are normalized in turn (Sinkhorn and Knopp 1967)."""
        matrix = (logits - logits.amax(dim=(-2, -1), keepdim=True)).exp()
        for _ in range(self.iterations):
            matrix = matrix / matrix.sum(-2, keepdim=True)
            matrix = matrix / matrix.sum(-1, keepdim=True)
        return matrix
