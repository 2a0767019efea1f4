"""Distillation: losses of a student against a teacher's distributions, and caches of those."""
