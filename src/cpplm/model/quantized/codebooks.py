"""Codebooks: the levels that quantised weights may take, times a scale.

A weight is `levels[code] * scale`. All levels lie within [-1, 1], so that a scale is the largest magnitude of
the weights that share it. The names say which formats hold them exactly:

| name  | levels              | elsewhere                                        |
|-------|---------------------|--------------------------------------------------|
| half2 | (q - 1.5) / 1.5     | the 2-bit table of the seed method             |
| half3 | (q - 3.5) / 3.5     |                                                  |
| half4 | (q - 7.5) / 7.5     | torch int4pack, GGUF Q4_1                        |
| int4  | (q - 8) / 8         | GGUF Q4_0                                        |
| nf4   | normal quantiles    | bitsandbytes (QLoRA, arXiv 2305.14314, app. E)   |
| int8  | (q - 127) / 127     | GGUF Q8_0                                        |
"""

from __future__ import annotations

from dataclasses import dataclass

from cpplm.core.errors import UserError


@dataclass(frozen=True)
class Codebook:
    """Ascending levels within [-1, 1]; code q stands for `levels[q]`.

    Attributes:
        name: of the table above.
        bits: of a code.
        levels: all of them.
        zero: of uniform levels, the code of 0, which may lie between two.
        unit: of uniform levels, how many steps 1 is; 0 for others.
    """

    name: str
    bits: int
    levels: tuple[float, ...]
    zero: float = 0.0
    unit: float = 0.0

    @property
    def is_symmetric(self) -> bool:
        """True if each level's negative is a level, too."""
        return self.levels[0] == -self.levels[-1]


def _uniform(name: str, bits: int, zero: float, count: int, unit: float) -> Codebook:
    return Codebook(name, bits, tuple((code - zero) / unit for code in range(count)), zero, unit)


_NF4 = (-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0)  # fmt: skip
CODEBOOKS = {
    book.name: book
    for book in (
        _uniform("half2", 2, 1.5, 4, 1.5),
        _uniform("half3", 3, 3.5, 8, 3.5),
        _uniform("half4", 4, 7.5, 16, 7.5),
        _uniform("int4", 4, 8.0, 16, 8.0),
        Codebook("nf4", 4, _NF4),
        _uniform("int8", 8, 127.0, 255, 127.0),
    )
}


def codebook(name: str) -> Codebook:
    """The codebook of a name.

    Raises:
        UserError: there is none.
    """
    if name not in CODEBOOKS:
        raise UserError(f"no codebook is named {name!r}", fix=f"Known are {', '.join(CODEBOOKS)}.")
    return CODEBOOKS[name]
