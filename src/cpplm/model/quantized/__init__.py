"""Weights of few bits: codebooks, scales, layers that train with them, and their files."""
