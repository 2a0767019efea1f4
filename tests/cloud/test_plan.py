"""`cpplm tpu plan`: its formula against a simulation of single events, and what it prints."""

import dataclasses
import math
import random

import pytest
from preemption_cost import HOURS, deviation, grid, mean_outcome, simulate

from cpplm.cloud.catalog import slice_type
from cpplm.cloud.plan import Plan, PlanSettings, Preemptions, expect
from tests.commands import assert_one_line_error, cpplm, reported


@pytest.mark.parametrize("case", list(grid())[::5], ids=str)
def test_the_formula_tells_what_single_events_add_up_to(case: Preemptions) -> None:
    told, found, worst = deviation(case, runs=300)
    assert worst < 0.05
    assert told.preemptions == pytest.approx(found.preemptions, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(grid()), ids=str)
def test_the_formula_in_every_condition(case: Preemptions) -> None:
    assert deviation(case, runs=2000)[2] < 0.05


def test_a_formula_without_restarts_would_not_do() -> None:
    """The comparison can fail: with restarts that preemptions never interrupt, hours are too few."""
    case = Preemptions(mean=1.0, save=0.02, restart=0.5, wait=0.0)
    interval = case.best_interval
    found = mean_outcome(case, interval, runs=300).machine
    naive = expect(HOURS, dataclasses.replace(case, restart=0.0), interval)
    assert naive.machine + case.restart * naive.preemptions < 0.95 * found
    assert expect(HOURS, case, interval).machine == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize(
    "case", [Preemptions(6.0, 20 / 3600, 0.2, 0.0), Preemptions(1.0, 5 / 3600, 0.1, 0.5)]
)
def test_no_other_interval_is_much_better(case: Preemptions) -> None:
    ours = expect(HOURS, case, case.best_interval).machine
    assert case.best_interval == math.sqrt(2 * case.save * case.mean)
    others = [
        expect(HOURS, case, factor * case.best_interval).machine for factor in (0.25, 0.5, 0.9, 1.1, 2, 4)
    ]
    assert ours < 1.002 * min(others)
    assert others[0] > ours < others[-1]


def test_a_machine_that_saves_at_the_notice_loses_less() -> None:
    case = Preemptions(2.0, 60 / 3600, 0.1, 0.0)
    lost = mean_outcome(case, case.best_interval, runs=100).machine
    assert mean_outcome(case, case.best_interval, runs=100, notice=True).machine < 0.97 * lost


def test_machines_that_live_for_ever_take_what_the_work_takes() -> None:
    case = Preemptions(math.inf, save=0.1, restart=0.5, wait=0.25)
    told = expect(10.0, case, 1.0)
    assert (told.machine, told.wall, told.preemptions) == pytest.approx((11.5, 11.75, 0.0))
    almost = dataclasses.replace(case, mean=1e9)
    assert simulate(10.0, almost, 1.0, random.Random(0)).wall == pytest.approx(11.75)
    assert expect(10.0, almost, 1.0).wall == pytest.approx(11.75)


def test_machines_that_live_too_short_never_end() -> None:
    plan = Plan.of(PlanSettings(hours=48, mean_hours=0.0001))
    assert plan.spot_cost == math.inf
    assert plan.break_even_hours > 0.0001
    assert "inf" in plan.text()


def test_the_break_even_is_where_costs_are_equal() -> None:
    plan = Plan.of(PlanSettings(hours=48, type="v5e-8", mean_hours=6))
    assert plan.spot_cost < plan.on_demand_cost
    there = Plan.of(PlanSettings(hours=48, type="v5e-8", mean_hours=plan.break_even_hours))
    assert there.spot_cost == pytest.approx(plan.on_demand_cost, rel=1e-3)


def test_the_command_prints_the_plan() -> None:
    text, figures = reported("tpu", "plan", "--hours", 48, "--type", "v6e-8", "--mean_hours", 6)
    assert figures["save_minutes"] == pytest.approx(math.sqrt(2 * 20 / 60 * 6 * 60))
    assert "a save every 15.5 minutes" in text
    assert f"{figures['spot_cost']:.2f}" in text
    assert figures["on_demand_cost"] == pytest.approx(figures["on_demand"]["machine"] * 10.2)
    assert f"longer than {60 * figures['break_even_hours']:.0f} minutes" in text
    _, dearer = reported(
        "tpu", "plan", "--hours", 48, "--type", "v6e-8", "--spot_price", 0.85, "--mean_hours", 6
    )
    assert dearer["spot_cost"] == pytest.approx(2 * figures["spot_cost"])
    _, often = reported(
        "tpu", "plan", "--hours", 48, "--type", "v6e-8", "--mean_hours", 6, "--save_minutes", 1
    )
    assert often["save_minutes"] == 1
    assert often["spot_cost"] > figures["spot_cost"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--hours", "0"], "--hours 0.0 is no time"),
        (["--hours", "nan"], "--hours nan is no time"),
        (["--hours", "1", "--restart_minutes", "-1"], "--restart_minutes -1.0 is no time"),
        (["--hours", "1", "--spot_price", "0"], "--spot_price 0.0"),
        (["--hours", "1", "--type", "v9-1"], "v9-1"),
        (["--hours", "1", "--type", "v5p-8"], "no price of v5p is known"),
    ],
)
def test_what_is_no_plan_is_refused(flags: list[str], said: str) -> None:
    assert_one_line_error(cpplm("tpu", "plan", *flags), said)


def test_prices_are_those_of_the_bill() -> None:
    assert slice_type("v6e-4").price(spot=True) == pytest.approx(1.70)
    assert slice_type("v5e-8").price(spot=False) == pytest.approx(6.12)
