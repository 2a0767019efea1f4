"""Baselines of `completion.py`: copying from the file and the project, and an n-gram model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpplm.core.shards import ShardReader
from cpplm.evaluate.fim.holes import FimHole
from cpplm.evaluate.texts import Text
from cpplm.tokenizer.tokenizer import Tokenizer

NEW_TOKENS = 40
ORDER = 5
MATCHED_TOKENS, MATCHED_LINES, COPIED_LINES = 8, 10, 8


@dataclass(frozen=True)
class HeldOut:
    """Holes, and the other files of the projects that they are in."""

    holes: list[FimHole]
    texts: dict[str, Text]
    by_project: dict[str, list[Text]] = field(repr=False)

    def others(self, hole: FimHole) -> list[str]:
        """The other files of the hole's project."""
        own = self.texts[hole.group]
        return [text.text for text in self.by_project[own.project] if text.digest != own.digest]


def lines_above(text: str) -> list[str]:
    """Lines that are not blank, stripped, the nearest first."""
    return [line.strip() for line in reversed(text.split("\n")) if line.strip()][:MATCHED_LINES]


class LineCopy:
    """Copies what stands behind the longest match of the lines above the hole."""

    def __init__(self, held_out: HeldOut, *, project: bool) -> None:
        self._held_out, self._project = held_out, project
        self._places: dict[str, dict[str, list[tuple[list[str], int, str]]]] = {}

    def _of_others(self, hole: FimHole, line: str) -> list[tuple[list[str], int]]:
        """Where a line stands in the project's other files."""
        own = self._held_out.texts[hole.group]
        if not self._project:
            return []
        if own.project not in self._places:
            places: dict[str, list[tuple[list[str], int, str]]] = {}
            for text in self._held_out.by_project[own.project]:
                lines = [each for each in text.text.split("\n") if each.strip()]
                for number, each in enumerate(lines):
                    places.setdefault(each.strip(), []).append((lines, number, text.digest))
            self._places = {own.project: places}  # holes come project by project
        return [place[:2] for place in self._places[own.project].get(line, []) if place[2] != own.digest]

    def __call__(self, hole: FimHole) -> str:
        above = lines_above(hole.before)
        own = [line for line in hole.before.split("\n") if line.strip()]
        candidates = [
            (own, number) for number, line in enumerate(own[:-1]) if above and line.strip() == above[0]
        ]
        candidates += self._of_others(hole, above[0] if above else "")
        if not candidates:
            return ""
        lines, number = max(reversed(candidates), key=lambda place: self._equal(place, above))
        wanted = lines[number + 1 :]
        if hole.kind == "single":
            return wanted[0] if wanted else ""
        below = next((line.strip() for line in hole.after.split("\n") if line.strip()), "")
        stripped = [line.strip() for line in wanted[: COPIED_LINES + 1]]
        return "\n".join(wanted[: stripped.index(below) if below in stripped[1:] else 2])

    @staticmethod
    def _equal(place: tuple[list[str], int], above: list[str]) -> int:
        lines, number = place
        count = 0
        while count < len(above) and number - count >= 0 and lines[number - count].strip() == above[count]:
            count += 1
        return count


class TokenCopy:
    """Copies token by token behind the longest match of up to `MATCHED_TOKENS` tokens, the latest one."""

    def __init__(self, held_out: HeldOut, tokenizer: Tokenizer) -> None:
        self._held_out, self._tokenizer = held_out, tokenizer
        self._group, self._ids = "", np.empty(0, dtype=np.int32)

    def __call__(self, hole: FimHole) -> str:
        encode = self._tokenizer.encode
        if hole.group != self._group:
            others = "\n".join(self._held_out.others(hole))
            self._group, self._ids = hole.group, np.array(encode(others), dtype=np.int32)
        own = encode(hole.before)
        ids = np.concatenate([self._ids, np.array(own, dtype=np.int32)])
        written: list[int] = []
        while len(written) < NEW_TOKENS:
            place = self._match(ids)
            if place < 0:
                break
            written.append(int(ids[place]))
            ids = np.append(ids, ids[place])
            if "\n" in self._tokenizer.decode(written):
                break
        return self._tokenizer.decode(written).split("\n")[0]

    @staticmethod
    def _match(ids: NDArray[np.int32]) -> int:
        places, best = np.flatnonzero(ids[:-1] == ids[-1]), -1
        for back in range(1, MATCHED_TOKENS + 1):
            if not len(places):
                break
            best = int(places[-1]) + 1
            places = places[(places >= back)]
            places = places[ids[places - back] == ids[-1 - back]]
        return best


class BackoffModel:
    """The most frequent continuation of the last tokens in a training corpus, fewer where they are new."""

    def __init__(self, corpus: Path, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        texts = [text for _, text in ShardReader(corpus).texts("train")]
        rows = tokenizer.encode_batch(texts, threads=2)
        self._ids = np.concatenate([np.array(row, dtype=np.uint64) for row in rows])
        self._tables = [self._table(length) for length in range(ORDER - 1, -1, -1)]

    def _hashes(self, ids: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
        """A hash of each run of `length` tokens, that of the tokens from each place on."""
        found = np.zeros(len(ids) - length, dtype=np.uint64)
        for place in range(length):
            found = (
                found * np.uint64(0x9E3779B97F4A7C15) + ids[place : len(ids) - length + place] + np.uint64(1)
            )
            found ^= found >> np.uint64(29)
        return found

    def _table(self, length: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Contexts, in ascending order, and the most frequent token behind each."""
        contexts, following = self._hashes(self._ids, length), self._ids[length:]
        order = np.lexsort((following, contexts))
        contexts, following = contexts[order], following[order]
        begins = np.flatnonzero(
            np.r_[True, (contexts[1:] != contexts[:-1]) | (following[1:] != following[:-1])]
        )
        counts = np.diff(np.r_[begins, len(contexts)])
        by_count = np.lexsort((-counts, contexts[begins]))
        first = begins[by_count]
        keys, places = np.unique(contexts[first], return_index=True)
        return keys, following[first[places]]

    def __call__(self, hole: FimHole) -> str:
        ids, written = self._tokenizer.encode(hole.prefix), list[int]()
        while len(written) < NEW_TOKENS and "\n" not in self._tokenizer.decode(written):
            written.append(self._next(ids + written))
        return self._tokenizer.decode(written).split("\n")[0]

    def _next(self, ids: list[int]) -> int:
        for length, (keys, tokens) in zip(range(ORDER - 1, -1, -1), self._tables, strict=True):
            if len(ids) < length:
                continue
            context = np.array([*ids[len(ids) - length :], 0], dtype=np.uint64)
            key = self._hashes(context, length)[0]
            place = int(np.searchsorted(keys, key))
            if place < len(keys) and keys[place] == key:
                return int(tokens[place])
        return 0
