"""What reinforcement learning brings, against more fine-tuning, rejection sampling and a control.

All of them have the same time.

    cpplm tasks build CORPUS --kinds tiny fix fill --out TASKS
    python benchmarks/rl.py TASKS --init_from RUN --kind tiny --guards CORPUS --work WORK

RUN is a run of `cpplm train`. For each seed `sft` is trained from it for --sft_minutes; then, each from `sft`
and for --minutes: `more_sft`, `rft`, `rl`, and `shuffled`, which gets rewards of other answers. With
--sft_minutes 0 there is no fine-tuning: `rl` and `shuffled` start from RUN, as holes of `fill` have no
conversation. All answer the same held-out tasks; differences are paired. Runs are kept in WORK: the command
goes on where it was interrupted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from measuring import command_line, prepare_environment, progress, publish, refusals

from cpplm.core.run_log import LOG, read_run_log

_CPPLM = str(Path(sys.executable).with_name("cpplm"))
_STEP_PARTS = ("decode_seconds", "grade_seconds", "learn_seconds")


def train(out: Path, *arguments: object) -> Path:
    """Run a training command, unless that was done; returns its folder."""
    finished = out / "finished"
    if not finished.exists():
        progress(f"{out.name} of {out.parent.name}")
        subprocess.run(
            [_CPPLM, *map(str, arguments), "--out", str(out)], check=True, stdout=subprocess.DEVNULL
        )
        finished.touch()
    return out


def train_all(args: Any, seed: int) -> dict[str, Path]:
    """The runs of one seed by name, that of reinforcement learning first."""
    work, common = args.work / f"seed_{seed}", ("--seed", seed, "--max_seq_len", args.max_seq_len)
    start, runs = args.init_from, {"base": args.init_from}
    clock = ("--max_minutes", args.minutes)
    if args.sft_minutes:
        sft = ("sft", args.gold or args.tasks, *args.more_data, *common, "--eval_every", -1)
        rates = ("--lr_scale", args.sft_lr_scale)
        start = runs["sft"] = train(
            work / "sft", *sft, "--init_from", start, "--max_minutes", args.sft_minutes, *rates
        )
        # Fine-tuning scales the rates of the run that it starts from, which has been scaled already.
        runs["more_sft"] = train(work / "more_sft", *sft, "--init_from", start, *clock, "--lr_scale", 1.0)
    rl = ("rl", args.tasks, "--kinds", args.kind, *common, "--init_from", start, *clock, "--num_prompts",
          args.num_prompts, "--num_samples", args.num_samples)  # fmt: skip
    if args.sft_minutes:
        runs["rft"] = train(work / "rft", *rl, "--method", "rft")
    rates = ("--adamw_lr", args.adamw_lr)
    runs["shuffled"] = train(work / "shuffled", *rl, "--shuffle_rewards", *rates)
    return {"rl": train(work / "rl", *rl, *rates), **runs}


def evaluate(args: Any, runs: dict[str, Path], *flags: object) -> dict[str, Any]:
    """The report of `cpplm evaluate tasks`, by name of the run."""
    first, *others = runs.values()
    tasks = args.val_tasks or args.tasks
    command = ["evaluate", "tasks", first, "--tasks", tasks, "--kinds", args.kind, "--against", *others,
               "--json", *flags]  # fmt: skip
    done = subprocess.run([_CPPLM, *map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    report = json.loads(done.stdout.splitlines()[-1])
    models = dict(zip(runs, report["models"], strict=True))
    differences = dict(zip(list(runs)[1:], report["differences"], strict=True))
    return {
        "solved": {name: model["tasks"][args.kind] for name, model in models.items()},
        "guards": {name: model["guards"] for name, model in models.items()},
        "rl_minus": {name: each[args.kind] for name, each in differences.items()},
    }


def step_figures(run: Path) -> dict[str, float]:
    """Means over the steps of a run: seconds by part, answers, groups that teach nothing, no verdicts."""
    steps = [each for each in read_run_log(run / LOG) if each["event"] == "rollouts"]
    names = (*_STEP_PARTS, "answers", "uninformative_groups", "groups", "no_verdict", "mismatch")
    return {"steps": len(steps)} | {name: fmean(step[name] for step in steps) for name in names}


def lines_of(results: Sequence[dict[str, Any]]) -> list[str]:
    """The table: each run's share of solved tasks in every seed, and how far it is behind."""
    rows = []
    for name in results[0]["solved"]:
        shares = ", ".join(f"{each['solved'][name]['solved']:.1%}" for each in results)
        row = f"{name:10} {shares:24}"
        if name in results[0]["rl_minus"]:
            for each in results:
                low, high = each["rl_minus"][name]["interval"]
                row += f"  rl {each['rl_minus'][name]['difference']:+.1%} ({low:+.1%} to {high:+.1%})"
        rows.append(row)
    return rows


def main() -> None:
    """The command line."""
    parser = command_line(
        __doc__, kind="tiny", seeds=3, sft_minutes=2.0, minutes=3.0, sft_lr_scale=0.4, adamw_lr=3e-4,
        num_prompts=16, num_samples=8, max_seq_len=512, pass_samples=8, pass_items=100, threads=1,
    )  # fmt: skip
    parser.add_argument("tasks", type=Path, help="folder of 'cpplm tasks build'")
    parser.add_argument("--val_tasks", type=Path, help="folder with the held-out tasks, if it is another")
    parser.add_argument("--init_from", type=Path, required=True, help="run of 'cpplm train'")
    parser.add_argument("--gold", type=Path, help="folder with the tasks to fine-tune on, if it is another")
    parser.add_argument("--more_data", type=Path, nargs="*", default=[], help="more for fine-tuning")
    parser.add_argument("--guards", type=Path, help="corpus to measure bits per byte and holes on, too")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    args = parser.parse_args()
    prepare_environment(args.threads)
    results = []
    for seed in range(args.seeds):
        runs = train_all(args, seed)
        result = evaluate(args, runs, *(("--guards", args.guards) if args.guards else ()))
        if args.pass_items:
            sampled = evaluate(
                args, runs, "--temperature", 0.8, "--num_samples", args.pass_samples,
                "--num_items", args.pass_items,
            )  # fmt: skip
            result["sampled"] = sampled["solved"]
        results.append({"seed": seed, **result, "steps": step_figures(runs["rl"])})
        progress("\n".join(lines_of(results)))
    settings = {name: str(value) for name, value in vars(args).items()}
    publish("rl", {"kind": args.kind, "settings": settings, "seeds": results})


if __name__ == "__main__":
    with refusals("rl.py"):
        main()
