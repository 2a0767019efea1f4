"""The transformer in PyTorch; its configuration is pure data."""
