import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.core.hardware import (
    choose_device,
    choose_dtype,
    compiler_version,
    environment,
    has_fast_bf16,
    peak_memory_bytes,
    processor_features,
    processor_name,
    reset_peak_memory,
)

CPU = torch.device("cpu")


def test_the_best_device_present_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, best in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda here=cuda: here)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda here=mps: here)
        assert choose_device().type == best
        assert choose_device("cpu").type == "cpu"
    for name in ("cuda", "tpu", "cuda:7"):
        with pytest.raises(UserError, match=f"device '{name}' is not available. This machine has: cpu"):
            choose_device(name)


def test_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_dtype("bf16", CPU) == torch.bfloat16
    assert choose_dtype("fp32", CPU) == torch.float32
    for fast, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr("cpplm.core.hardware.has_fast_bf16", lambda _, answer=fast: answer)
        assert choose_dtype("auto", CPU) == dtype


def test_fast_bf16_agrees_with_the_processor() -> None:
    flags = Path("/proc/cpuinfo")
    if not flags.exists():
        pytest.skip("no /proc/cpuinfo on this system")
    words = set(flags.read_text().split())
    assert has_fast_bf16(CPU) == bool(words & {"avx512_bf16", "amx_tile"})


def test_peak_memory_is_in_bytes() -> None:
    now = psutil.Process().memory_info().rss
    assert 0.9 * now < peak_memory_bytes(CPU) < psutil.virtual_memory().total


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not count anew")
def test_a_peak_is_looked_for_anew() -> None:
    torch.ones(2**26).sum()  # 256 MiB for a moment
    before = peak_memory_bytes(CPU)
    assert reset_peak_memory(CPU)
    assert peak_memory_bytes(CPU, since_reset=True) < before - 2**27
    assert peak_memory_bytes(CPU) >= before


def test_the_environment_is_plain_text() -> None:
    found = environment()
    assert {"python", "torch", "platform", "processor", "cores", "memory_gib", "device"} == set(found)
    assert all(isinstance(value, str) and value for value in found.values())
    assert found["torch"] == torch.__version__
    assert float(found["memory_gib"]) > 0
    assert processor_name()
    assert processor_features().startswith(processor_name())


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_compiler_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler_version("g++") is None
    program(tmp_path, "g++", "#!/bin/sh\necho 'g++ 99.1'\necho more\n")
    program(tmp_path, "fails", "#!/bin/sh\necho 'broken'\nexit 1\n")
    program(tmp_path, "silent", "#!/bin/sh\n")
    program(tmp_path, "not-a-program", "\x7fELF nonsense")
    program(tmp_path, "no-interpreter", "#!/no/such/shell\n")
    assert compiler_version("g++") == "g++ 99.1"
    for name in ("fails", "silent", "not-a-program", "no-interpreter"):
        assert compiler_version(name) is None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux has the counters and the pages")
def test_large_buffers_take_few_page_faults() -> None:
    """In a new process each: torch looks at the variable once."""
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not pages.exists() or "[never]" in pages.read_text():
        pytest.skip("this system has no large pages")
    program = (
        "import resource, torch; from cpplm.core.hardware import enable_huge_pages; {}\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "x = torch.ones(2**24); print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    faults = []
    for call in ("pass", "enable_huge_pages()"):
        command = [sys.executable, "-c", program.format(call)]
        faults.append(int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout))
    assert faults[1] < faults[0] / 10
