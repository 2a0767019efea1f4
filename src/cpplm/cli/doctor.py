"""`cpplm doctor`: what was found, which backends will be used, what is missing and how to fix it."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from cpplm.cli.report import Report
from cpplm.cloud.settings import DoctorSettings
from cpplm.cloud.tpu_probes import Machine
from cpplm.cloud.troubleshooting import diagnose
from cpplm.core.errors import UserError
from cpplm.core.hardware import (
    choose_device,
    choose_dtype,
    compiler_version,
    count_tpus,
    environment,
    has_fast_bf16,
)
from cpplm.evaluate.problems import load_problems
from cpplm.judge.headers import find_missing_headers, included_headers
from cpplm.model.kernels.attention import ATTENTION, AttentionRequest
from cpplm.model.kernels.decode_attention import supports
from cpplm.model.kernels.loss import LOSS, LossRequest
from cpplm.model.quantization import missing_for_fp8
from cpplm.sandbox.compiler import fast_linker
from cpplm.sandbox.sandbox import FIX as SANDBOX_FIX
from cpplm.sandbox.sandbox import Sandbox, SandboxError

LIBRARIES = {
    "torch": "", "numpy": "", "pyarrow": "", "tiktoken": "", "safetensors": "",
    "obstore": "", "tree-sitter": "", "tree-sitter-cpp": "", "wandb": "tracking",
    "tensorboard": "tracking",
}  # fmt: skip
LEAST_MEMORY_GIB = 4
LEAST_DISK_GIB = 2
WIDTH = 76  # of a value, before it goes on in the next line


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `fix` is the command that fixes it, `needed` that the demo needs it."""

    name: str
    value: str
    ok: bool = True
    needed: bool = False
    fix: str = ""


def _need(name: str, value: str, ok: bool, fix: str, *, needed: bool = False) -> Check:
    """Something that comes with its fix only where it is not as it should be."""
    return Check(name, value, ok, needed, "" if ok else fix)


def doctor(settings: DoctorSettings) -> Report:
    """Look at everything and print one line each; with `--tpu`, at what training on TPUs needs."""
    if settings.tpu:
        return _doctor_tpu(Machine(settings.bucket))
    findings = [*_hardware(), *_tpu(), *_kernels(), *_compilers(), *_sandbox(), *_libraries()]
    marks = ("     ok", "     --", "MISSING")
    rows = [_row(marks[0 if f.ok else 2 if f.needed else 1], f.name, f.value, f.fix) for f in findings]
    broken = [f.name for f in findings if f.needed and not f.ok]
    rows.append(f"missing: {', '.join(broken)}" if broken else "everything that 'make demo' needs is here")
    figures: dict[str, Any] = {f.name: {"value": f.value, "ok": f.ok, "fix": f.fix} for f in findings}
    return Report("\n".join(rows), {"ready": not broken, "findings": figures})


def _doctor_tpu(machine: Machine) -> Report:
    """Probe everything; the status is 1 if training would fail."""
    diagnoses = diagnose(machine)
    marks = {"ok": "     ok", "warning": "   WARN", "failure": "   FAIL"}
    rows = [_row(marks[d.level], d.name, d.value, d.fix) for d in diagnoses]
    failed = [d.name for d in diagnoses if d.level == "failure"]
    rows.append(f"training would fail: {', '.join(failed)}" if failed else "training would work here")
    findings = {d.name: {"level": d.level, "value": d.value, "fix": d.fix} for d in diagnoses}
    return Report("\n".join(rows), {"ready": not failed, "findings": findings}, status=int(bool(failed)))


def _row(mark: str, name: str, value: str, fix: str) -> str:
    lines = textwrap.wrap(value, WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
    text = f"{mark} {name:24} " + f"\n{'':33}".join(lines)
    return text + (f"\n{'':9}-> {fix}" if fix else "")


def _hardware() -> Iterator[Check]:
    here, device = environment(), choose_device()
    fix = "make clean, then PYTHON=/path/to/python3.11 make demo"
    yield _need("python", here["python"], sys.version_info >= (3, 11), fix, needed=True)
    yield Check("processor", f"{here['processor']}, {here['cores']} cores")
    memory = psutil.virtual_memory().total / 2**30
    fix = "lower --device_batch_size when training"
    yield _need("memory", f"{memory:.1f} GiB", memory >= LEAST_MEMORY_GIB, fix)
    free = shutil.disk_usage(".").free / 2**30
    fix = f"free {LEAST_DISK_GIB} GiB, or work on another disk"
    yield _need("free disk here", f"{free:.0f} GiB", free >= LEAST_DISK_GIB, fix, needed=True)
    yield Check("device", f"{device.type} (choose another with --device_type)")
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    reason = "in hardware" if has_fast_bf16(device) else "no fast bfloat16 here"
    yield Check("matrix products", f"{dtype} ({reason}; --precision)")


def _tpu() -> Iterator[Check]:
    """TPUs, and what trains on them; nothing where there is neither."""
    chips, versions = count_tpus(), {}
    for name in ("jax", "libtpu"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    if chips:
        text = f"{chips} chips; cpplm train takes JAX and them (--backend)"
        yield _need("tpu", text, len(versions) == 2, "pip install 'cpplm[tpu]'")
    for name, installed in versions.items():
        yield Check(name, installed)


def _kernels() -> Iterator[Check]:
    """The kernels that "auto" takes for a model with 128 wide heads, 2048 tokens, and why not the others."""
    device = choose_device()
    dtype, compiling = choose_dtype("auto", device), device.type != "mps"
    for name, window in (("attention", None), ("attention, window", 1024)):
        request = AttentionRequest.training(
            device, dtype, head_dim=128, length=2048, window=window, compiling=compiling
        )
        yield Check(name, f"{ATTENTION.describe(request)} (--attention)")
    loss = LossRequest.training(device, dtype, softcap=15.0, compiling=compiling)
    yield Check("loss", f"{LOSS.describe(loss)} (--kernel)")
    missing = missing_for_fp8()
    fix = "pip install 'cpplm[cuda]'" if missing == ["the package torchao"] else ""
    yield Check("fp8", f"needs {' and '.join(missing)}" if missing else "ready", not missing, fix=fix)


def _compilers() -> Iterator[Check]:
    install = "sudo apt-get install g++ (Debian, Ubuntu), or your system's C++ compiler"
    gxx = compiler_version("g++")
    yield _need("g++", gxx or "not found", gxx is not None, install, needed=True)
    compiled = gxx is not None or choose_device().type == "cuda"
    yield Check("torch.compile", "on" if compiled else "off: training is slower", compiled)
    if choose_device().type == "cpu":
        decodes = supports(choose_device(), choose_dtype("auto", choose_device()))
        yield Check("kernel for decoding", "on" if decodes else "off: decoding is slower", decodes)


def _sandbox() -> Iterator[Check]:
    try:
        sandbox = Sandbox.probe()
    except UserError as error:
        yield Check("sandbox", str(error), ok=False, needed=True, fix=SANDBOX_FIX)
        return
    isolation = sandbox.describe()
    yield Check("sandbox", f"{isolation['backend']}: isolates {isolation['isolates']}", fix=isolation["fix"])
    yield Check("sandbox lacks", isolation["lacks"])
    yield from _problems(sandbox)


def _problems(sandbox: Sandbox) -> Iterator[Check]:
    """Needs of judging C++ problems, as seen from inside the sandbox."""
    problems = load_problems("humaneval")
    try:
        linker = fast_linker(sandbox)
        missing = find_missing_headers(
            {name for p in problems for name in included_headers(p.prompt)}, sandbox
        )
    except (UserError, SandboxError) as error:
        yield Check("HumanEval", f"cannot be judged: {error}", ok=False)
        return
    name = linker[0].removeprefix("-fuse-ld=") if linker else "the compiler's own: slower"
    yield _need("linker", name, bool(linker), "sudo apt-get install mold (Debian, Ubuntu)")
    lacking = [p.name for p in problems if any(name in missing for name in included_headers(p.prompt))]
    text = f"{len(problems) - len(lacking)} of {len(problems)} problems can be judged"
    if lacking:
        text += f"; not {', '.join(lacking)}: {', '.join(missing.values())}"
    fix = "sudo apt-get install libboost-dev libssl-dev (Debian, Ubuntu)"
    yield _need("HumanEval", text, not lacking, fix)


def _libraries() -> Iterator[Check]:
    for name, extra in LIBRARIES.items():
        try:
            yield Check(name, version(name))
        except PackageNotFoundError:
            fix = f"pip install 'cpplm[{extra}]'" if extra else "pip install cpplm"
            yield Check(name, "not installed", ok=False, needed=extra != "tracking", fix=fix)
    if choose_device().type == "cuda":
        here = importlib.util.find_spec("triton") is not None
        yield _need("triton", "found" if here else "not installed", here, "pip install triton")
