"""The same model and trainer for TPUs, in JAX."""
