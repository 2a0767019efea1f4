"""What changes during training, as functions of progress from 0 (start) to 1 (end)."""

from __future__ import annotations


def learning_rate_multiplier(
    progress: float, *, warmup_ratio: float, warmdown_ratio: float, final_lr_frac: float
) -> float:
    """Linear warm-up from 0, constant, linear warm-down to `final_lr_frac`."""
    if progress < warmup_ratio:
        return progress / warmup_ratio
    if warmdown_ratio == 0 or progress <= 1 - warmdown_ratio:
        return 1.0
    remaining = max(0.0, 1 - progress) / warmdown_ratio
    return remaining + (1 - remaining) * final_lr_frac


def muon_momentum(step: int, *, start: float = 0.85, end: float = 0.95, steps: int = 300) -> float:
    """Momentum rises over the first steps, while gradients still turn quickly."""
    return start + (end - start) * min(1.0, step / steps)


def weight_decay_multiplier(progress: float) -> float:
    """Linear to 0 at the end."""
    return max(0.0, 1.0 - progress)
