"""Smaller models: quantisation, training for it, distillation, packed files."""
