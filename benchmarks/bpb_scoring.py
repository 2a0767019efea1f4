"""Bits per byte of whole files, the same for any model and tokenizer.

Each file is scored by itself: a token that begins a document (no bytes, not scored), then the file's tokens
in windows of the context length T that move on by T/2. Every token is scored once, in the first window that
has it: behind at least T/2 earlier tokens, or all that there are. The sum of cross-entropies in bits is
divided by the bytes of the files, which are the same for everyone; no end of a text is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cpplm.tokenizer.special import IGNORED

# Rows of a batch are cut to its longest one, rounded up to this.
_LENGTH_MULTIPLE = 128


@dataclass(frozen=True)
class Window:
    """Tokens, and what follows each of them; `IGNORED` where that was scored before."""

    inputs: list[int]
    targets: list[int]


def windows(ids: Sequence[int], start_id: int, seq_len: int) -> list[Window]:
    """All windows of one file."""
    stream = [start_id, *ids]
    half = seq_len // 2
    found = []
    begin = 0
    while True:
        targets = list(ids[begin : begin + seq_len])
        if begin:
            targets[: seq_len - half] = [IGNORED] * min(seq_len - half, len(targets))
        found.append(Window(stream[begin : begin + len(targets)], targets))
        if begin + seq_len >= len(ids):
            return found
        begin += half


@dataclass(frozen=True)
class HeldOut:
    """Held-out files as batches of (inputs, targets), each of shape BT, int64; `num_bytes` of their text."""

    batches: list[tuple[Tensor, Tensor]]
    num_bytes: int

    @classmethod
    def of(
        cls, texts: Sequence[str], encoded: Sequence[Sequence[int]], *, start_id: int, seq_len: int, rows: int
    ) -> HeldOut:
        """From texts and their ids: windows of similar length share a batch of at most `rows`."""
        found = [window for ids in encoded for window in windows(ids, start_id, seq_len)]
        found.sort(key=lambda window: len(window.inputs), reverse=True)
        batches = []
        for begin in range(0, len(found), rows):
            batch = found[begin : begin + rows]
            longest = len(batch[0].inputs)
            length = min(seq_len, -(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE)
            inputs = torch.full((len(batch), length), start_id)
            targets = torch.full((len(batch), length), IGNORED)
            for row, window in enumerate(batch):
                inputs[row, : len(window.inputs)] = torch.tensor(window.inputs)
                targets[row, : len(window.targets)] = torch.tensor(window.targets)
            batches.append((inputs, targets))
        return cls(batches, sum(len(text.encode()) for text in texts))

    @torch.no_grad()
    def bits_per_byte(self, losses: Callable[[Tensor, Tensor], Tensor], device: torch.device) -> float:
        """Score a model.

        Args:
            losses: gives nats, shape BT, for inputs and targets; 0 where the target is `IGNORED`.
            device: where it wants its tensors.
        """
        nats = sum(
            float(losses(inputs.to(device), targets.to(device)).double().sum())
            for inputs, targets in self.batches
        )
        return nats / math.log(2) / self.num_bytes


class Curve:
    """Bits per byte at evenly spaced times of training, measured while the clock stands still."""

    def __init__(self, seconds: float, points: int, measure: Callable[[], float]) -> None:
        """Measure now, and `points` times up to the end after `seconds`."""
        self._seconds, self._points, self._measured = seconds, points, 0
        self._measure = measure
        self.points: list[tuple[float, float]] = [(0.0, measure())]

    def reached(self, seconds: float) -> None:
        """The clock after a step: measure if it has passed another point."""
        passed = min(self._points, math.floor(self._points * seconds / self._seconds))
        if passed > self._measured:
            self.points.append((seconds, self._measure()))
            self._measured = passed
