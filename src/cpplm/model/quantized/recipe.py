"""Recipes: which weights of a model are quantised, and how. Pure data.

    mlp=half2:g32,attn=half4:g32,embed=int8

names a format per role: a codebook, how many inputs share a scale (`g32`; `g1` is a scale per weight), and
the rank of the matrix of scales (`r8`; none for a full one). Roles that are not named stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cpplm.core.errors import UserError
from cpplm.model.quantized.codebooks import Codebook, codebook

InitMethod = Literal["absmax", "mse", "activation"]
"""Rules for scales: by the largest magnitude, or least squares, weighted by activations or not."""
GROUP_SIZE = 32  # weights that share a scale: that of GGUF's Q4_0 and Q8_0
# The first pattern that matches a module's name says its role. Names are ours and those of transformers.
_ROLES = {
    "head": r"(.*\.)?lm_head",
    "embed": r"(.*\.)?(embedding|value_embedding|table|embed_tokens|wte)",
    "attn": r".*\.(attention|self_attn|attn)\.(query|key|value|output|[qkvo]_proj|c_\w+)",
    "mlp": r".*\.(mlp|feed_forward)\.\w+",
    "other": r".*",
}
# Bits and rank of the seed method's tables (docs/compress.md), with a scale per weight; and our own.
PRESETS = {
    "q2a2": "mlp=half2:g1:r32,attn=half2:g1:r32",
    "q2a4": "mlp=half2:g1:r32,attn=half4:g1:r8",
    "q4a4": "mlp=half4:g1:r4,attn=half4:g1:r4",
    "q4a4_r32": "mlp=half4:g1:r32,attn=half4:g1:r32",
    "q4_r32": "mlp=half4:g1:r32,attn=half4:g1:r32",
    "int4": "all=half4:g32",
    "int8": "all=int8:g32",
    "int2": "mlp=half2:g32,attn=half4:g32,embed=half4:g32,head=half4:g32,other=half4:g32",
    "q4_0": "all=int4:g32",
}


@dataclass(frozen=True)
class WeightFormat:
    """Format of one quantised matrix.

    Attributes:
        codebook_name: of its levels.
        group_size: neighbouring inputs that share a scale.
        rank: of the matrix of scales; 0 for one without structure.
    """

    codebook_name: str
    group_size: int = GROUP_SIZE
    rank: int = 0

    @classmethod
    def parse(cls, text: str) -> WeightFormat:
        """Read "half4:g32:r8".

        Raises:
            UserError: it is none.
        """
        name, *options = text.split(":")
        values = {"g": GROUP_SIZE, "r": 0}
        for option in options:
            found = re.fullmatch(r"([gr])(\d+)", option)
            if not found or int(found[2]) < 1:
                raise UserError(
                    f"{option!r} in the recipe's {text!r} is not known", fix="Write it as half4:g32:r8."
                )
            values[found[1]] = int(found[2])
        return cls(codebook(name).name, values["g"], values["r"])

    def __str__(self) -> str:
        return f"{self.codebook_name}:g{self.group_size}" + (f":r{self.rank}" if self.rank else "")

    @property
    def codebook(self) -> Codebook:
        """Its levels."""
        return codebook(self.codebook_name)

    def fits(self, rows: int, columns: int) -> bool:
        """True if such a matrix is made of whole groups and large enough to be worth it."""
        return columns % self.group_size == 0 and columns % GROUP_SIZE == 0 and rows >= GROUP_SIZE


@dataclass(frozen=True)
class Recipe:
    """Formats by role."""

    formats: tuple[tuple[str, WeightFormat], ...]

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Read a recipe, or the name of a preset.

        Raises:
            UserError: it is neither.
        """
        formats: dict[str, WeightFormat] = {}
        for entry in PRESETS.get(text, text).split(","):
            role, equals, spec = entry.strip().partition("=")
            if not equals or role not in (*_ROLES, "all"):
                raise UserError(
                    f"{entry!r} in the recipe {text!r} is no role with its format",
                    fix=f"Write {', '.join(_ROLES)} or all, as in mlp=half4:g32, "
                    f"or a preset: {', '.join(PRESETS)}.",
                )
            for each in _ROLES if role == "all" else (role,):
                if each in formats:
                    raise UserError(f"the recipe {text!r} names {each} twice", fix="Name each role once.")
                formats[each] = WeightFormat.parse(spec)
        return cls(tuple(formats.items()))

    def __str__(self) -> str:
        return ",".join(f"{role}={weight_format}" for role, weight_format in self.formats)

    @property
    def names_all(self) -> bool:
        """True if every role has a format; then a model need not have layers of each."""
        return len(self.formats) == len(_ROLES)

    def format_of(self, name: str) -> WeightFormat | None:
        """The format of a module's weight by its name; None if it stays as it is."""
        return dict(self.formats).get(role_of(name))


def role_of(name: str) -> str:
    """The role of a module in the model."""
    return next(role for role, pattern in _ROLES.items() if re.fullmatch(pattern, name))
