"""Reinforcement learning: answers are sampled, graded, and made likelier or less likely."""
