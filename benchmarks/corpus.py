"""How fast `cpplm corpus build` is, where its time goes, how it scales, and what memory it takes.

    python benchmarks/corpus.py [FOLDER] [--tokenizer FILE] [--repetitions 3] [--quick]

FOLDER holds projects, each in a folder of its own; without it the headers of the C++ standard library are
used, as far as they are there on any machine with g++. Speed is megabytes (10^6 bytes) of the files that make
documents, per second of processor time of all processes, from finding the files to `_COMPLETE`. The floor is
measured in the same run: each file as a document (`--mode file`), and reading whole files and encoding them.

The cost against project size is that of the same files each time, cut into projects of 1, 5, 15 and 60 MB;
sizes above what FOLDER holds are left out. All cuts are in the order of the files' names, so that what lies
together stays together as far as the size allows.
"""

from __future__ import annotations

import argparse
import bisect
import functools
import itertools
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measuring import (
    Cost,
    Spread,
    command_line,
    peak_memory,
    prepare_environment,
    progress,
    publish,
    ratios,
    refusals,
    run_alone,
    take_turns,
)

from cpplm.corpus.build import build
from cpplm.corpus.ingest.discovery import SourceFile, find_files, find_projects, read_source
from cpplm.corpus.settings import CorpusSettings
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.tokenizer.train import TokenizerSettings, train_on_corpus

SIZES_MB = (1.0, 5.0, 15.0, 60.0)
MEMORY_MB = 15.0
_QUICK_MB = 0.5
_QUICK_SIZES_MB = (0.1, 0.2)
_VOCABULARY, _QUICK_VOCABULARY = 4_096, 512
_MAX_TOKENS = 16_384


@dataclass(frozen=True)
class Bench:
    """What is measured, with which tokenizer, where it is written, how often, in projects of which sizes."""

    sources: CorpusSettings
    tokenizer: Path
    scratch: Path
    repetitions: int
    sizes_mb: tuple[float, ...]

    def settings(self, **changes: Any) -> CorpusSettings:
        """The settings of one build on one core, each into a new folder."""
        out = tempfile.mkdtemp(prefix="corpus-", dir=self.scratch)
        values: dict[str, Any] = {"out": out, "workers": 1, **changes}
        return replace(self.sources, **values)


# ---- what runs in a process of its own --------------------------------------------------------------------


def build_once(settings: CorpusSettings) -> dict[str, float]:
    """Build, and forget what was built; returns the bytes of the sources and of the documents."""
    figures = build(settings)["projects"].values()
    shutil.rmtree(settings.out)
    return {
        "source_bytes": sum(project["source_bytes"] for project in figures),
        "text_bytes": sum(project["text_bytes"] for project in figures),
    }


def make_tokenizer(sources: CorpusSettings, tokenizer: Path, vocabulary: int) -> None:
    """Train a tokenizer on the documents of the sources."""
    build(sources)
    train_on_corpus(TokenizerSettings(data_dir=sources.out, out=tokenizer, vocab_size=vocabulary))


def read_and_encode(settings: CorpusSettings, tokenizer: Path) -> dict[str, float]:
    """Find the files, read each as the build would and encode it; that is all."""
    encode = Tokenizer.load(tokenizer).encode
    size = tokens = 0
    for _, file in find_sources(settings):
        if file.makes_documents:
            size += file.size
            tokens += len(encode(read_source(file).decode()))
    return {"source_bytes": size, "tokens": tokens}


# ---- the parts of the benchmark ---------------------------------------------------------------------------


def find_sources(settings: CorpusSettings) -> Iterator[tuple[str, SourceFile]]:
    """Every file with the name of its project, those included that only serve others."""
    for project in find_projects(settings):
        for file in find_files(project)[0]:
            yield project.name, file


def measure_speed(bench: Bench) -> dict[str, Any]:
    """The whole build, two workers, and the floor."""
    tokens: dict[str, Any] = {"tokenizer": bench.tokenizer, "max_tokens": _MAX_TOKENS}
    costs = take_turns(
        {
            "compilable, bytes": lambda: run_alone(build_once, bench.settings()),
            "compilable, tokens": lambda: run_alone(build_once, bench.settings(**tokens)),
            "file, bytes": lambda: run_alone(build_once, bench.settings(mode="file")),
            "file, tokens": lambda: run_alone(build_once, bench.settings(mode="file", **tokens)),
            "read and encode": lambda: run_alone(read_and_encode, bench.settings(), bench.tokenizer),
            "2 workers": lambda: run_alone(build_once, bench.settings(workers=2)),
        },
        bench.repetitions,
    )
    cpu = {name: [cost.cpu for cost in found] for name, found in costs.items()}
    wall = {name: [cost.wall for cost in found] for name, found in costs.items()}
    return {
        "source_mb": costs["compilable, bytes"][0].result["source_bytes"] / 1e6,
        "documents_mb": costs["compilable, bytes"][0].result["text_bytes"] / 1e6,
        "mb_per_core_second": {name: speed(costs[name]) for name in list(costs)[:5]},
        "times_the_processor_time": {
            f"{one} / {other}": ratios(cpu[one], cpu[other])
            for one, other in (
                ("compilable, bytes", "file, bytes"),
                ("compilable, tokens", "file, tokens"),
                ("compilable, bytes", "read and encode"),
                ("compilable, tokens", "read and encode"),
            )
        },
        "times_as_fast_with_2_workers": ratios(wall["compilable, bytes"], wall["2 workers"]),
    }


def speed(costs: Sequence[Cost]) -> Spread:
    """Megabytes of source per second of processor time."""
    return Spread.of(cost.result["source_bytes"] / 1e6 / cost.cpu for cost in costs)


def measure_sizes(bench: Bench) -> dict[str, Any]:
    """The same files as one large project and as many small ones; memory of the largest up to 15 MB."""
    files = [(project, file) for project, file in find_sources(bench.sources) if file.makes_documents]
    total = sum(file.size for _, file in files) / 1e6
    sizes = [size for size in bench.sizes_mb if size <= total] or [total]
    files = files[: prefix(files, sizes[-1])]
    folders = {size: cut(files, size, bench.scratch / f"cut-{size:g}") for size in sizes}
    costs = take_turns(
        {f"{size:g}": functools.partial(_build_folder, bench, folder) for size, folder in folders.items()},
        bench.repetitions,
    )
    speeds = {name: speed(found) for name, found in costs.items()}
    largest = max(size for size in sizes if size <= MEMORY_MB or size == sizes[0])
    one = sorted(folders[largest].iterdir())[0]
    return {
        "mb_per_core_second_by_project_mb": speeds,
        "exponent_of_time": exponent([(float(name), found.median) for name, found in speeds.items()]),
        "memory_project_mb": largest,
        "peak_memory_mb": {
            f"{workers} worker{'s' if workers > 1 else ''}": memory(bench, one, workers) for workers in (1, 2)
        },
    }


def _build_folder(bench: Bench, folder: Path) -> Cost:
    return run_alone(build_once, bench.settings(projects=(), projects_dir=folder, cxx_headers=False))


def memory(bench: Bench, project: Path, workers: int) -> float:
    """Most megabytes of all processes of `cpplm corpus build` on one project."""
    out = tempfile.mkdtemp(prefix="corpus-", dir=bench.scratch)
    command = [sys.executable, "-m", "cpplm.cli.main", "corpus", "build", "--projects", str(project)]
    return peak_memory([*command, "--out", out, "--workers", str(workers)]) / 1e6


def exponent(speeds: Sequence[tuple[float, float]]) -> float | None:
    """x where time grows as size to the power of x, by least squares; 1 is linear; None for a single size."""
    if len(speeds) < 2:
        return None
    xs = [math.log(size) for size, _ in speeds]
    ys = [math.log(size / fast) for size, fast in speeds]
    return round(statistics.linear_regression(xs, ys).slope, 3)


def prefix(files: Sequence[tuple[str, SourceFile]], size_mb: float) -> int:
    """How many of the files make up that many megabytes."""
    total = itertools.accumulate(file.size for _, file in files)
    return bisect.bisect_left(list(total), size_mb * 1e6) + 1


def cut(files: Sequence[tuple[str, SourceFile]], size_mb: float, folder: Path) -> Path:
    """Copy the files into projects of a size, in the order given; returns the folder of the projects."""
    done = 0
    for project, file in files:
        name = file.name if Path(file.name).suffix else f"{file.name}.hpp"  # <vector>
        target = folder / f"{int(done / (size_mb * 1e6)):04d}" / project / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path, target)
        done += file.size
    return folder


# ---- the command ------------------------------------------------------------------------------------------


def show(figures: Mapping[str, Any], indent: str = "") -> None:
    """The figures as lines of text, on stderr."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            progress(f"{indent}{name}")
            show(value, f"{indent}  ")
        else:
            progress(
                f"{indent}{name:36} {value:.4g}" if isinstance(value, float) else f"{indent}{name:36} {value}"
            )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="projects, each in a folder of its own")
    parser.add_argument("--tokenizer", type=Path, help="by default one is trained on what is built first")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each measurement (3)")
    parser.add_argument("--quick", action="store_true", help="half a megabyte, once: a test of the benchmark")
    return parser.parse_args()


def prepare(arguments: argparse.Namespace, scratch: Path) -> Bench:
    """Choose the sources, and train a tokenizer where none is given."""
    out = str(scratch / "first")
    sources = CorpusSettings(
        out=out, projects_dir=arguments.folder, cxx_headers=arguments.folder is None, mode="compilable"
    )
    if arguments.quick:
        files = list(find_sources(sources))
        folder = cut(files[: prefix(files, _QUICK_MB)], _QUICK_MB / 2, scratch / "quick")
        sources = replace(sources, projects_dir=folder, cxx_headers=False)
    tokenizer = arguments.tokenizer
    if tokenizer is None:
        tokenizer = scratch / "tokenizer.json"
        run_alone(make_tokenizer, sources, tokenizer, _QUICK_VOCABULARY if arguments.quick else _VOCABULARY)
    sizes = _QUICK_SIZES_MB if arguments.quick else SIZES_MB
    return Bench(sources, tokenizer, scratch, 1 if arguments.quick else arguments.repetitions, sizes)


def main() -> None:
    """Measure, show and publish."""
    arguments = parse_arguments()
    prepare_environment()
    with refusals("corpus"), tempfile.TemporaryDirectory(prefix="cpplm-benchmark-") as name:
        bench = prepare(arguments, Path(name))
        figures = {
            "sources": str(arguments.folder or "C++ standard library headers"),
            "quick": arguments.quick,
            "speed": measure_speed(bench),
            "size": measure_sizes(bench),
        }
    show(figures)
    publish("corpus", figures)


if __name__ == "__main__":
    main()
