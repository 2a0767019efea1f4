"""Building parts on an existing engine: datatrove's executors, on this machine, on Slurm or elsewhere.

datatrove (Apache-2.0, Hugging Face) rather than Ray: it adds 25 MB instead of 258 MB to what cpplm installs
anyway, needs no cluster of its own, and submits Slurm arrays, which is where corpora are built. It has to
call one function per task only: cpplm's own records in OUT/_parts tell what is done, so that a build may move
between this machine and a cluster at any time.

On a cluster, from a script that every node could import:

    from datatrove.executor import SlurmPipelineExecutor
    from cpplm.corpus.build import datatrove_pipeline
    from cpplm.corpus.settings import CorpusSettings

    settings = CorpusSettings(out="/shared/corpus", projects_dir=Path("/shared/projects"))
    steps = datatrove_pipeline(settings)
    SlurmPipelineExecutor(pipeline=steps, tasks=64, time="04:00:00", partition="cpu").run()

and when its tasks have ended, `cpplm corpus build` with the same settings: it finds the parts, builds those
that are missing, and writes the shards.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from typing import Any

import psutil

from cpplm.core.errors import import_extra
from cpplm.core.workers import partition_by_size
from cpplm.corpus.project_cache import ProjectJob, run_project_jobs


def import_executor() -> Any:
    """The module of datatrove's local executor; a `UserError` where it is not installed."""
    return import_extra("datatrove.executor.local", "--engine datatrove needs", "cluster")


class BuildStep:
    """A step of a datatrove pipeline: each task builds its share of the projects in `workers` processes."""

    def __init__(self, jobs: list[ProjectJob], workers: int = 1) -> None:
        self.jobs, self.workers = jobs, workers

    def __repr__(self) -> str:  # the engine logs it
        return f"cpplm.corpus: build {len(self.jobs)} projects"

    def __call__(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:
        """Called by the engine; `data` comes from an earlier step of the pipeline, of which there is none."""
        del data
        run_project_jobs(jobs_of_task(self.jobs, rank, world_size), self.workers, lambda size: None)


def jobs_of_task(jobs: list[ProjectJob], rank: int, world_size: int) -> list[ProjectJob]:
    """The jobs of one task, largest first."""
    by_key = {job.key: job for job in jobs}
    sizes = {key: job.item.size for key, job in by_key.items()}
    return [by_key[key] for key in partition_by_size(sizes, world_size)[rank]]


class _LocalBuildStep(BuildStep):
    """A build step on this machine, where a task must not outlive the build that it belongs to."""

    def __call__(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:
        """Called by the engine in one of its processes."""
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        super().__call__(data, rank, world_size)


def _end_with(parent: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(parent).wait()
    os._exit(1)


def run_tasks(jobs: list[ProjectJob], tasks: int, workers: int) -> None:
    """Build on datatrove's local executor: `tasks` shares, `workers` of them at a time.

    Every process is spawned. The executor would fork one for its queue, and a fork of a process with threads,
    such as those of the storage library, may hang for ever.
    """
    local = import_executor()
    local.multiprocess.set_start_method("spawn", force=True)
    with tempfile.TemporaryDirectory(prefix="cpplm-datatrove-") as logs:
        local.LocalPipelineExecutor(
            pipeline=[_LocalBuildStep(jobs)],
            tasks=tasks,
            workers=workers,
            logging_dir=logs,
            skip_completed=False,
            start_method="spawn",
        ).run()
