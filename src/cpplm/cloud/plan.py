"""Expected cost of a run on machines that are taken away at random, and how often it should save.

Machines live exponentially long, M hours on average. Work is cut into pieces of T hours, each followed by a
save of d; what a preemption interrupts is done again, after R hours of setting up a new machine, which
preemptions may interrupt as well. A piece then takes M e^(R/M) (e^((T+d)/M) - 1) machine hours on average
(Daly, doi:10.1016/j.future.2004.11.016), and T = sqrt(2 d M) is nearly the best (Young,
doi:10.1145/361147.361115). The wait for a new machine is not paid.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from cpplm.cloud.catalog import GENERATIONS, PRICES_DATE, slice_type
from cpplm.core.errors import UserError
from cpplm.jax.tpu_specs import parse_slice


@dataclass(frozen=True)
class Preemptions:
    """Hours: how long machines live, and what their end costs. `mean` is infinite for machines on demand."""

    mean: float
    save: float
    restart: float
    wait: float

    @property
    def best_interval(self) -> float:
        """Hours of work between two saves."""
        return math.sqrt(2 * self.save * self.mean)


@dataclass(frozen=True)
class Outcome:
    """Expected hours of a run, and how often its machine is taken away."""

    machine: float
    wall: float
    preemptions: float


def expect(work: float, preemptions: Preemptions, interval: float) -> Outcome:
    """Hours that `work` hours take when they are saved every `interval` hours of work; perhaps infinite."""
    mean, restart, pieces = preemptions.mean, preemptions.restart, work / interval
    piece = interval + preemptions.save
    if math.isinf(mean):
        machine = restart + pieces * piece
        return Outcome(machine, preemptions.wait + machine, 0.0)
    try:
        first = mean * math.expm1(restart / mean)
        machine = first + pieces * mean * math.exp(restart / mean) * math.expm1(piece / mean)
    except OverflowError:
        machine = math.inf
    taken = machine / mean  # one machine in `mean` hours, whatever it does meanwhile
    return Outcome(machine, machine + preemptions.wait * (1 + taken), taken)


@dataclass(frozen=True)
class PlanSettings:
    """Settings of `cpplm tpu plan`."""

    hours: float
    """Hours of training, without interruptions."""
    type: str = "v6e-4"
    """Slice of TPUs."""
    mean_hours: float = 6.0
    """Hours that a spot machine lives, on average."""
    save_seconds: float = 20.0
    """Seconds that training loses by a save."""
    restart_minutes: float = 10.0
    """Minutes from the start of a new machine to its first new step."""
    wait_minutes: float = 10.0
    """Minutes until the cloud gives a new machine."""
    save_minutes: float = -1.0
    """Minutes between two saves (-1 = what is best)."""
    spot_price: float = -1.0
    """Dollars per chip and hour (-1 = as `cpplm tpu price`)."""
    on_demand_price: float = -1.0
    """Dollars per chip and hour on demand (-1 = as `cpplm tpu price`)."""

    def __post_init__(self) -> None:
        for name in ("hours", "mean_hours", "save_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"--{name} {getattr(self, name)} is no time")
        for name in ("restart_minutes", "wait_minutes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"--{name} {getattr(self, name)} is no time")
        for name in ("save_minutes", "spot_price", "on_demand_price"):
            if not (0 < getattr(self, name) < math.inf or getattr(self, name) == -1):
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a positive number, or leave it out."
                )
        parse_slice(self.type)


@dataclass(frozen=True)
class Plan:
    """Expected costs of one run, spot and on demand, in dollars."""

    settings: PlanSettings
    save_minutes: float
    spot: Outcome
    on_demand: Outcome
    spot_cost: float
    on_demand_cost: float
    break_even_hours: float
    """Spot is cheaper where machines live longer than this, on average."""

    @classmethod
    def of(cls, settings: PlanSettings) -> Plan:
        """The plan of these settings.

        Raises:
            UserError: prices of this slice are not known.
        """
        spot_price, on_demand_price = _price(settings, spot=True), _price(settings, spot=False)
        interval = _interval(settings, settings.mean_hours)
        spot = expect(settings.hours, _preemptions(settings, settings.mean_hours), interval)
        on_demand = expect(settings.hours, _preemptions(settings, math.inf), interval)
        on_demand_cost = on_demand.machine * on_demand_price
        low, high = 1e-3, 1e6
        for _ in range(60):  # costs fall as machines live longer
            mean = math.sqrt(low * high)
            there = expect(settings.hours, _preemptions(settings, mean), _interval(settings, mean))
            low, high = (low, mean) if there.machine * spot_price < on_demand_cost else (mean, high)
        return cls(settings, 60 * interval, spot, on_demand, spot.machine * spot_price, on_demand_cost, high)

    def text(self) -> str:
        """For people."""
        settings = self.settings
        rows = [
            f"{settings.hours:g} hours of work on {settings.type}, a save every {self.save_minutes:.1f} "
            f"minutes (--save_minutes {self.save_minutes:.3g})",
            f"{'':10} {'wall hours':>11} {'paid hours':>11} {'preemptions':>12} {'dollars':>9}",
        ]
        for name, outcome, cost in (
            ("spot", self.spot, self.spot_cost),
            ("on demand", self.on_demand, self.on_demand_cost),
        ):
            figures = f"{outcome.wall:11.1f} {outcome.machine:11.1f} {outcome.preemptions:12.1f} {cost:9.2f}"
            rows.append(f"{name:10} {figures}")
        rows.append(
            f"spot is cheaper where machines live longer than {60 * self.break_even_hours:.0f} minutes "
            f"on average; prices of {PRICES_DATE}, see cpplm tpu price"
        )
        return "\n".join(rows)

    def figures(self) -> dict[str, object]:
        """For programs."""
        values = asdict(self)
        del values["settings"]
        return values


def _preemptions(settings: PlanSettings, mean: float) -> Preemptions:
    return Preemptions(
        mean, settings.save_seconds / 3600, settings.restart_minutes / 60, settings.wait_minutes / 60
    )


def _interval(settings: PlanSettings, mean: float) -> float:
    """Hours of work between two saves."""
    given = settings.save_minutes / 60
    return given if given > 0 else _preemptions(settings, mean).best_interval


def _price(settings: PlanSettings, *, spot: bool) -> float:
    """Dollars per hour of the slice."""
    slice_ = parse_slice(settings.type)
    given = settings.spot_price if spot else settings.on_demand_price
    if given > 0:
        return slice_.chips * given
    if slice_.chip.name not in GENERATIONS:
        raise UserError(f"no price of {slice_.chip.name} is known", fix=f"Known: {', '.join(GENERATIONS)}.")
    return slice_type(settings.type).price(spot=spot)
