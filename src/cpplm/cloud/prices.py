"""Prices of TPU chips per hour, on demand and spot, as a user's bill showed them.

They are of one project in February 2026: a v6e-4 at about 5.10 on demand and 1.70 spot, a v5litepod-8 at
about 6.12 and 2.04 US dollars per hour. Regions differ and spot prices move: before planning by them,
look at the cloud's own list, https://cloud.google.com/tpu/pricing.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpplm.core.errors import UserError

PRICES_DATE = "2026-02"


@dataclass(frozen=True)
class ChipPrice:
    """US dollars per chip and hour."""

    on_demand: float
    spot: float


CHIP_PRICES = {
    "v5e": ChipPrice(on_demand=6.12 / 8, spot=2.04 / 8),
    "v6e": ChipPrice(on_demand=5.10 / 4, spot=1.70 / 4),
}


def hourly_price(generation: str, chips: int, *, spot: bool) -> float:
    """US dollars per hour of a slice of `chips` chips.

    Raises:
        UserError: nobody has told the price of this generation.
    """
    if generation not in CHIP_PRICES:
        raise UserError(f"no price of {generation} is known", fix=f"Known: {', '.join(CHIP_PRICES)}.")
    price = CHIP_PRICES[generation]
    return chips * (price.spot if spot else price.on_demand)
