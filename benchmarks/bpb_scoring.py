"""Bits per byte of whole files, the same for any model and tokenizer.

Each file is scored by itself: a token that begins a document (no bytes, not scored), then the file's tokens
in windows of the context length T that move on by T/2. Every token is scored once, in the first window that
has it: behind at least T/2 earlier tokens, or all that there are. The sum of cross-entropies in bits is
divided by the bytes of the files, which are the same for everyone; no end of a text is predicted.

A licence notice at a file's head is read by the model like all else, but it is no code that anyone wants
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
from torch import Tensor

from cpplm.tokenizer.special_tokens import IGNORE_INDEX

# Rows of a batch are cut to its longest one, rounded up to this.
_LENGTH_MULTIPLE = 128
_COMMENT = re.compile(r"\s*(?:/\*.*?\*/|//[^\n]*\n?)", re.DOTALL)
_LICENCE = re.compile(r"copyright|licen[sc]e|warrant", re.IGNORECASE)


@dataclass(frozen=True)
class Score:
    """Bits per byte of the code, and of the whole files: with the licence notices at their heads."""

    code: float
    whole: float


def notice_length(text: str) -> int:
    """The characters up to the end of the last comment before any code that speaks of a licence."""
    end = length = 0
    while found := _COMMENT.match(text, end):
        end = found.end()
        if _LICENCE.search(found.group()):
            length = end
    return length


@dataclass(frozen=True)
class Window:
    """Tokens, and what follows each of them; `IGNORE_INDEX` where that was scored before.

    `notice`: how many of the targets belong to the licence notice.
    """

    inputs: list[int]
    targets: list[int]
    notice: int


def windows(ids: Sequence[int], start_id: int, seq_len: int, notice: int = 0) -> list[Window]:
    """All windows of one file, whose first `notice` tokens are a licence notice."""
    stream = [start_id, *ids]
    half = seq_len // 2
    found = []
    begin = 0
    while True:
        targets = list(ids[begin : begin + seq_len])
        if begin:
            targets[: seq_len - half] = [IGNORE_INDEX] * min(seq_len - half, len(targets))
        found.append(Window(stream[begin : begin + len(targets)], targets, max(0, notice - begin)))
        if begin + seq_len >= len(ids):
            return found
        begin += half


@dataclass(frozen=True)
class HeldOut:
    """Held-out files as batches of (inputs, targets, in_notice), each of shape BT; the last one is boolean.

    `num_bytes` of their text, `notice_bytes` of them in licence notices.
    """

    batches: list[tuple[Tensor, Tensor, Tensor]]
    num_bytes: int
    notice_bytes: int

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        encoded: Sequence[Sequence[int]],
        *,
        token_bytes: NDArray[np.integer],
        start_id: int,
        seq_len: int,
        rows: int,
    ) -> HeldOut:
        """From texts and their ids: windows of similar length share a batch of at most `rows`.

        Args:
            texts: the files.
            encoded: the ids of each.
            token_bytes: bytes of each token of the vocabulary; one across the end of a notice counts as code.
            start_id: begins a document.
            seq_len: T.
            rows: B.
        """
        notices = [len(text[: notice_length(text)].encode()) for text in texts]
        found = [
            window
            for ids, notice in zip(encoded, notices, strict=True)
            for window in windows(ids, start_id, seq_len, _tokens_within(ids, notice, token_bytes))
        ]
        found.sort(key=lambda window: len(window.inputs), reverse=True)
        batches = []
        for begin in range(0, len(found), rows):
            batch = found[begin : begin + rows]
            longest = len(batch[0].inputs)
            length = min(seq_len, -(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE)
            inputs = torch.full((len(batch), length), start_id)
            targets = torch.full((len(batch), length), IGNORE_INDEX)
            for row, window in enumerate(batch):
                inputs[row, : len(window.inputs)] = torch.tensor(window.inputs)
                targets[row, : len(window.targets)] = torch.tensor(window.targets)
            ends = torch.tensor([window.notice for window in batch])
            batches.append((inputs, targets, torch.arange(length) < ends[:, None]))
        return cls(batches, sum(len(text.encode()) for text in texts), sum(notices))

    @torch.no_grad()
    def score(self, losses: Callable[[Tensor, Tensor], Tensor], device: torch.device) -> Score:
        """Score a model.

        Args:
            losses: gives nats, shape BT, for inputs and targets; 0 where the target is `IGNORE_INDEX`.
            device: where it wants its tensors.
        """
        whole = code = 0.0
        for inputs, targets, in_notice in self.batches:
            nats = losses(inputs.to(device), targets.to(device)).double().cpu()
            whole += float(nats.sum())
            code += float(nats[~in_notice].sum())
        code_bytes = self.num_bytes - self.notice_bytes
        return Score(code / math.log(2) / code_bytes, whole / math.log(2) / self.num_bytes)


def _tokens_within(ids: Sequence[int], num_bytes: int, token_bytes: NDArray[np.integer]) -> int:
    """How many tokens end within the first `num_bytes` bytes."""
    ends = np.cumsum(token_bytes[np.asarray(ids, dtype=np.int64)])
    return int(np.searchsorted(ends, num_bytes, side="right"))


class Curve:
    """Bits per byte at evenly spaced times of training, measured while the clock stands still."""

    def __init__(self, seconds: float, points: int, measure: Callable[[], Score]) -> None:
        """Measure now, and `points` times up to the end after `seconds`."""
        self._seconds, self._points, self._measured = seconds, points, 0
        self._measure = measure
        self._found: list[tuple[float, Score]] = [(0.0, measure())]

    def reached(self, seconds: float) -> None:
        """The clock after a step: measure if it has passed another point."""
        passed = min(self._points, math.floor(self._points * seconds / self._seconds))
        if passed > self._measured:
            self._found.append((seconds, self._measure()))
            self._measured = passed

    def figures(self) -> dict[str, Any]:
        """Pairs of seconds and bits per byte of code and of whole files, and the last of both."""
        return {
            "curve": [(seconds, score.code) for seconds, score in self._found],
            "whole_files_curve": [(seconds, score.whole) for seconds, score in self._found],
            "bits_per_byte": self._found[-1][1].code,
            "whole_files_bits_per_byte": self._found[-1][1].whole,
        }
