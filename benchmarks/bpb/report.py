"""What `time_to_bpb.py` says about its runs: who passes whom and when, and the plot."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from measuring import Spread, progress, ratios

TARGET = 1 / 3
Results = dict[str, list[dict[str, Any]]]


def compare(
    found: Results, ours: Iterable[str], llama: str, learning_rates: Sequence[float]
) -> dict[str, Any]:
    """Each contender of ours against the best peer, seed by seed.

    Args:
        found: results by contender, seed by seed.
        ours: the contenders that are ours.
        llama: the name of the best peer.
        learning_rates: what was tried; a best one at their edge is said, for a better one may lie beyond.

    Returns:
        Per contender of ours its bits per byte, and when it passed the final value of the peer with the same
        seed, also as a `ratio` of the peer's time, which is None unless every seed passed.
    """
    if llama not in found:
        return {}
    peers = found[llama]
    best_rate = peers[0]["peer"]["learning_rate"]
    at_edge = len(learning_rates) > 1 and best_rate in (min(learning_rates), max(learning_rates))
    figures: dict[str, Any] = {
        "target_ratio": round(TARGET, 4),
        "peer": {
            **_bits(peers),
            "seconds": Spread.of([peer["seconds"] for peer in peers], 1),
            "learning_rate": best_rate,
            "least_or_greatest_learning_rate": at_edge,
        },
    }
    for name in (name for name in ours if name in found):
        results = found[name]
        times, ratio = _passing(results, peers, "")
        whole_times, whole_ratio = _passing(results, peers, "whole_files_")
        figures[name] = {
            **_bits(results),
            "own_documents_bits_per_byte": Spread.of(
                [result["own_documents_bits_per_byte"] for result in results], 4
            ),
            "seconds_until_it_passes": times,
            "ratio": ratio,
            "whole_files_seconds_until_it_passes": whole_times,
            "whole_files_ratio": whole_ratio,
        }
        progress(
            f"{name}: passes after {ratio} of the peer's time" if ratio else f"{name}: never passes the peer"
        )
    return figures


def _bits(results: list[dict[str, Any]]) -> dict[str, Spread]:
    names = ("bits_per_byte", "whole_files_bits_per_byte")
    return {name: Spread.of([result[name] for result in results], 4) for name in names}


def _passing(
    results: list[dict[str, Any]], peers: list[dict[str, Any]], of: str
) -> tuple[list[float | None], Spread | None]:
    """When each seed passes its peer, and the ratio to the peer's time, if all do."""
    times = [
        passing_time(run[f"{of}curve"], peer[f"{of}bits_per_byte"])
        for run, peer in zip(results, peers, strict=True)
    ]
    passed = [seconds for seconds in times if seconds is not None]
    all_passed = len(passed) == len(times)
    return times, ratios(passed, [peer["seconds"] for peer in peers]) if all_passed else None


def draw(found: Results, llama: str, path: Path) -> None:
    """Bits per byte against seconds of training, the mean over seeds."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, results in found.items():
        tuning = name.startswith(f"{llama} ")
        columns = zip(*(result["curve"][1:] for result in results), strict=False)  # the start is off the page
        points = [tuple(map(statistics.mean, zip(*column, strict=True))) for column in columns]
        axes.plot(
            *zip(*points, strict=True), label=name, marker="" if tuning else ".", alpha=0.4 if tuning else 1
        )
    if llama in found:
        final = statistics.mean(result["bits_per_byte"] for result in found[llama])
        axes.axhline(final, linestyle=":", color="grey")
    axes.set(xlabel="seconds of training", ylabel="bits per byte, code of held-out files")
    axes.legend()
    figure.savefig(path)


def passing_time(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """When a curve first comes down to `target`, on straight lines between its points; None: never."""
    for (before, high), (after, low) in itertools.pairwise(points):
        if low <= target:
            return before if high <= target else before + (after - before) * (high - target) / (high - low)
    return None
