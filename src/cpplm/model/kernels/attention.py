"""Causal attention with an optional sliding window, by the fastest kernel that can do what is asked.

Shapes: B batch, H query heads, G key-value heads, T query tokens, S key tokens, D head width.
Key j is visible to query i, both counted from the start of the sequence, when 0 <= i - j <= window and both
are of the same document; the last query is at the position of the last key.

| backend | where                         | window and documents cost                           |
|---------|-------------------------------|-----------------------------------------------------|
| sdpa    | everywhere                    | a mask of T x S, all of which is computed           |
| chunked | everywhere                    | only keys in reach are touched, 128 queries at once |
| flex    | CUDA; CPU without gradients   | blocks of 128 x 128 that are hidden are left out    |
| flash2  | CUDA, bf16 and fp16           | windows at the cost of what is visible              |
| flash3  | CUDA on Hopper, bf16 and fp16 | likewise                                            |

`auto` takes, see `preference`: without anything to mask, flash3 where it is installed, else sdpa, which is
PyTorch's own flash attention. With a window or documents, on CUDA: flash3, flash2, then flex when compiling,
then sdpa; elsewhere chunked from 512 queries on, below that sdpa. Time of chunked over that of sdpa, forward
and backward, one thread of an AMD EPYC, torch 2.13, float32, four heads of 64, 2026-11-21:

| tokens | window half the length | other                        |
|--------|------------------------|------------------------------|
| 256    | 1.30                   |                              |
| 512    | 0.85                   | 3 documents, no window: 0.63 |
| 1024   | 0.64                   |                              |
| 2048   | 0.51                   | 6 documents, no window: 0.18 |
| 8192   | 0.46                   | window 1024: 0.15            |
| 16384  | 0.38                   | window 1024: 0.13            |

flash2 and flash3 were written from their documentation and have not been seen to run on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from cpplm.model.kernels.chunked_attention import chunked_attention
from cpplm.model.kernels.masks import Visibility, visible
from cpplm.model.kernels.registry import (
    HALF,
    KernelBackend,
    KernelRequest,
    KernelTable,
    OptionalImport,
    compute_capability,
)

CHUNKED_FROM = 512  # queries, see above
FEW_QUERIES = 3  # for so few, sdpa in half precision takes three times as long on a CPU as in float32
HOPPER = 9  # major compute capability; FlashAttention 3 uses instructions of this generation alone


@dataclass(frozen=True)
class AttentionRequest(KernelRequest):
    """One call of `attention`, without its tensors."""

    head_dim: int
    queries: int
    keys: int
    window: int | None
    documents: bool

    @classmethod
    def training(
        cls,
        device: torch.device,
        dtype: torch.dtype,
        *,
        head_dim: int,
        length: int,
        window: int | None = None,
        documents: bool = False,
        compiling: bool = False,
    ) -> AttentionRequest:
        """The call that training makes, to check a person's choice before anything is compiled."""
        if window is not None and window >= length - 1:
            window = None
        capability = compute_capability(device)
        return cls(
            device.type, dtype, True, compiling, capability, head_dim, length, length, window, documents
        )

    @property
    def masked(self) -> bool:
        """True if more than causality hides keys, or causality itself needs a mask."""
        return self.window is not None or self.documents or 1 < self.queries != self.keys


def attention(
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    *,
    window: int | None = None,
    documents_BS: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Scaled dot-product attention of the last T positions over S keys.

    Args:
        query_BHTD: queries of the newest T tokens.
        key_BGSD: keys of all S tokens so far, G dividing H; same dtype.
        value_BGSD: their values.
        window: earlier tokens visible besides the token itself; None for all.
        documents_BS: which document each key belongs to, integers; None for one document. A query sees only
            keys of its own document, `documents_BS[:, S - T:]`.
        backend: "auto", "sdpa", "chunked", "flex", "flash2" or "flash3".

    Returns:
        The mixed values, shape BHTD, dtype of the query.

    Raises:
        UserError: that backend does not exist or cannot do this.
    """
    if window is not None and query_BHTD.size(2) == 1:  # decoding: the window's keys are all there is
        key_BGSD, value_BGSD = key_BGSD[:, :, -window - 1 :], value_BGSD[:, :, -window - 1 :]
        documents_BS = None if documents_BS is None else documents_BS[:, -window - 1 :]
    if window is not None and window >= key_BGSD.size(2) - 1:
        window = None
    simple = query_BHTD.size(2) == 1 and documents_BS is None
    if simple and backend == "auto" and query_BHTD.device.type == "cpu":
        # What the choice below comes to; choosing takes as long as attention to a hundred keys.
        return _sdpa(query_BHTD, key_BGSD, value_BGSD, Visibility(None, None))
    request = AttentionRequest(
        device=query_BHTD.device.type,
        dtype=query_BHTD.dtype,
        gradient=torch.is_grad_enabled()
        and (query_BHTD.requires_grad or key_BGSD.requires_grad or value_BGSD.requires_grad),
        compiling=torch.compiler.is_compiling(),
        capability=compute_capability(query_BHTD.device),
        head_dim=query_BHTD.size(3),
        queries=query_BHTD.size(2),
        keys=key_BGSD.size(2),
        window=window,
        documents=documents_BS is not None,
    )
    run = ATTENTION.select(request, backend).run
    return run(query_BHTD, key_BGSD, value_BGSD, Visibility(window, documents_BS))


def preference(request: AttentionRequest) -> tuple[str, ...]:
    """Names of backends, the fastest first, for this request."""
    if not request.masked:
        return ("flash3", "sdpa", "chunked")
    if request.device == "cuda":
        # Outside torch.compile every new length would compile flex anew.
        return ("flash3", "flash2", *(("flex",) if request.compiling else ()), "sdpa", "chunked")
    return ("chunked", "sdpa") if request.queries >= CHUNKED_FROM else ("sdpa", "chunked")


def _sdpa(query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, seen: Visibility) -> Tensor:
    window, documents_BS = seen
    num_queries, num_keys, groups = query_BHTD.size(2), key_BGSD.size(2), key_BGSD.size(1)
    if num_queries <= FEW_QUERIES and query_BHTD.device.type == "cpu" and query_BHTD.dtype in HALF:
        return _sdpa(query_BHTD.float(), key_BGSD.float(), value_BGSD.float(), seen).to(query_BHTD.dtype)
    if num_queries == 1 and groups != query_BHTD.size(1):
        # Heads that share keys become queries of one head, so that each key is read once.
        query_BGRD = query_BHTD.view(query_BHTD.size(0), groups, -1, query_BHTD.size(3))
        mask = None if documents_BS is None else visible(1, num_keys, None, key_BGSD.device, documents_BS)
        mixed_BGRD = F.scaled_dot_product_attention(query_BGRD, key_BGSD, value_BGSD, attn_mask=mask)
        return mixed_BGRD.reshape_as(query_BHTD)  # CUDA kernels give other strides
    plain = window is None and documents_BS is None
    causal = plain and num_queries == num_keys
    alone = plain and num_queries == 1  # the newest token sees everything
    mask = None
    if not (causal or alone):
        mask = visible(num_queries, num_keys, window, query_BHTD.device, documents_BS)
    return F.scaled_dot_product_attention(
        query_BHTD,
        key_BGSD,
        value_BGSD,
        attn_mask=mask,
        is_causal=causal and num_queries > 1,
        enable_gqa=query_BHTD.size(1) != key_BGSD.size(1),
    )


def _flex(query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, seen: Visibility) -> Tensor:
    """FlexAttention (Dong et al. 2024, arXiv 2412.05496), part of PyTorch."""
    window, documents_BS = seen
    if not torch.is_grad_enabled():  # on CPU it refuses inputs that could take a gradient
        query_BHTD, key_BGSD, value_BGSD = query_BHTD.detach(), key_BGSD.detach(), value_BGSD.detach()
    earlier, num_keys = key_BGSD.size(2) - query_BHTD.size(2), key_BGSD.size(2)

    def sees(batch: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query + earlier - key
        seen = distance >= 0
        if window is not None:
            seen = seen & (distance <= window)
        if documents_BS is not None:
            seen = seen & (documents_BS[batch, query + earlier] == documents_BS[batch, key])
        return seen

    batch = None if documents_BS is None else query_BHTD.size(0)
    blocks = create_block_mask(sees, batch, None, query_BHTD.size(2), num_keys, device=query_BHTD.device)
    # Alone on the CPU it runs without being compiled, as slowly as a mask; on a GPU it must be compiled.
    already = torch.compiler.is_compiling() or query_BHTD.device.type == "cpu"
    run: Any = flex_attention
    if not already:
        run = _compiled_flex()
    return run(
        query_BHTD, key_BGSD, value_BGSD, block_mask=blocks, enable_gqa=query_BHTD.size(1) != key_BGSD.size(1)
    )


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """Made when it is first needed: the compiler takes seconds to import."""
    return torch.compile(flex_attention)


def _flash(
    library: OptionalImport, query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, seen: Visibility
) -> Tensor:
    """FlashAttention 2 (Dao 2023, arXiv 2307.08691) or 3 (Shah et al. 2024, arXiv 2407.08608).

    Not seen to run: neither was installed where a GPU was. Both count keys from the last one, as we do; time
    is before heads. Documents were refused.
    """
    mixed = library(
        query_BHTD.transpose(1, 2),
        key_BGSD.transpose(1, 2),
        value_BGSD.transpose(1, 2),
        causal=True,
        window_size=(-1 if seen.window is None else seen.window, 0),
    )
    mixed_BTHD: Tensor = mixed[0] if isinstance(mixed, tuple) else mixed  # older versions of 3 add the sums
    return mixed_BTHD.transpose(1, 2)


def _flex_refuses(request: AttentionRequest) -> str:
    if request.device == "cpu" and request.gradient:
        return "has no backward pass on cpu"
    if request.dtype == torch.float64 and (request.device == "cuda" or request.compiling):
        return "computes no float64 when compiled"
    return ""


def _flash_refuses(request: AttentionRequest) -> str:
    if request.documents:
        return "cannot keep documents apart without packing them first"
    if request.head_dim > 256 or request.head_dim % 8:
        return f"needs a head width that is a multiple of 8 up to 256, not {request.head_dim}"
    return ""


def _flash3_refuses(request: AttentionRequest) -> str:
    if request.capability[0] != HOPPER:
        return f"needs a Hopper GPU (9.x), this one is {request.capability[0]}.{request.capability[1]}"
    return _flash_refuses(request)


FLASH2 = OptionalImport.load("flash_attn", "flash_attn_func")
FLASH3 = OptionalImport.load("flash_attn_interface", "flash_attn_func")
BACKENDS: dict[str, KernelBackend[AttentionRequest]] = {
    backend.name: backend
    for backend in (
        KernelBackend("sdpa", _sdpa),
        KernelBackend("chunked", chunked_attention),
        KernelBackend("flex", _flex, devices=("cuda", "cpu"), refusal=_flex_refuses),
        KernelBackend(
            "flash2", functools.partial(_flash, FLASH2), ("cuda",), HALF, (8, 0), FLASH2, _flash_refuses
        ),
        KernelBackend(
            "flash3", functools.partial(_flash, FLASH3), ("cuda",), HALF, (9, 0), FLASH3, _flash3_refuses
        ),
    )
}
ATTENTION = KernelTable("attention", BACKENDS, preference)
