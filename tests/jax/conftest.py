"""JAX on eight virtual devices of the CPU, whatever else this machine has."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import tests.jax.devices  # noqa: F401  (before anything asks JAX for its devices)
