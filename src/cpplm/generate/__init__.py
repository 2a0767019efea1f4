"""Inference: key-value cache, sampling, completions."""
