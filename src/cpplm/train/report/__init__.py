"""Run logs read back: HTML pages, curves, comparisons."""
