"""The headline: after which time our defaults reach the bits per byte that a plain Llama ends with.

    recipes/debian_corpus.sh tokenizer FOLDER
    python benchmarks/time_to_bpb.py FOLDER/tok-train FOLDER/tok-dev --work WORK [--minutes 10] [--threads 2]

The same raw C++ files, machine and threads; contenders run one after the other, each in a process of its own:

- `cpplm`: `cpplm corpus build`, `cpplm tokenizer train`, `cpplm train` with recipes/demo.toml (on a GPU: its
  defaults at depth 12). Flags that are not listed by --help go to `cpplm train`.
- `cpplm-third`: the same in a third of the minutes, its schedules over that time: the claim itself.
- `llama`: a Llama of transformers of the same depth, width and heads with AdamW and a byte-level BPE, at
  every one of --learning_rates and --peer_batch_tokens; the best on the held-out files counts.

docs/time-to-bpb.md says what is on the clock and how files are scored. What has run is kept in WORK by its
settings: run the command again, and it goes on. WORK/curves.svg shows the curves.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from bpb.data import Data, Sample, prepare
from bpb.ours import our_config, train_ours
from bpb.peer import Peer, train_peer
from bpb.report import Results, compare, draw
from measuring import (
    THREADS,
    command_line,
    describe_machine,
    prepare_environment,
    progress,
    publish,
    refusals,
    run_alone,
)

import cpplm
from cpplm.core.settings import from_command_line, to_dict
from cpplm.core.storage import Storage, sha256
from cpplm.train.settings import TrainSettings

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"
# What part of the minutes the run is pressed into: the whole, a third.
OURS = {"cpplm": 1, "cpplm-third": 3}
LLAMA = "llama"
DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {
        "minutes": 10.0,
        "vocab_size": 4096,
        "max_project_bytes": 1_500_000,
        "learning_rates": [1e-3, 2e-3, 4e-3],
    },
    "cuda": {
        "minutes": 5.0,
        "vocab_size": 32_768,
        "max_project_bytes": 60_000_000,
        "learning_rates": [3e-4, 6e-4, 1.2e-3],
    },
}


@dataclass(frozen=True)
class Task:
    """One training: `identity` is everything that decides its result but the data."""

    name: str
    seed: int
    identity: dict[str, Any]
    run: Callable[[Path], dict[str, Any]]


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Our flags, and those for `cpplm train`."""
    parser = command_line(__doc__, threads=THREADS)
    parser.add_argument("projects_dir", nargs="+", help="folders whose sub-folders are projects")
    parser.add_argument("--work", type=Path, required=True, help="folder for data, runs, the plot")
    parser.add_argument(
        "--contenders", nargs="+", choices=(*OURS, LLAMA), default=["cpplm", "cpplm-third", LLAMA]
    )
    parser.add_argument("--minutes", type=float, help="of training (10; on a GPU 5)")
    parser.add_argument("--seeds", type=int, default=1, help="the peer is tuned with the first one")
    best_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=best_device)
    parser.add_argument("--points", type=int, default=20, help="measurements on each curve")
    parser.add_argument("--held_out", nargs="+", default=[], help="projects (default: by hash)")
    parser.add_argument(
        "--held_out_share", type=float, default=0.15, help="of the projects, without --held_out"
    )
    parser.add_argument(
        "--max_project_bytes", type=int, help="taken of each project (1.5 MB; on a GPU 60 MB)"
    )
    parser.add_argument("--eval_bytes", type=int, default=400_000, help="held-out text to score, about")
    parser.add_argument("--vocab_size", type=int, help="of both tokenizers (4096; on a GPU 32768)")
    parser.add_argument("--recipe", type=Path, help="of cpplm train (recipes/demo.toml; on a GPU none)")
    parser.add_argument("--learning_rates", type=float, nargs="+", help="of the peer")
    parser.add_argument(
        "--peer_batch_tokens", type=int, nargs="+", help="tokens per step of the peer (as ours)"
    )
    parser.add_argument("--peer_depth", type=int, help="layers of the peer (as ours)")
    parser.add_argument("--peer_dim", type=int, help="width of the peer (as ours)")
    arguments, rest = parser.parse_known_args()
    for name, value in DEFAULTS[arguments.device].items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    for name in ("minutes", "threads", "seeds", "points", "eval_bytes", "max_project_bytes"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name} {getattr(arguments, name)} is not positive")
    return arguments, rest


def our_settings(
    arguments: argparse.Namespace, rest: Sequence[str], data: Data, seed: int, minutes: float
) -> TrainSettings:
    """Of `cpplm train`: the recipe, then what the person gave, then what the benchmark needs."""
    on_cpu = arguments.device == "cpu"
    recipe = arguments.recipe or (RECIPE if on_cpu else None)
    depth = ["--depth", "12"] if recipe is None and "--depth" not in rest else []
    plain = ["--fim_rate", "0"]  # the peer does not learn to fill in either
    flags = [*plain, *depth, *rest, "--data_dir", str(data.corpus),
             "--tokenizer", str(data.our_tokenizer), "--out", str(arguments.work / "unset"),
             "--max_minutes", str(minutes), "--seed", str(seed), "--device_type", arguments.device,
             "--eval_every", "-1", "--sample_every", "-1", "--save_minutes", "-1",
             "--keep_last", "1"]  # fmt: skip
    return from_command_line(TrainSettings, flags, program="cpplm train", description="", recipe=recipe)


def our_task(arguments: argparse.Namespace, rest: Sequence[str], data: Data, name: str, seed: int) -> Task:
    """A run of ours; it depends on our source, too."""
    part = OURS[name]
    settings = our_settings(arguments, rest, data, seed, arguments.minutes / part)
    values = {
        key: value for key, value in to_dict(settings).items() if key not in ("out", "data_dir", "tokenizer")
    }
    identity = {"settings": values, "source": our_source()}
    points = max(1, arguments.points // part)

    def run(folder: Path) -> dict[str, Any]:
        of_run = dataclasses.replace(settings, out=folder)
        return dict(run_alone(train_ours, of_run, data.work, arguments.eval_bytes, points).result)

    return Task(name, seed, identity, run)


def our_source() -> str:
    """A hash of cpplm's code: a change of it asks for new runs."""
    root = Path(cpplm.__file__).parent
    files = sorted(root.rglob("*.py"))
    return sha256("".join(f"{p.relative_to(root)} {sha256(p.read_bytes())}\n" for p in files).encode())[:16]


def peer_task(arguments: argparse.Namespace, data: Data, peer: Peer) -> Task:
    """A run of the peer."""
    name = f"{LLAMA} lr {peer.learning_rate:g} batch {peer.batch_tokens}"
    identity = {
        "peer": dataclasses.asdict(peer),
        "minutes": arguments.minutes,
        "version": version("transformers"),
    }

    def run(folder: Path) -> dict[str, Any]:
        return dict(run_alone(train_peer, peer, data.work, arguments.minutes, arguments.points).result)

    return Task(name, peer.seed, identity, run)


def peer_settings(arguments: argparse.Namespace, rest: Sequence[str], data: Data) -> list[Peer]:
    """All that are tried, with the first seed."""
    settings = our_settings(arguments, rest, data, 0, arguments.minutes)
    config = our_config(settings)
    return [
        Peer(
            depth=arguments.peer_depth or config.num_layers,
            dim=arguments.peer_dim or config.model_dim,
            head_dim=config.head_dim,
            learning_rate=learning_rate,
            batch_tokens=batch_tokens,
            rows=min(settings.device_batch_size, max(1, batch_tokens // config.max_seq_len)),
            seq_len=config.max_seq_len,
            device=arguments.device,
            precision=settings.precision,
            seed=0,
        )
        for batch_tokens in arguments.peer_batch_tokens or [settings.total_batch_size]
        for learning_rate in arguments.learning_rates
    ]


def result_of(task: Task, arguments: argparse.Namespace, data: Data) -> dict[str, Any]:
    """Of a run that is in the work folder, or runs now."""
    machine = describe_machine()
    identity = {**task.identity, "data": data.description()["fingerprint"], "points": arguments.points,
                "eval_bytes": arguments.eval_bytes, "threads": arguments.threads,
                **{key: machine[key] for key in ("processor", "torch")}}  # fmt: skip
    digest = sha256(json.dumps(identity, sort_keys=True).encode())[:12]
    stem = f"{task.name.replace(' ', '_')}-{task.seed}-{digest}"
    path = arguments.work / "runs" / f"{stem}.json"
    if path.exists():
        progress(f"{task.name}, seed {task.seed}: kept from an earlier call")
    else:
        progress(f"{task.name}, seed {task.seed}:")
        folder = arguments.work / "runs" / stem
        shutil.rmtree(folder, ignore_errors=True)  # of a call that was stopped: its curve is lost
        found = {"contender": task.name, "seed": task.seed, **task.run(folder),
                 "load_average_before": machine["load_average"]}  # fmt: skip
        Storage(path.parent, create=True).write_json(path.name, found)
    result: dict[str, Any] = json.loads(path.read_text())
    progress(f"{task.name}, seed {task.seed}: {result['bits_per_byte']:.4f} bits per byte after "
             f"{result['seconds']:.0f} s, {result['steps']} steps")  # fmt: skip
    return result


def run_all(arguments: argparse.Namespace, rest: Sequence[str], data: Data) -> Results:
    """Results of every contender, by name, seed by seed: of the peer the best setting under `llama`."""
    peers = peer_settings(arguments, rest, data)  # first: bad ones are refused before anything runs
    found: Results = {}
    seeds = range(arguments.seeds)
    for name in (name for name in arguments.contenders if name != LLAMA):
        found[name] = [
            result_of(our_task(arguments, rest, data, name, seed), arguments, data) for seed in seeds
        ]
    if LLAMA in arguments.contenders:
        tried = [(peer, result_of(peer_task(arguments, data, peer), arguments, data)) for peer in peers]
        best, first = min(tried, key=lambda each: each[1]["bits_per_byte"])
        found |= {result["contender"]: [result] for peer, result in tried if peer is not best}
        others = [dataclasses.replace(best, seed=seed) for seed in seeds[1:]]
        found[LLAMA] = [
            first,
            *(result_of(peer_task(arguments, data, peer), arguments, data) for peer in others),
        ]
    return found


def main() -> None:
    """Prepare, train, compare, print."""
    arguments, rest = parse()
    prepare_environment(threads=arguments.threads)
    with refusals("time_to_bpb"):
        publish("time_to_bpb", measure(arguments, rest))


def measure(arguments: argparse.Namespace, rest: Sequence[str]) -> dict[str, Any]:
    """All figures.

    Raises:
        UserError: projects, flags or the work folder are not what they should be.
    """
    our_settings(arguments, rest, Data(arguments.work), 0, arguments.minutes)  # flags are good
    sample = Sample(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Sample)})
    data = prepare(arguments.work, sample)
    found = run_all(arguments, rest, data)
    draw(found, LLAMA, arguments.work / "curves.svg")
    return {
        "settings": {
            key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()
        },
        "cpplm_train": list(rest),
        "data": data.description(),
        "comparison": compare(found, OURS, LLAMA, arguments.learning_rates),
        "runs": found,
    }


if __name__ == "__main__":
    main()
