"""Causal attention with an optional sliding window.

Shapes: B batch, H query heads, G key-value heads, T query tokens, S key tokens, D head width.
Key j is visible to query i, both counted from the start of the sequence, when 0 <= i - j <= window.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def visible(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """Mask_TS, True where a query may look; the last query is at the position of the last key."""
    query_T1 = torch.arange(num_keys - num_queries, num_keys, device=device).unsqueeze(1)
    distance_TS = query_T1 - torch.arange(num_keys, device=device)
    mask_TS = distance_TS >= 0
    return mask_TS if window is None else mask_TS & (distance_TS <= window)


def attention(
    query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, *, window: int | None = None
) -> Tensor:
    """Scaled dot-product attention of the last T positions over S keys.

    Args:
        query_BHTD: queries of the newest T tokens.
        key_BGSD: keys of all S tokens so far, G dividing H.
        value_BGSD: their values.
        window: earlier tokens visible besides the token itself; None for all.

    Returns:
        The mixed values, shape BHTD.
    """
    if window is not None and query_BHTD.size(2) == 1:  # decoding: the window's keys are all there is
        key_BGSD, value_BGSD = key_BGSD[:, :, -window - 1 :], value_BGSD[:, :, -window - 1 :]
    num_queries, num_keys = query_BHTD.size(2), key_BGSD.size(2)
    if window is not None and window >= num_keys - 1:
        window = None
    causal = window is None and num_queries == num_keys
    alone = window is None and num_queries == 1  # the newest token sees everything
    mask_TS = None if causal or alone else visible(num_queries, num_keys, window, query_BHTD.device)
    return F.scaled_dot_product_attention(
        query_BHTD,
        key_BGSD,
        value_BGSD,
        attn_mask=mask_TS,
        is_causal=causal and num_queries > 1,
        enable_gqa=query_BHTD.size(1) != key_BGSD.size(1),
    )
