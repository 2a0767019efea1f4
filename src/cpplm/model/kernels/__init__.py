"""Attention and loss backends."""
