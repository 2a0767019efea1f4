"""Untrusted programs, run isolated and limited."""
