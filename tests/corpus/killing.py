"""Builds in processes of their own, to be killed: at a moment, or at the n-th change to what is stored."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

from cpplm.core.storage import Storage
from cpplm.corpus import project_cache
from cpplm.corpus.build import build
from cpplm.corpus.ingest.decontamination import load_problems
from cpplm.corpus.settings import CorpusSettings

_CONTEXT = multiprocessing.get_context("forkserver")  # what it preloads is imported once
_CONTEXT.set_forkserver_preload(["tests.corpus.killing"])
load_problems([])  # hashed once: every process that is forked from here has them


def contents(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()
    }


def build_killed_at_change(settings: CorpusSettings, number: int) -> bool:
    """Build until `number` objects were written or deleted, then SIGKILL; False when it ended before."""
    process = _CONTEXT.Process(target=_build_and_die, args=(settings, number))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _build_and_die(settings: CorpusSettings, number: int) -> None:
    write, delete = Storage.write, Storage.delete
    left = number

    def change() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted_write(self: Storage, name: str, data: bytes) -> None:
        change()
        write(self, name, data)

    def counted_delete(self: Storage, names: list[str]) -> None:
        for name in names:
            change()
            delete(self, [name])

    Storage.write, Storage.delete = counted_write, counted_delete  # type: ignore[method-assign]
    build(settings)


def build_with_kills(settings: CorpusSettings, *, kills: int, within: float, seed: int) -> int:
    """SIGKILL one build after the other, the last within so many seconds; then let one end.

    Returns how many were really killed.
    """
    chance = random.Random(seed)
    killed = 0
    for number in range(kills):
        process = _CONTEXT.Process(target=_build_on_any_size, args=(settings,))
        process.start()
        time.sleep(chance.uniform(0, within * (number + 1) / kills))
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    process = _CONTEXT.Process(target=_build_on_any_size, args=(settings,))
    process.start()
    process.join()
    assert process.exitcode == 0
    return killed


def _build_on_any_size(settings: CorpusSettings) -> None:
    """Build with workers however small the projects are: some go to one each, some are cut into batches."""
    project_cache._SMALL_PROJECT = 30_000
    build(settings)
