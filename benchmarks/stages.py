"""Processor time of each stage of `cpplm corpus build`, by clocks put around its functions from outside.

A stage's time is its own: what a function spends in another stage's function counts there. The names below
are looked up when the clocks are set; one that is gone is an error, so this list cannot go stale unseen.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

REST = "everything else"
# Stage to its functions, each where its caller looks it up: module of cpplm.corpus and name in it.
STAGES: dict[str, tuple[str, ...]] = {
    "find files": ("build.find_files",),
    "curate": ("build.curate",),
    "scan": ("project.scan", "project.is_utf8"),
    "include graph": ("project.Includes", "project.make_units", "project.MacroTable.from_bodies"),
    "read: lex, mask, split": ("items.lex", "items.split"),
    "read: parse": ("grammar.Grammar.parse",),
    "read: spans, docstrings": ("items.find_spans", "items.find_pairs"),
    "read: items": ("closure.read_items",),
    "closure": ("closure.Index.close", "merging.closed", "merging.kept"),
    "shorten": ("shortening.Shortener.shorten", "shortening.Shortener.wanted"),
    "order": ("packing.Graph", "packing.order", "ordering.Graph.needs"),
    "pack": ("packing.Packer.whole", "packing.Packer.parts", "documents._whole_file"),
    "render": ("packing.render", "packing.places_of", "packing.sources_of"),
    "count tokens": ("project.Tokenizer.encode",),
    "write": ("parts.write_table", "build.write_splits", "build.write_manifest"),
}


@contextmanager
def clocked() -> Iterator[dict[str, float]]:
    """Fill a dictionary with the seconds of each stage of what is done in this process meanwhile.

    Raises:
        AttributeError: a function of a stage is not where it is expected.
    """
    seconds: dict[str, float] = defaultdict(float)
    running = [REST]
    last = time.process_time()

    def switch() -> None:
        nonlocal last
        now = time.process_time()
        seconds[running[-1]] += now - last
        last = now

    def clock(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            switch()
            running.append(stage)
            try:
                return function(*arguments, **options)
            finally:
                switch()
                running.pop()

        return timed

    with ExitStack() as stack:
        for stage, names in STAGES.items():
            for owner, name in map(_look_up, names):
                stack.enter_context(patch.object(owner, name, clock(stage, getattr(owner, name))))
        yield seconds
        switch()


def _look_up(path: str) -> tuple[Any, str]:
    """The module or class that holds a name, and the name."""
    module, *classes, name = path.split(".")
    owner = importlib.import_module(f"cpplm.corpus.{module}")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name
