"""Attention in JAX: one layer, and the kernels behind one switch."""
