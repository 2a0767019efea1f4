"""Seconds from the command `cpplm train` to the end of its first training step.

    python benchmarks/startup.py --data_dir runs/demo/corpus --tokenizer runs/demo/tokenizer.json \
        [--runs 5] [--threads 2] [-- FLAGS OF cpplm train]

With recipes/demo.toml unless the flags say otherwise. The first run compiles into an empty cache; the others,
which count, find its kernels there. Between two of them a run without torch.compile, for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from measuring import Spread, describe_machine, prepare_environment, progress, publish

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"


def seconds_to_first_step(flags: Sequence[str], cache: Path) -> dict[str, float]:
    """Train one step in a new process; seconds until it was ready to begin, and until the step was done.

    Raises:
        CalledProcessError: the command failed; it has said why.
    """
    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        subprocess.run(
            [sys.executable, "-m", "cpplm.cli.main", "train", *flags, "--out", f"{folder}/run"],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        lines = (Path(folder) / "run" / "log.jsonl").read_text().splitlines()
    times = {record["event"]: record["time"] - begin for record in map(json.loads, lines)}
    return {"ready": times["session"], "first_step": times["step"]}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("flags", nargs="*", help="of cpplm train, after --")
    arguments = parser.parse_args()
    prepare_environment(threads=arguments.threads)
    flags = ["--config", str(RECIPE), "--data_dir", arguments.data_dir, "--tokenizer", arguments.tokenizer,
             "--num_iterations", "1", "--eval_every", "-1", *arguments.flags]  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {"empty cache": [], "cached": [], "no_compile": []}
    with tempfile.TemporaryDirectory() as cache:
        for turn in range(1 + arguments.runs):
            names = ("cached", "no_compile") if turn else ("empty cache",)
            for name in names:
                more = ["--no_compile"] if name == "no_compile" else []
                found[name].append(seconds_to_first_step([*flags, *more], Path(cache)))
                progress(f"{name}: {found[name][-1]['first_step']:.1f} s to the end of the first step")
    figures = {
        name: {key: Spread.of([run[key] for run in runs], 2) for key in ("ready", "first_step")}
        for name, runs in found.items()
    }
    publish({"benchmark": "startup", "machine": describe_machine(), "settings": vars(arguments),
             "seconds": figures})  # fmt: skip


if __name__ == "__main__":
    main()
