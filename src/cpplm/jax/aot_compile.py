"""`cpplm tpu check`: compile the training step for TPUs that are not here, and see whether it fits them.

libtpu, which comes with `pip install 'cpplm[tpu]'`, holds the compiler of the TPUs and describes a slice by
its name; both work on any Linux machine. The step is the trainer's own (`cpplm.jax.step`), forward, backward
and optimizer, divided among the chips of the slice and with its buffers donated; it is compiled from shapes
alone, so weights take no memory. Nothing runs: the figures are the compiler's, and say nothing of time.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info, progress_bar
from cpplm.jax.backend import check_run, train_step
from cpplm.jax.check_settings import CheckSettings
from cpplm.jax.mesh import check_mesh, make_mesh, mesh_sizes
from cpplm.jax.step_report import StepReport, describe_step
from cpplm.jax.tpu_specs import Slice, parse_slice
from cpplm.model.flops import count_flops
from cpplm.train.defaults import resolve_run
from cpplm.train.devices import Devices
from cpplm.train.training_length import training_budget

GIB = 2**30
# libtpu asks a cloud's metadata service what machine this is, and complains at length where none answers.
LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # it guards the chips, and none are touched
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v6e-4",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
# How the compiler says that it does not fit: bytes asked for, bytes there are.
OUT_OF_MEMORY = (
    re.compile(r"\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)"),
    re.compile(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm"),
)
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class CompiledProgram:
    """The compiler's figures of a program, in bytes of one device; see `compile_step`.

    Attributes:
        seconds: that compiling took.
        cpu_seconds: of processor that it took, on a busy machine the better figure.
        peak: arguments, results and temporaries at their most, and the program itself.
        arguments: weights, optimizer state, tokens.
        temporary: activations, gradients and what else lives within a step.
        program: the code.
        flops: operations of one device as the compiler counts them: the body of a loop once, kernels not at
            all.
        compiler_error: its message where the program does not fit; the figures are then those that it names.
    """

    seconds: float
    cpu_seconds: float
    peak: int
    arguments: int = 0
    temporary: int = 0
    program: int = 0
    flops: float = 0.0
    compiler_error: str = ""


@dataclass(frozen=True, kw_only=True)
class CompileReport(StepReport):
    """The outcome of `check`. Bytes and operations are of one device, which is a chip but on v7x."""

    target: str
    device_memory: int
    trace_seconds: float
    compiled: CompiledProgram
    model_flops: float
    """By `cpplm.model.flops`: forward and backward, without what is computed again or the optimizer."""
    fits: bool

    def text(self) -> str:
        """For people."""
        found, gib = self.compiled, self.device_memory / GIB
        lines = [
            *self.headline(f"{self.target}: {self.devices} devices of {gib:.0f} GiB"),
            f"traced in {self.trace_seconds:.0f} s, compiled in {found.seconds:.0f} s "
            f"({found.cpu_seconds:.0f} s of processor)",
        ]
        if found.compiler_error:
            needs = f" of the {found.peak / GIB:.1f} GiB that it needs" if found.peak else ""
            return "\n".join([*lines, f"does not fit{needs}: {found.compiler_error}"])
        return "\n".join([
            *lines,
            f"memory of a device: {found.peak / GIB:.2f} GiB at most; {found.arguments / GIB:.2f} of it "
            f"weights, optimizer state and tokens, {found.temporary / GIB:.2f} activations and gradients",
            f"program: {found.program / 2**20:.0f} MiB",
            f"operations of a device per step: {self.model_flops:.3e} of the model as cpplm counts, "
            f"without what remat repeats; {found.flops:.3e} as the compiler does, which takes a loop's body "
            "once and sees no kernel's inside",
            "fits" if self.fits else "does not fit",
        ])  # fmt: skip


def check(settings: CheckSettings) -> CompileReport:
    """Compile the step of these settings for the slice that they name.

    Raises:
        UserError: no such slice, no libtpu, or a step that such a slice could not take.
    """
    target = parse_slice(settings.target)
    chip, memory = target.chip, target.chip.device_memory
    sizes = mesh_sizes(settings.jax.axes(), target.devices)
    shares = sizes["data"] * sizes["fsdp"]
    devices = Devices(target.name, "tpu", target.devices, chip.device_peak, "maker", memory)
    training, config, _ = resolve_run(settings, devices, shares)
    check_mesh(sizes, config, training.data.row_lengths(training.max_seq_len))
    mesh = make_mesh(sizes, describe_devices(target))
    run, attention = check_run(training, config, mesh)
    trained = train_step(training, config, training_budget(training, config), mesh)
    log_info(f"tracing the step for {target.name}")
    begin = time.perf_counter()
    lowered = trained.lower(
        training.device_batch_size * shares,
        training.max_seq_len,
        count=training.forward_passes(shares),
        documents=training.data.document_mask,
    )
    trace_seconds = time.perf_counter() - begin
    with heartbeat("compiling"):
        compiled = compile_step(lowered)
    return CompileReport(
        **describe_step(training, config, run, attention, mesh),
        target=target.name,
        device_memory=memory,
        trace_seconds=trace_seconds,
        compiled=compiled,
        model_flops=count_flops(config)["total"] * training.total_batch_size / mesh.size,
        fits=not compiled.compiler_error and compiled.peak <= memory,
    )


def describe_devices(target: Slice) -> list[Any]:
    """The devices of a slice, as libtpu describes them; none of them is here.

    Raises:
        UserError: libtpu is not installed, or does not know the slice.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "compiling for TPUs needs libtpu, which is not installed",
            fix="pip install 'cpplm[tpu]', on Linux.",
        )
    for name, value in LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")  # a TPU of this machine stays free
    try:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=target.topology, **target.options
        )
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise UserError(f"libtpu cannot describe {target.name}: {first}", fix="Try another slice.") from error
    return list(described.devices)


def compile_step(lowered: Any) -> CompiledProgram:
    """Compile what `TrainStep.lower` gave.

    Raises:
        jax.errors.JaxRuntimeError: the compiler failed for another reason than memory.
    """
    begin, busy = time.perf_counter(), time.process_time()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _out_of_memory(str(error), time.perf_counter() - begin, time.process_time() - busy)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - busy
    memory = compiled.memory_analysis()
    program = memory.generated_code_size_in_bytes
    arguments, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes  # donated ones take no place
    return CompiledProgram(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        peak=arguments + results + temporary + program,
        arguments=arguments,
        temporary=temporary,
        program=program,
        flops=compiled.cost_analysis().get("flops", 0.0),
    )


def _out_of_memory(message: str, seconds: float, cpu_seconds: float) -> CompiledProgram:
    said = " ".join(message.removeprefix("RESOURCE_EXHAUSTED: ").split())
    sizes = next((match for match in (pattern.search(said) for pattern in OUT_OF_MEMORY) if match), None)
    needed = round(float(sizes[1]) * UNITS[sizes[2]]) if sizes else 0
    return CompiledProgram(seconds, cpu_seconds, peak=needed, compiler_error=said[:300])


@contextmanager
def heartbeat(what: str) -> Iterator[None]:
    """A clock on stderr while something goes on that says nothing of itself."""
    over = threading.Event()

    def tick() -> None:
        with progress_bar(None, what, "s", bar_format="{desc}: {elapsed}") as bar:
            while not over.wait(1):
                bar.update(1)

    clock = threading.Thread(target=tick, daemon=True)
    clock.start()
    try:
        yield
    finally:
        over.set()
        clock.join()
