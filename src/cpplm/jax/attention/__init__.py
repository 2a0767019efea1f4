"""Attention in JAX behind one switch: `attend`."""

from cpplm.jax.attention.dispatch import KINDS, Kind, attend, check_row_lengths, resolve_attention

__all__ = ["KINDS", "Kind", "attend", "check_row_lengths", "resolve_attention"]
