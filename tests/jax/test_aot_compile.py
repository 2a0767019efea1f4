"""The check for TPUs that are not here: by a CPU's compiler, and by the TPUs' where it is installed."""

import importlib.util
import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cpplm.core.errors import UserError
from cpplm.jax.aot_compile import check, compile_step
from cpplm.jax.check_settings import CheckSettings
from cpplm.model.settings import ArchitectureSettings
from cpplm.train.settings import JaxSettings
from tests.commands import cpplm

HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None
GIB = 2**30
needs_libtpu = pytest.mark.skipif(
    not HAS_LIBTPU, reason="libtpu, the TPUs' compiler, is not installed: pip install 'cpplm[tpu]'"
)


def test_figures_are_the_compilers() -> None:
    """A donated argument takes no place as a result; operations of a product are counted."""
    side = 128
    matrix = jax.ShapeDtypeStruct((side, side), jnp.float32)
    lowered = jax.jit(lambda x, y: (x @ y, x.sum()), donate_argnums=0).lower(matrix, matrix)
    found = compile_step(lowered)
    assert found.arguments == 2 * side * side * 4
    assert found.arguments <= found.peak < 3 * side * side * 4 + found.temporary + found.program
    assert found.flops >= 2 * side**3
    assert found.compiler_error == ""


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
            "(49.75G) exceeds available HBM (31.25G).",
            49.75,
        ),
        ("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
         "Used 18.50G of 15.75G hbm. Exceeded hbm capacity by 2.75G.", 18.5),
        ("RESOURCE_EXHAUSTED: something else", 0),
    ],
)  # fmt: skip
def test_a_program_that_does_not_fit_is_an_answer(message: str, needed: float) -> None:
    class Refusing:
        def compile(self) -> None:
            raise jax.errors.JaxRuntimeError(message)

    found = compile_step(Refusing())
    assert found.peak == round(needed * GIB)
    assert message.endswith(found.compiler_error)


def test_another_failure_of_the_compiler_is_no_answer() -> None:
    class Failing:
        def compile(self) -> None:
            raise jax.errors.JaxRuntimeError("INTERNAL: a defect")

    with pytest.raises(jax.errors.JaxRuntimeError, match="a defect"):
        compile_step(Failing())


def test_bad_input_is_refused_before_anything_is_compiled() -> None:
    def refused(message: str, target: str = "v6e-4", **settings: Any) -> None:
        with pytest.raises(UserError, match=message):
            check(CheckSettings(target=target, **{"depth": 16} | settings))

    refused("no TPU slice 'v6e-5'", target="v6e-5")
    refused("asks for context 8 = 8 chips, and there are 4", jax=JaxSettings(mesh="context=8"))
    refused("not divide rows of 102 tokens", max_seq_len=102, jax=JaxSettings(mesh="context=4"))
    refused("8 attention heads", jax=JaxSettings(mesh="model=3,data=1"))
    refused("not a multiple", total_batch_size=100)
    refused("multi_host does nothing", jax=JaxSettings(multi_host=True))
    refused("training step of JAX", backend="torch")


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is installed")
def test_without_the_compiler_the_command_says_what_to_install() -> None:
    result = cpplm("tpu", "check", "--target", "v6e-4", "--depth", "2", "--preset", "seed")
    assert result.returncode == 2
    assert "needs libtpu, which is not installed. pip install 'cpplm[tpu]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize(
    ("target", "seq", "more", "most_gib"),
    [
        ("v6e-4", 16_384, {}, 8),
        ("v5e-8", 16_384, {}, 16),
        ("v6e-8", 65_536, {}, 20),
        ("v6e-4", 2_048, {"engram": "memory", "mtp": True, "mhc": True, "dsa": True}, 32),
    ],
)
def test_steps_compile_for_tpus(target: str, seq: int, more: dict[str, Any], most_gib: float) -> None:
    """The depth-16 models of docs/tpu.md: the whole sharded step with its Pallas kernels, minutes each."""
    rows = int(target.split("-")[1])
    found = check(
        CheckSettings(
            target=target,
            depth=16,
            max_seq_len=seq,
            device_batch_size=1,
            total_batch_size=rows * seq,
            architecture=ArchitectureSettings(preset="seed", **more),
            jax=JaxSettings(remat="full"),
        )
    )
    assert found.fits
    assert (found.attention, found.precision) == ("splash", "bfloat16")
    assert 0 < found.compiled.arguments < found.compiled.peak < most_gib * GIB
    assert found.text().endswith("fits")


@pytest.mark.slow
@needs_libtpu
def test_the_command() -> None:
    result = cpplm("tpu", "check", "--target", "v5litepod-8", "--max_seq_len", "1024", "--depth", "4",
                   "--preset", "seed", "--device_batch_size", "1", "--tokenizer", "cpp-32k",
                   "--mesh", "model=2", "--json")  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["fits"]
    assert (found["devices"], found["mesh"]["data"], found["mesh"]["model"]) == (8, 4, 2)
    assert 0 < found["compiled"]["peak"] < GIB


@pytest.mark.slow
@needs_libtpu
def test_what_does_not_fit_is_said() -> None:
    """16,384 tokens without a kernel that spares the scores."""
    settings = CheckSettings(
        target="v5e-8", depth=4, max_seq_len=16_384, device_batch_size=8, total_batch_size=64 * 16_384,
        architecture=ArchitectureSettings(preset="seed"), jax=JaxSettings(jax_attention="einsum"),
    )  # fmt: skip
    found = check(settings)
    assert not found.fits
    assert found.compiled.compiler_error
    assert "does not fit" in found.text()
