"""The engine gives the same bytes as a local build, goes on where either stopped, and shares fairly."""

import sys

import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import COMPLETE, ShardReader
from cpplm.corpus import build as builder
from cpplm.corpus import datatrove_executor
from cpplm.corpus.build import build, datatrove_pipeline
from cpplm.corpus.datatrove_executor import jobs_of_task
from tests.corpus.killing import contents
from tests.corpus.settings import compilable
from tests.corpus.test_build import projects


def jobs(tmp_path, monkeypatch):
    """The jobs of three projects of different size."""
    monkeypatch.chdir(tmp_path)
    return datatrove_pipeline(compilable(out="out", projects=projects(tmp_path)))[0].jobs


def test_every_project_is_in_one_share_and_the_largest_are_apart(tmp_path, monkeypatch):
    given = jobs(tmp_path, monkeypatch)
    for world_size in (1, 2, 3, 5):
        shares = [jobs_of_task(given, rank, world_size) for rank in range(world_size)]
        assert sorted(job.key for one in shares for job in one) == sorted(job.key for job in given)
        assert shares == [jobs_of_task(given[::-1], rank, world_size) for rank in range(world_size)]
    largest, *rest = sorted(given, key=lambda job: -job.item.size)
    assert jobs_of_task(given, 0, 2) == [largest]
    assert jobs_of_task(given, 1, 2) == rest


@pytest.mark.slow
def test_two_workers_of_datatrove_give_the_same_bytes(tmp_path):
    given = projects(tmp_path)
    build(compilable(out=str(tmp_path / "local"), projects=given, workers=1))
    with_engine = compilable(
        out=str(tmp_path / "engine"), projects=given, workers=2, engine="datatrove", tasks=3
    )
    result = build(with_engine)
    assert not result["already_complete"]
    assert contents(tmp_path / "engine") == contents(tmp_path / "local")


@pytest.mark.slow
def test_a_pipeline_builds_parts_and_the_command_makes_the_corpus(tmp_path, monkeypatch):
    given = projects(tmp_path)
    out = tmp_path / "out"
    settings = compilable(out=str(out), projects=given, workers=1)
    step = datatrove_pipeline(settings)[0]
    assert not contents(out)
    step(None, 0, 2)  # as the engine calls a task; the other one never ran
    with pytest.raises(UserError, match="no finished documents"):
        ShardReader(out)
    records = sorted(name for name in contents(out) if name.endswith(".json"))
    assert len(records) == 1
    built = []
    run_jobs = builder.run_project_jobs
    monkeypatch.setattr(
        builder, "run_project_jobs", lambda jobs, *rest: (built.extend(jobs), run_jobs(jobs, *rest))
    )
    build(settings)
    assert sorted(job.item.project.name for job in built) == ["project0", "project1"]
    assert (out / COMPLETE).exists()
    build(compilable(out=str(tmp_path / "local"), projects=given, workers=1))
    assert contents(out) == contents(tmp_path / "local")
    with pytest.raises(UserError, match="is complete already"):
        datatrove_pipeline(settings)


def test_without_the_package_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datatrove.executor.local", None)
    with pytest.raises(UserError, match=r"needs a package.*pip install 'cpplm\[cluster\]'"):
        build(compilable(out=str(tmp_path / "out"), projects=projects(tmp_path, 2), engine="datatrove"))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_error_in_a_task_is_the_error_of_the_build(tmp_path):
    given = projects(tmp_path, 2)
    settings = compilable(out=str(tmp_path / "out"), projects=given, workers=1, engine="datatrove")
    monkeypatched = datatrove_pipeline(settings)[0].jobs
    (given[0] / "p0.cc").unlink()  # gone since it was found
    with pytest.raises(OSError, match=r"p0\.cc"):
        datatrove_executor.run_tasks(list(monkeypatched), 1, 1)
    assert not (tmp_path / "out" / COMPLETE).exists()


def test_tasks_need_the_engine():
    with pytest.raises(UserError, match="--tasks 4 has no effect"):
        compilable(out="out", cxx_headers=True, tasks=4)
    with pytest.raises(UserError, match="cannot be unpacked for other machines"):
        datatrove_pipeline(compilable(out="s3://bucket/corpus", jsonl=("a.jsonl",)))
