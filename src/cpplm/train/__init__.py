"""Pre-training: the loop, checkpoints, validation, the run page."""
