"""What the benchmarks share: measurements in fresh processes, contenders in turn, medians with their spread.

Every measurement runs in a process of its own, so that none finds caches or memory of another; its imports
are over before the clock starts. Contenders take turns, so that a machine that slows down slows all of them
down. Each benchmark prints a table on stderr and one JSON object as the last line of stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from cpplm.core.errors import UserError
from cpplm.core.hardware import environment
from cpplm.core.workers import processor_seconds, worker_pool

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

# What numeric libraries read before they start threads of their own.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
_SAMPLE_SECONDS = 0.05
THREADS = min(2, os.cpu_count() or 1)
"""Of a benchmark, unless another number is given."""
_PACKAGES = ("numpy", "pyarrow", "tiktoken", "tree-sitter", "tree-sitter-c", "tree-sitter-cpp")


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Attributes:
        wall: seconds.
        cpu: seconds of all processes, those that ended before the run was over.
        result: what the function returned.
    """

    wall: float
    cpu: float
    result: Any


@dataclass(frozen=True)
class Spread:
    """The median of several runs, with the least and the greatest."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Iterable[float], digits: int = 3) -> Spread:
        """Of at least one value."""
        found = [round(value, digits) for value in values]
        return cls(round(statistics.median(found), digits), min(found), max(found), len(found))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}-{self.high:.3g})"


def command_line(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A benchmark's parser: with the flags that are named, each as its default is; a list takes several."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in defaults.items():
        several = isinstance(default, list)
        kind = type(default[0] if several else default)
        parser.add_argument(f"--{name}", type=kind, nargs="+" if several else None, default=default)
    return parser


def prepare_environment(threads: int = 1) -> None:
    """For the processes from here on: how many threads numeric libraries start, and no progress bars."""
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    os.environ["TQDM_DISABLE"] = "1"


def describe_machine() -> dict[str, Any]:
    """Hardware, versions, date, and how busy the machine is: what has to stand beside figures."""
    return {
        **environment(),
        **{name: version(name) for name in ("cpplm", *_PACKAGES)},
        "threads": os.environ.get(_THREAD_VARIABLES[0], "not set"),
        "load_average": round(psutil.getloadavg()[0], 2),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def run_alone(function: Callable[..., Any], *arguments: Any) -> Cost:
    """Call a function of a module in a process of its own, started for it; it ends with this one."""
    with worker_pool(1) as pool:
        wall, cpu, result = pool.submit(_timed, function, arguments).result()
    return Cost(wall, cpu, result)


def _timed(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), processor_seconds()
    result = function(*arguments)
    return time.perf_counter() - wall, processor_seconds() - cpu, result


def peak_memory(command: Sequence[str]) -> int:
    """Run a command; the most bytes that its processes held together, as sampled: PSS where known, else RSS.

    Raises:
        CalledProcessError: the command failed.
    """
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, _memory(watched))
            time.sleep(_SAMPLE_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak


def _memory(process: psutil.Process) -> int:
    """Bytes of a process and its descendants; memory that they share counts once where PSS is known."""
    total = 0
    try:
        members = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    for member in members:
        try:
            found = member.memory_full_info()
        except psutil.Error:  # it has just ended
            continue
        total += getattr(found, "pss", found.rss)
    return total


def take_turns(contenders: Mapping[str, Callable[[], Cost]], repetitions: int) -> dict[str, list[Cost]]:
    """Run every contender once, then every one again, and so on; says on stderr what each took."""
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for turn in range(repetitions):
        for name, contender in contenders.items():
            costs[name].append(contender())
            last = costs[name][-1]
            progress(f"{turn + 1}/{repetitions} {name}: {last.cpu:.1f} s of processor, {last.wall:.1f} s")
    return costs


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
    """The ratio of two contenders, turn by turn."""
    return Spread.of(one / other for one, other in zip(above, below, strict=True))


def train_queue(
    script: str, tasks: Iterable[Sequence[str]], results: Path, jobs: int
) -> list[dict[str, Any]]:
    """Results of trainings, each by the benchmark's own command with `--one` and its task, in a process.

    Args:
        script: path of the benchmark; with `--one` it prints a JSON object that holds its task under "task".
        tasks: words that name a training.
        results: JSON Lines file of those that are done; they are not run again.
        jobs: trainings at once.
    """
    results.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    there = {tuple(result["task"]) for result in done}

    def train(task: Sequence[str]) -> None:
        command = [sys.executable, script, *sys.argv[1:], "--one", *task]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode:
            progress(f"{' '.join(task)}: {finished.stderr[-2000:]}")
            return
        line = finished.stdout.splitlines()[-1]
        with results.open("a") as file:
            file.write(line + "\n")
        done.append(json.loads(line))
        progress(line)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(train, [task for task in tasks if tuple(task) not in there]))
    return done


def progress(text: str) -> None:
    """A line for the person who waits."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def publish(benchmark: str, figures: Mapping[str, Any]) -> None:
    """Print the figures, with the machine beside them, as one JSON object."""
    content = {"benchmark": benchmark, "machine": describe_machine(), **figures}
    sys.stdout.write(json.dumps(content, default=asdict) + "\n")


@contextlib.contextmanager
def refusals(benchmark: str) -> Iterator[None]:
    """What a user can mend ends the benchmark with one line and status 2."""
    try:
        yield
    except UserError as error:
        progress(f"benchmarks/{benchmark}.py: {error}")
        sys.exit(2)


def make_llama(
    vocab_size: int, depth: int, dim: int, heads: int, *, kv_heads: int = 0, **more: Any
) -> LlamaForCausalLM:
    """The peer, untied: its gated MLP has 8/3 of the width, as many weights as a plain one of 4 times it."""
    # Workers import the benchmarks, too, and would wait for it.
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  (slow to import)

    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=dim, intermediate_size=round(dim * 8 / 3), num_hidden_layers=depth,
        num_attention_heads=heads, num_key_value_heads=kv_heads or heads, tie_word_embeddings=False, **more,
    )  # fmt: skip
    return LlamaForCausalLM(config)
