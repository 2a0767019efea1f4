"""Compiled programs in the bucket of a run: taken by the next machine, checked, and no more than a help."""

import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from cpplm.core.errors import UserError
from cpplm.core.lease import claim
from cpplm.core.run_log import read_run_log
from cpplm.core.storage import Storage, sha256
from cpplm.jax import compile_cache
from cpplm.jax.compile_cache import FOLDER, CompileCache
from tests.jax.test_kill import start
from tests.moto_bucket import moto_bucket


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Storage:
    """JAX keeps every program, also those that compile at once."""
    before = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    yield Storage(tmp_path / "run", create=True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)


def compile_here(storage: Storage, *, factor: float = 3.0, writes: bool = True) -> list[str]:
    """Compile one program as a machine that has compiled nothing would; the local names of its entries."""
    jax.clear_caches()
    with CompileCache(storage, writes=writes) as cache:
        before = {path.name for path in cache._local.iterdir()}
        jax.jit(lambda x: jnp.sin(x) * factor).lower(jnp.ones(7)).compile()
        cache.upload()
        after = {path.name for path in cache._local.iterdir()}
    return sorted(after - before)


def entries(storage: Storage) -> dict[str, bytes]:
    return {name: storage.read(name) for name in storage.list_names(FOLDER)}


def program(name: str) -> str:
    return name.rpartition(".")[0]


def test_the_next_machine_compiles_nothing_again(run: Storage) -> None:
    assert compile_here(run)
    there = entries(run)
    assert there
    for name, data in there.items():
        assert name.endswith(f"-cache.{sha256(data)}")
        assert name.startswith("compile_cache/cpu_")
    assert compile_here(run) == []
    assert entries(run) == there
    assert compile_here(run, factor=4.0)  # another program
    assert entries(run).items() > there.items()


def test_a_damaged_entry_is_ignored_and_replaced(run: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    compile_here(run)
    sound = entries(run)
    for name, data in sound.items():
        run.write(name, data[:-1] + bytes([data[-1] ^ 1]))
    run.write(f"{FOLDER}/notes.txt", b"of somebody else")
    assert compile_here(run)
    assert capsys.readouterr().err.count("is damaged, and is compiled again") == len(sound)
    replaced = entries(run)  # with the time that compiling took, so with other hashes
    assert sorted(map(program, replaced)) == sorted(map(program, [*sound, f"{FOLDER}/notes.txt"]))
    assert not replaced.keys() & sound.keys()
    assert compile_here(run) == []


def test_other_hosts_of_a_run_read_only(run: Storage) -> None:
    compile_here(run, writes=False)
    assert entries(run) == {}


def test_without_the_bucket_all_is_compiled_here(
    run: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise UserError("the bucket is down")

    monkeypatch.setattr(run, "list_names", fail)
    monkeypatch.setattr(run, "create", fail)
    assert compile_here(run)
    said = capsys.readouterr().err
    assert "no compiled programs from the bucket: the bucket is down" in said
    assert "compiled programs stay here: the bucket is down" in said


def test_programs_of_another_processor_are_not_taken(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_here(run)
    monkeypatch.setattr(compile_cache, "processor_features", lambda: "another")
    assert compile_here(run)


def test_the_users_own_folder_is_used_again_afterwards(run: Storage) -> None:
    before = jax.config.values["jax_compilation_cache_dir"]
    with CompileCache(run):
        assert jax.config.values["jax_compilation_cache_dir"] != before
    assert jax.config.values["jax_compilation_cache_dir"] == before


@pytest.mark.slow
def test_an_attempt_starts_from_the_programs_of_the_one_before(
    corpus: Path, tokenizer_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same losses, bit by bit; its start takes less processor time."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    losses, seconds = [], []
    with moto_bucket(monkeypatch) as url:
        for machine in ("first", "second"):
            run = Storage(f"{url}/programs")
            monkeypatch.setenv("CPPLM_RUN", run.location)
            monkeypatch.setenv("CPPLM_ATTEMPT", str(claim(run, machine, time.time()).attempt))
            before = sum(os.times()[2:4])
            process = start(corpus, tokenizer_path, tmp_path / machine, "--num_iterations", "3",
                            program="from cpplm.cli.main import main; main()")  # fmt: skip
            said = process.communicate(timeout=1200)[1]
            assert process.returncode == 0, said
            assert ("compiled programs from" in said) == (machine == "second")
            seconds.append(sum(os.times()[2:4]) - before)
            records = read_run_log(tmp_path / machine / "log.jsonl")
            losses.append([(r["loss"], r["gradient_norm"]) for r in records if r["event"] == "step"])
            assert any(name.startswith("jit_") or "jit" in name for name in run.list_names(FOLDER))
            assert json.loads(run.read("heartbeat.json"))["state"] == "done"
    assert losses[0] == losses[1]
    assert seconds[1] < seconds[0]
