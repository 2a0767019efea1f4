"""How fast programs are judged: the canonical solutions of HumanEval, and what the sandbox adds to a run.

    python benchmarks/evaluate.py [--workers 2] [--repetitions 3] [--quick]

Judging is measured in three ways, each in a process of its own and without verdicts that were kept: with
headers that were compiled before ("again"), with compiling them ("first time"), and with neither compiled
headers nor a fast linker ("plain"). What the sandbox adds to a run is the wall-clock time of /bin/true in it,
less that of /bin/true as a child process, in turn, for each backend that works here. The machine should do
nothing else.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import (
    Spread,
    command_line,
    prepare_environment,
    progress,
    publish,
    ratios,
    refusals,
    run_alone,
    take_turns,
)

from cpplm.core.workers import available_cores
from cpplm.evaluate.functional_correctness import problem_program
from cpplm.evaluate.problems import load_problems
from cpplm.judge.executor import Judge
from cpplm.sandbox import precompiled
from cpplm.sandbox.backends import BACKENDS
from cpplm.sandbox.compiler import fast_linker, require_compiler
from cpplm.sandbox.limits import ResourceLimits
from cpplm.sandbox.sandbox import Sandbox, backend_problem

_TRUE = "/bin/true"


def judge_all(workers: int, every: int, way: str) -> dict[str, int]:
    """Judge one in `every` canonical solutions; how many there were and how many passed."""
    problems = load_problems("humaneval")[::every]
    programs = [problem_program(problem, problem.canonical_solution) for problem in problems]
    judge = Judge(Sandbox.probe(), workers=workers, speed_up=way != "plain")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if way == "first time":
            Path(folder).chmod(0o755)
            precompiled.cache_folder = lambda: Path(folder)
        outcomes = [verdict.outcome for _, verdict in judge.judge(programs)]
    return {"judged": len(outcomes) - outcomes.count("not judged"), "passed": outcomes.count("pass")}


def measure_judging(workers: int, every: int, repetitions: int) -> dict[str, Any]:
    """Seconds of each way to judge."""
    run_alone(judge_all, workers, every, "again")  # compiles the headers
    ways = ("again", "first time", "plain")
    costs = take_turns(
        {way: functools.partial(run_alone, judge_all, workers, every, way) for way in ways}, repetitions
    )
    wall = {name: [cost.wall for cost in found] for name, found in costs.items()}
    return {
        "workers": workers,
        **costs["again"][0].result,
        "seconds": {name: Spread.of(found) for name, found in wall.items()},
        "processor_seconds": {name: Spread.of(c.cpu for c in found) for name, found in costs.items()},
        "times_as_fast_as_plain": {
            name: ratios(wall["plain"], wall[name]) for name in ("again", "first time")
        },
    }


def measure_sandbox(runs: int) -> dict[str, Any]:
    """Milliseconds that each backend adds to a run."""
    figures = {}
    for backend in BACKENDS:
        if problem := backend_problem(backend):
            figures[backend.mode] = {"not here": problem}
            continue
        sandbox = Sandbox(backend)
        added = []
        for _ in range(runs):
            begin = time.perf_counter()
            subprocess.run([_TRUE], check=True)
            between = time.perf_counter()
            sandbox.run({}, [_TRUE], ResourceLimits())
            added.append(1000 * (time.perf_counter() - between - (between - begin)))
        figures[backend.mode] = {"added_ms": Spread.of(added, 1)}
    return figures


def show(figures: dict[str, Any]) -> None:
    """The figures as lines of text, on stderr."""
    judging = figures["judging"]
    progress(f"{judging['passed']} of {judging['judged']} pass, {judging['workers']} at a time")
    for name, seconds in judging["seconds"].items():
        progress(f"{name:12} {seconds} s, of processor {judging['processor_seconds'][name]} s")
    for mode, found in figures["sandbox"].items():
        progress(f"{mode:12} adds {found.get('added_ms', found)} ms to a run")


def main() -> None:
    """Measure, show and publish."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, default=available_cores(), help="programs at a time (cores)")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each measurement (3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the problems, once")
    arguments = parser.parse_args()
    prepare_environment()
    repetitions = 1 if arguments.quick else arguments.repetitions
    with refusals("evaluate"):
        sandbox = Sandbox.probe()
        figures = {
            "quick": arguments.quick,
            "compiler": require_compiler(sandbox),
            "linker": " ".join(fast_linker(sandbox)),
            "sandbox": measure_sandbox(5 if arguments.quick else 50),
            "judging": measure_judging(arguments.workers, 10 if arguments.quick else 1, repetitions),
        }
    show(figures)
    publish("evaluate", figures)


if __name__ == "__main__":
    main()
