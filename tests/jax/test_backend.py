"""`cpplm train --backend jax` on eight virtual chips: it learns, goes on, shares checkpoints with PyTorch."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpplm.core.errors import UserError
from cpplm.core.run_log import read_run_log
from cpplm.jax import backend, distributed, mesh  # the first registers itself
from cpplm.model.settings import KernelSettings
from cpplm.train.checkpoint.format import open_run
from cpplm.train.memory_log import MemoryLogSettings
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import JaxSettings, TrainSettings
from tests.train.conftest import activations_are_traced_once, settings  # noqa: F401  (fixtures)
from tests.train.test_pretrain import ALL_DATA, EVERYTHING, StopAt, assert_same_weights

TORCH: dict[str, Any] = {"backend": "torch", "jax": JaxSettings(), "no_compile": True}


@pytest.fixture(autouse=True)
def divide_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights and states, too."""
    monkeypatch.setattr(mesh, "MIN_SHARDED_SIZE", 1)


@pytest.fixture
def small(settings: TrainSettings) -> TrainSettings:  # noqa: F811
    """Four rows on each of two pairs of chips, with n-gram tables of which a step reads some rows."""
    return dataclasses.replace(
        settings,
        backend="jax",
        device_type="cpu",
        device_batch_size=4,
        jax=JaxSettings(mesh="data=2,model=2"),
        no_compile=False,
    )


def log(run: Path, event: str) -> list[dict[str, Any]]:
    return [record for record in read_run_log(run / "log.jsonl") if record["event"] == event]


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in log(run, "step")]


@pytest.mark.slow
def test_it_learns_what_torch_learns_and_resumes_bit_for_bit(small: TrainSettings, tmp_path: Path) -> None:
    """From the same weights, on the same rows: two pairs of chips are one device with all rows."""
    by_torch = dataclasses.replace(small, **TORCH, out=tmp_path / "torch", device_batch_size=8)
    pretrain(by_torch)
    assert pretrain(dataclasses.replace(small, memory=MemoryLogSettings(8, "hlo"))).step == 8
    of_last = log(small.out, "memory")[-2]
    assert set(of_last["phases"]) == {"data", "step", "eval"} and of_last["compiled_graphs"] == 1
    assert "HloModule" in (small.out / "profiles" / "step_8x32.hlo.txt").read_text()
    np.testing.assert_allclose(losses(small.out)[:2], losses(by_torch.out)[:2], rtol=1e-4)
    # The learning rates of this test are high: differences grow.
    np.testing.assert_allclose(losses(small.out), losses(by_torch.out), rtol=3e-3)
    ours, theirs = ([r["bits_per_byte"] for r in log(run.out, "validation")] for run in (small, by_torch))
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert ours == pytest.approx(theirs, rel=3e-3)
    (session,) = log(small.out, "session")
    assert session["mesh"] == {"data": 2, "fsdp": 1, "context": 1, "model": 2}
    assert session["chips"] == 4
    assert log(small.out, "memory")
    killed = dataclasses.replace(small, out=tmp_path / "killed", save_every=2)
    with pytest.raises(ConnectionAbortedError):
        pretrain(killed, [StopAt(5, die=True)])
    pretrain(killed)
    assert_same_weights(small.out, killed.out)
    assert losses(killed.out) == losses(small.out)


def test_checkpoints_there_and_back_are_the_same_bits(small: TrainSettings) -> None:
    """PyTorch trains, JAX takes its state over and saves it, PyTorch takes it over again."""
    first = dataclasses.replace(small, **TORCH, num_iterations=2, eval_every=-1)
    pretrain(first)
    before = open_run(small.out).files

    class SaveAtOnce(StopAt):
        """Stops before the first step of its session."""

        def on_start(self, trainer) -> None:  # type: ignore[no-untyped-def]
            (trainer.settings.out / "checkpoints" / "step_000002" / "manifest.json").unlink()
            trainer.stopping = True

    with pytest.raises(KeyboardInterrupt):
        pretrain(dataclasses.replace(small, eval_every=-1), [SaveAtOnce(-1)])
    after = open_run(small.out)
    assert after.step == 2
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert after.files[name] == before[name]  # the hash of every byte
    assert pretrain(dataclasses.replace(first, num_iterations=4)).step == 4


@pytest.mark.slow
def test_a_run_goes_on_with_the_other_library_and_another_mesh(small: TrainSettings, tmp_path: Path) -> None:
    """Steps 1 to 3 by JAX, 4 to 6 by PyTorch, 7 and 8 by JAX: as if by one of them. With a profile."""
    whole = dataclasses.replace(small, **TORCH, device_batch_size=8, out=tmp_path / "whole", eval_every=-1)
    pretrain(whole)
    ours = dataclasses.replace(small, eval_every=-1)
    with pytest.raises(KeyboardInterrupt):
        pretrain(dataclasses.replace(ours, profile_step=1), [StopAt(3)])
    with pytest.raises(KeyboardInterrupt):
        pretrain(dataclasses.replace(whole, out=ours.out), [StopAt(6)])
    other = JaxSettings(mesh="data=2,context=2")
    assert pretrain(dataclasses.replace(ours, jax=other, device_batch_size=4)).step == 8
    np.testing.assert_allclose(losses(ours.out), losses(whole.out), rtol=3e-3)
    (record,) = log(ours.out, "profile")
    assert (record["step"], record["last_step"]) == (1, 3)
    traces = list((ours.out / record["trace"]).rglob("*.xplane.pb"))
    assert traces[0].parent.parent.name == "profile"  # where TensorBoard looks
    assert any(b"muon" in trace.read_bytes() for trace in traces)  # names that we gave


@pytest.mark.slow
def test_resume_with_everything(small: TrainSettings, tmp_path: Path) -> None:
    """Every feature, documents, rows that grow longer, worker processes, two batches a step."""
    everything = dataclasses.replace(EVERYTHING, mtp_depth=1)
    small = dataclasses.replace(small, architecture=everything, data=ALL_DATA, eval_every=4, num_iterations=6)
    small = dataclasses.replace(small, jax=JaxSettings(mesh="data=2,context=2"))
    whole = dataclasses.replace(small, out=tmp_path / "whole")
    pretrain(whole)
    with pytest.raises(KeyboardInterrupt):
        pretrain(small, [StopAt(3)])
    pretrain(small)
    assert_same_weights(whole.out, small.out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jax": JaxSettings(mesh="data=16")}, "asks for data 16 = 16 chips, and there are 8"),
        ({"jax": JaxSettings(mesh="data=8")}, "is not a multiple of"),
        ({"jax": JaxSettings(mesh="data=1,model=4")}, "2 attention heads"),
        ({"jax": JaxSettings(mesh="data=1,context=3")}, "rows of 32 tokens"),
        ({"device_type": "cuda"}, "not on cuda"),
        ({"device_type": ""}, "JAX would train on cpu, and this machine has no TPU"),
        ({"device_type": "tpu"}, "JAX would train on cpu"),
        ({"shard": True}, "--shard is PyTorch's"),
        ({"no_compile": True}, "--no_compile is PyTorch's"),
        ({"kernels": KernelSettings(gradient_checkpointing=True)}, "--gradient_checkpointing is PyTorch's"),
        ({"backend": "torch"}, "--mesh does nothing without --backend jax"),
    ],
    ids=str,
)
def test_bad_input_before_anything_is_written(
    small: TrainSettings, change: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "count_tpus", lambda: 0)
    wrong = dataclasses.replace(small, total_batch_size=256, device_batch_size=2, **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        pretrain(wrong)
    assert not wrong.out.exists()


def test_a_tpu_that_jax_does_not_take_is_an_error(
    small: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chips are there, and the library for them is not, or another job has them: no run on the CPU."""
    monkeypatch.setattr(distributed, "count_tpus", lambda: 4)
    with pytest.raises(UserError, match="although this machine has 4 TPU chips"):
        pretrain(dataclasses.replace(small, device_type=""))


def test_one_host_of_several(small: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "host0,host1")
    with pytest.raises(UserError, match="this TPU slice has 2 hosts"):
        pretrain(dataclasses.replace(small, device_type=""))
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    with pytest.raises(UserError, match="JAX_NUM_PROCESSES but not all of"):
        pretrain(dataclasses.replace(small, jax=JaxSettings(multi_host=True)))


def test_an_empty_cache_folder_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen: dict[str, str] = {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("jax.config.update", chosen.__setitem__)
    backend._enable_compilation_cache()
    assert chosen == {"jax_compilation_cache_dir": str(tmp_path / ".cache" / "cpplm" / "jax")}
