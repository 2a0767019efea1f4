"""Sweeps: settings of a training command searched by many trials, each an ordinary run."""
