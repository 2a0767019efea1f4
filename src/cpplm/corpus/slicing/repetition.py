"""How much a corpus may repeat: where documents borrow too much, some are written without what they need.

Counted over batches of units rather than over single ones: a short file may borrow a lot as long as its
neighbours make up for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Written(NamedTuple):
    """What became of one unit: bytes of its source, bytes of its documents, and how many these are."""

    source: int
    text: int
    documents: int


def to_write_apart(units: Sequence[Written], most: float) -> list[int]:
    """The units to be written again without borrowed text, until all text is at most `most` times the source.

    Those go first that save most per document. Written apart, a unit counts once.
    """
    allowed = most * sum(unit.source for unit in units)
    total = sum(unit.text for unit in units)
    saving = {number: unit.text - unit.source for number, unit in enumerate(units) if unit.documents}
    order = sorted(saving, key=lambda number: (-saving[number] / units[number].documents, number))
    chosen: list[int] = []
    for number in order:
        if total <= allowed or saving[number] <= 0:
            break
        chosen.append(number)
        total -= saving[number]
    return chosen
