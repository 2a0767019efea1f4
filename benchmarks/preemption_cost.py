"""Runs on machines that are taken away at random, simulated, against the formula of `cpplm tpu plan`.

    python benchmarks/preemption_cost.py [--runs 2000] [--plot cost.png]

Needs a minute of one core. Claims that `cpplm tpu plan` tells hours within 5 % of what a simulation of single
events gives (machines that live exponentially long, saves, restarts, waits), for every condition of the grid.
The last columns: how much more the interval sqrt(2 x save x mean) costs than the best one, and the same
simulation where a preempted machine still saves what it has done, on which `cpplm tpu plan` does not count.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from statistics import fmean

from cpplm.cloud.plan import Outcome, Plan, PlanSettings, Preemptions, expect

HOURS = 48.0
MEANS = (1.0, 3.0, 6.0, 24.0)  # hours
SAVES = (5.0, 60.0, 300.0)  # seconds
RESTARTS = (5.0, 20.0)  # minutes
WAITS = (0.0, 15.0)  # minutes


def simulate(
    work: float, preemptions: Preemptions, interval: float, rng: random.Random, *, notice: bool = False
) -> Outcome:
    """One run, machine by machine and save by save.

    With `notice`, a preempted machine saves what it has done; without, the work since its last save is lost.
    """
    done = machine = wall = 0.0
    taken = 0
    while True:
        life = rng.expovariate(1 / preemptions.mean)
        wall += preemptions.wait
        clock = preemptions.restart
        while clock <= life and done < work:
            piece = min(interval, work - done)
            if clock + piece + preemptions.save > life:
                done += min(max(life - clock, 0.0), piece) if notice else 0.0
                clock = life
                break
            clock += piece + preemptions.save
            done += piece
        if done >= work and clock < life:
            return Outcome(machine + clock, wall + clock, taken)
        machine += life
        wall += life
        taken += 1


def grid() -> Iterator[Preemptions]:
    """All conditions, in hours."""
    for mean, save, restart, wait in itertools.product(MEANS, SAVES, RESTARTS, WAITS):
        yield Preemptions(mean, save / 3600, restart / 60, wait / 60)


def mean_outcome(preemptions: Preemptions, interval: float, runs: int, *, notice: bool = False) -> Outcome:
    """The mean of many runs; the same seeds for every interval."""
    each = [
        simulate(HOURS, preemptions, interval, random.Random(seed), notice=notice) for seed in range(runs)
    ]
    return Outcome(
        fmean(run.machine for run in each),
        fmean(run.wall for run in each),
        fmean(run.preemptions for run in each),
    )


def deviation(preemptions: Preemptions, runs: int) -> tuple[Outcome, Outcome, float]:
    """The formula's figures, those of simulated runs, and the larger relative difference of their hours."""
    interval = preemptions.best_interval
    told = expect(HOURS, preemptions, interval)
    found = mean_outcome(preemptions, interval, runs)
    worst = max(abs(told.machine / found.machine - 1), abs(told.wall / found.wall - 1))
    return told, found, worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--plot", default="")
    arguments = parser.parse_args()
    columns = ("mean h", "save s", "restart min", "wait min", "save every min", "wall h, formula",
               "simulated", "paid h, formula", "simulated", "difference", "over the best",
               "paid h with notice")  # fmt: skip
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    differences = []
    for case in grid():
        interval = case.best_interval
        told, found, worst = deviation(case, arguments.runs)
        differences.append(worst)
        best = min(expect(HOURS, case, (0.4 + 0.02 * i) * interval).machine for i in range(80))
        notice = mean_outcome(case, interval, arguments.runs // 4, notice=True)
        row = (f"{case.mean:g}", f"{3600 * case.save:.0f}", f"{60 * case.restart:.0f}",
               f"{60 * case.wait:.0f}", f"{60 * interval:.1f}", f"{told.wall:.1f}", f"{found.wall:.1f}",
               f"{told.machine:.1f}", f"{found.machine:.1f}", f"{worst:.1%}",
               f"{told.machine / best - 1:.1%}", f"{notice.machine:.1f}")  # fmt: skip
        print(f"| {' | '.join(row)} |")
    print(f"\nlargest difference {max(differences):.1%} of {len(differences)} conditions, "
          f"{arguments.runs} runs each")  # fmt: skip
    if arguments.plot:
        plot(arguments.plot, arguments.runs)


def plot(path: str, runs: int) -> None:
    """Dollars of 48 hours on a v6e-8 by how long machines live: formula, simulation, on demand."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  (only here)

    means = [0.25 * 2 ** (i / 4) for i in range(29)]
    plans = [Plan.of(PlanSettings(hours=HOURS, type="v6e-8", mean_hours=mean)) for mean in means]
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    axes.plot(means, [plan.spot_cost for plan in plans], label="spot, formula")
    points = plans[4::4]
    case = [Preemptions(p.settings.mean_hours, 20 / 3600, 10 / 60, 10 / 60) for p in points]
    found = [mean_outcome(each, each.best_interval, runs).machine for each in case]
    price = plans[0].spot_cost / plans[0].spot.machine
    axes.plot([p.settings.mean_hours for p in points], [price * hours for hours in found], "o",
              label="spot, simulated")  # fmt: skip
    axes.plot(means, [plan.on_demand_cost for plan in plans], "--", label="on demand")
    axes.set(xscale="log", xlabel="mean hours between preemptions", ylabel="dollars", ylim=(0, None))
    ticks = [0.25, 0.5, 1, 2, 4, 8, 16, 32]
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
