"""Training behind pre-training: on conversations."""
