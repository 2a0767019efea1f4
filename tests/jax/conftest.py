"""JAX on eight virtual devices of the CPU, whatever else this machine has."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of a test is compiling: for tiny arrays on a CPU, optimised code is not worth its time.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 \
--xla_llvm_disable_expensive_passes=true"

import tests.jax.devices  # noqa: F401  (before anything asks JAX for its devices)
