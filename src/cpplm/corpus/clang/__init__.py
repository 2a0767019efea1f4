"""Exact name resolution with libclang (`--semantic`)."""
