"""Slices of v5e and v6e for rent: their zones, runtimes and prices, and versions that run there.

Nothing here asks the cloud. Prices are those of one project's bill in February 2026. Regions differ and spot
prices move: before planning by them, look at https://cloud.google.com/tpu/pricing. A recipe can name its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpplm.core.errors import UserError
from cpplm.jax.tpu_specs import CHIPS, Slice, parse_slice

PRICES_DATE = "2026-02"
VERSIONS = {"Python": "3.11 or 3.12", "jax": "0.10.2", "libtpu": "0.0.42.1"}
"""Versions that a slice's machines need, see `cpplm[tpu]` in pyproject.toml."""


@dataclass(frozen=True)
class Generation:
    """A kind of chip as it is rented."""

    name: str
    api_name: str
    """Its name in accelerator types."""
    runtime: str
    """Image of the machines."""
    zones: tuple[str, ...]
    """Zones in which users got slices of it."""
    on_demand: float
    """US dollars per chip and hour."""
    spot: float


GENERATIONS = {
    each.name: each
    for each in (
        Generation("v5e", "v5litepod", "v2-alpha-tpuv5-lite",
                   ("us-west4-a", "us-central1-a", "europe-west4-a"), on_demand=6.12 / 8, spot=2.04 / 8),
        Generation("v6e", "v6e", "v2-alpha-tpuv6e",
                   ("asia-northeast1-b", "us-east5-b", "us-central2-b", "europe-west4-a"),
                   on_demand=5.10 / 4, spot=1.70 / 4),
    )
}  # fmt: skip


@dataclass(frozen=True)
class SliceType:
    """A slice that can be rented."""

    slice: Slice
    generation: Generation

    @property
    def accelerator_type(self) -> str:
        """The name that the API uses: v5litepod-8."""
        return f"{self.generation.api_name}-{self.slice.chips}"

    @property
    def hosts(self) -> int:
        """Virtual machines: one for up to 8 chips, else one for every 4."""
        return 1 if self.slice.chips <= 8 else self.slice.chips // 4

    def price(self, *, spot: bool) -> float:
        """Dollars per hour."""
        return self.slice.chips * (self.generation.spot if spot else self.generation.on_demand)

    def figures(self) -> dict[str, Any]:
        """All about it, for tables and programs."""
        return {
            "type": f"{self.generation.name}-{self.slice.chips}",
            "accelerator_type": self.accelerator_type,
            "topology": self.slice.topology.partition(":")[2],
            "chips": self.slice.chips,
            "hosts": self.hosts,
            "hbm_gib": self.slice.chips * self.slice.chip.memory_gib,
            "runtime": self.generation.runtime,
            "zones": list(self.generation.zones),
            "on_demand_per_hour": round(self.price(spot=False), 3),
            "spot_per_hour": round(self.price(spot=True), 3),
        }


def slice_type(name: str) -> SliceType:
    """The slice of a name such as v6e-4, v5e-8 or v5litepod-8.

    Raises:
        UserError: no such slice, or one of a generation that is not rented here.
    """
    found = parse_slice(name)
    if found.chip.name not in GENERATIONS:
        raise UserError(
            f"{name}: slices of {found.chip.name} are not rented here",
            fix=f"Use one of {', '.join(GENERATIONS)}, as v6e-4.",
        )
    return SliceType(found, GENERATIONS[found.chip.name])


def slice_types(generation: str = "") -> list[SliceType]:
    """All slices of a generation, or of both, the smaller ones first."""
    names = [generation] if generation else list(GENERATIONS)
    return [slice_type(f"{name}-{chips}") for name in names for chips in CHIPS[name].shapes]


def check_zones(kind: SliceType, zones: tuple[str, ...]) -> None:
    """Refuse a zone that is not noted to have such chips, with UserError that names those that are."""
    for zone in zones:
        if zone not in kind.generation.zones:
            raise UserError(
                f"zone {zone} is not known to have {kind.generation.name}",
                fix=f"Use {', '.join(kind.generation.zones)}; any_zone = true in a recipe takes others.",
            )
