"""What a window means, in one place.

In `ModelConfig`, a window of w lets a token see itself and the w tokens before it: 0 <= i - j <= w. So count
JAX's `local_window_size=(left, 0)`, splash attention's `LocalMask` and FlashAttention's `window_size`:
neighbours to the left, the token itself not among them. (A mask of `i - j < n` sees n tokens in all: a
window of n - 1.)
"""

from __future__ import annotations

from cpplm.core.errors import UserError


def left_window(window: int | None, length: int) -> int | None:
    """How many earlier tokens are visible in a row of `length`; None where that is all of them.

    Raises:
        UserError: a negative window.
    """
    if window is None:
        return None
    if window < 0:
        raise UserError(
            f"an attention window of {window}", fix="Use 0 or more earlier tokens, or None for all."
        )
    return None if window >= length - 1 else window
