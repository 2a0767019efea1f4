"""What the tests share with those of training."""

from tests.train.conftest import activations_are_traced_once

__all__ = ["activations_are_traced_once"]  # a fixture of each test here
