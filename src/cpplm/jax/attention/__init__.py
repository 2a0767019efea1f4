"""Attention in JAX behind one switch: `attend`."""

from cpplm.jax.attention.dispatch import KINDS, Kind, attend, attention_kind, check_rows

__all__ = ["KINDS", "Kind", "attend", "attention_kind", "check_rows"]
