"""Paged key-value cache: specification, block pool, tensors, and the view of one forward pass."""
