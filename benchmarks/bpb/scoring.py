"""Bits per byte of whole files, the same for any model and tokenizer, and curves of it.

Each file is scored by itself, in overlapping windows (`evaluate/sliding_window.py`). The cross-entropies in
bits are divided by the bytes of the files, the same for everyone; no end of a text is predicted.

A license notice at a file's head is read by the model like all else, but it is no code that anyone wants
written: it counts in `Score.whole` only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cpplm.evaluate.sliding_window import EncodedText, Losses, score_in_windows

_COMMENT = re.compile(r"\s*(?:/\*.*?\*/|//[^\n]*\n?)", re.DOTALL)
_LICENSE = re.compile(r"copyright|licen[sc]e|warrant", re.IGNORECASE)


@dataclass(frozen=True)
class Score:
    """Bits per byte of the code, and of the whole files: with the license notices at their heads."""

    code: float
    whole: float


def notice_length(text: str) -> int:
    """The characters up to the end of the last comment before any code that speaks of a license."""
    end = length = 0
    while comment := _COMMENT.match(text, end):
        end = comment.end()
        if _LICENSE.search(comment.group()):
            length = end
    return length


@dataclass(frozen=True)
class HeldOut:
    """Held-out files in the tokens of a contender, and how many bytes of each are a license notice.

    A token across the end of a notice counts as code.
    """

    documents: list[EncodedText]
    notice_bytes: list[int]
    start_id: int
    seq_len: int
    rows: int

    @classmethod
    def of(
        cls, texts: Sequence[str], encoded: Sequence[Sequence[int]], *, token_bytes: NDArray[np.integer],
        start_id: int, seq_len: int, rows: int,
    ) -> HeldOut:  # fmt: skip
        """From texts and their ids; `token_bytes` has the bytes of each token of the vocabulary."""
        documents = [EncodedText(ids, np.cumsum(token_bytes[np.asarray(ids, dtype=int)])) for ids in encoded]
        notices = [len(text[: notice_length(text)].encode()) for text in texts]
        return cls(documents, notices, start_id, seq_len, rows)

    @torch.no_grad()
    def score(self, losses: Losses, device: torch.device) -> Score:
        """Score a model that gives nats for inputs and targets on its device."""
        found = score_in_windows(
            self.documents, lambda inputs, targets: losses(inputs.to(device), targets.to(device)),
            start_id=self.start_id, context=self.seq_len, rows=self.rows,
        )  # fmt: skip
        whole = code = 0.0
        for tokens, notice in zip(found, self.notice_bytes, strict=True):
            whole += float(tokens.bits.sum())
            code += float(tokens.bits[tokens.ends > notice].sum())
        size = sum(int(document.ends[-1]) for document in self.documents)
        return Score(code / (size - sum(self.notice_bytes)), whole / size)


class Curve:
    """Bits per byte at evenly spaced times of training, measured while the clock stands still."""

    def __init__(self, seconds: float, points: int, measure: Callable[[], Score]) -> None:
        """Measure now, and `points` times up to the end after `seconds`."""
        self._seconds, self._points, self._measured = seconds, points, 0
        self._measure = measure
        self._scores: list[tuple[float, Score]] = [(0.0, measure())]

    def reached(self, seconds: float) -> None:
        """The clock after a step: measure if it has passed another point."""
        passed = min(self._points, math.floor(self._points * seconds / self._seconds))
        if passed > self._measured:
            self._scores.append((seconds, self._measure()))
            self._measured = passed

    def figures(self) -> dict[str, Any]:
        """Pairs of seconds and bits per byte of code and of whole files, and the last of both."""
        return {
            "curve": [(seconds, score.code) for seconds, score in self._scores],
            "whole_files_curve": [(seconds, score.whole) for seconds, score in self._scores],
            "bits_per_byte": self._scores[-1][1].code,
            "whole_files_bits_per_byte": self._scores[-1][1].whole,
        }
