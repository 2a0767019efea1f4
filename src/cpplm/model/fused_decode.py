"""A transformer layer's step in decoding by a few fused kernels: few tokens, bfloat16, on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from cpplm.model.attention import Attention, ForwardContext
from cpplm.model.block import TransformerBlock
from cpplm.model.kernels.quantized_linear import CompactLinear
from cpplm.model.kernels.small_batch_linear import (
    MAX_TOKENS,
    DecodeWeight,
    fused_mlp,
    gemv,
    rope_write_cache,
    supports,
)
from cpplm.model.kv_cache.paged_view import PagedCacheView
from cpplm.model.layers import SwiGLU, norm

MAX_COMPACT_TOKENS = 64
"""Tokens of a step of weights of few bits alone; with more, calling operators takes no time to speak of."""


def enable_decode_kernels(block: TransformerBlock) -> None:
    """Compute few tokens by kernels from now on; with hyper-connections nothing changes.

    Queries, keys and values are fused already (`Attention.fuse_qkv`); weights are bfloat16 or of few bits.
    """
    qkv, mlp = block.attention.qkv, block.mlp
    assert qkv is not None  # noqa: S101  (see above)
    matrices = (mlp.gate, mlp.up, mlp.down) if isinstance(mlp, SwiGLU) else (mlp.up, mlp.down)
    of_mlp = [decode_weight(layer) for layer in matrices]
    qkv_EC, output_CE = decode_weight(qkv), decode_weight(block.attention.output)
    if block.connections is not None or len({_bits(weight) for weight in of_mlp}) > 1:
        return
    *gate, up_EC, down_CE = of_mlp
    is_compact = not any(isinstance(weight, Tensor) for weight in (qkv_EC, output_CE, up_EC))
    max_tokens = MAX_COMPACT_TOKENS if is_compact else MAX_TOKENS

    def decode_step_fused(x_BTC: Tensor, context: ForwardContext) -> Tensor | None:
        """The residual stream after attention and MLP; None where the kernels cannot serve."""
        if not supports(x_BTC, max_tokens) or block.attention.attend_in_place(context) is None:
            return None
        mixed_BTC = _attention_step(block.attention, x_BTC, context, qkv_EC, output_CE)
        return fused_mlp(mixed_BTC, up_EC, down_CE, *gate)

    block.decode_step_fused = decode_step_fused


def decode_weight(layer: nn.Module) -> DecodeWeight:
    """A linear layer's weight as the kernels take it."""
    return layer.compact if isinstance(layer, CompactLinear) else layer.get_parameter("weight")


def _bits(weight: DecodeWeight) -> int:
    return 16 if isinstance(weight, Tensor) else weight.bits


def _attention_step(
    attention: Attention,
    x_BTC: Tensor,
    context: ForwardContext,
    qkv_EC: DecodeWeight,
    output_CE: DecodeWeight,
) -> Tensor:
    """`x_BTC + attention(norm(x_BTC))`, with a cache in `context`."""
    cache = context.cache
    assert isinstance(cache, PagedCacheView)  # noqa: S101  (no other attends in place)
    split = (attention.num_heads + attention.num_kv_heads) * attention.head_dim
    if attention.value_embedding is None:
        projected_BTE = gemv(x_BTC, qkv_EC, normalized=True)
        value_BTE = projected_BTE[..., split:]
    else:
        normed_BTC = norm(x_BTC)
        projected_BTE = gemv(normed_BTC, qkv_EC)
        value_BTE = attention.add_value_embedding(projected_BTE[..., split:], normed_BTC, context.ids_BT)
    query_BTHD = rope_write_cache(
        projected_BTE, value_BTE, attention.num_heads, context.angles, attention.qk_scale,
        cache.new_slots(attention.key_cache), cache.slots(attention.key_cache),
        cache.slots(attention.value_cache), normalized=attention.qk_norm,
    )  # fmt: skip
    mixed_BTHD = cache.attend_paged(query_BTHD, attention.key_cache, attention.value_cache, attention.window)
    return gemv(mixed_BTHD.flatten(-2), output_CE, residual=x_BTC)
