"""Hardware of this machine: device, number format, memory, compilers."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil
import torch

from cpplm.core.errors import UserError
from cpplm.core.settings import Precision
from cpplm.core.workers import peak_resident_memory

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def choose_device(device_type: str = "") -> torch.device:
    """The named device, or the best one present: cuda, then mps, then cpu.

    Raises:
        UserError: the named device is not here.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if not device_type:
        device_type = next(name for name, here in present.items() if here)
    if not present.get(device_type, False):
        here = ", ".join(name for name, yes in present.items() if yes)
        raise UserError(f"device {device_type!r} is not available", fix=f"This machine has: {here}.")
    return torch.device(device_type)


# PCI devices of vendor 0x1ae0 (Google) that are TPUs: v2 and v3, v4, v5p, v5e, v6e, v7.
_GOOGLE = "0x1ae0"
_TPUS = {"0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}


def count_tpus(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """TPU chips in this machine, found without a library and without taking hold of one."""
    count = 0
    for device in devices.glob("*"):
        try:
            ids = [(device / name).read_text().strip() for name in ("vendor", "device")]
        except OSError:
            continue
        count += ids[0] == _GOOGLE and ids[1] in _TPUS
    return count


def has_fast_bf16(device: torch.device) -> bool:
    """True if bfloat16 matrix products run in hardware on `device`."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":  # torch has a public query only from 2.12 on
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The dtype of matrix products: bfloat16 where it is fast, else float32."""
    if precision == "auto":
        return torch.bfloat16 if has_fast_bf16(device) else torch.float32
    return DTYPES[precision]


def enable_huge_pages() -> None:
    """Have torch ask Linux for 2 MB pages where it allocates that much; call it before the first tensor.

    Buffers of a training step come fresh from the system in each step, one page fault for every 4 KiB
    otherwise. Does nothing where the system has no such pages. A user's own choice stays.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


_peaks_before_reset: dict[str, int] = {}


def held_memory_bytes(device: torch.device) -> int:
    """Memory held now: in tensors on the GPU for cuda, else resident memory of this process."""
    return (
        torch.cuda.memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss
    )


def peak_memory_bytes(device: torch.device, *, since_reset: bool = False) -> int:
    """Most memory held so far, or since `reset_peak_memory`; of what, see `held_memory_bytes`."""
    cuda = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(device) if cuda else peak_resident_memory()[0]
    # Without CUDA the system notes a peak a little late.
    return max(peak, held_memory_bytes(device), 0 if since_reset else _peaks_before_reset.get(device.type, 0))


def reset_peak_memory(device: torch.device) -> bool:
    """Begin to look for a new peak; False where that does not work (without CUDA: but on Linux).

    The peak that Linux itself tells of this process (`/usr/bin/time -v`) is since then, too.
    """
    _peaks_before_reset[device.type] = peak_memory_bytes(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def environment() -> dict[str, str]:
    """Versions and hardware, to store beside figures."""
    device = choose_device()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "cores": str(psutil.cpu_count(logical=True)),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.1f}",
        "device": device.type,
    }


def processor_name() -> str:
    """The processor's marketing name where the system tells it."""
    line = _line_of_cpuinfo("model name")
    return line.split(":", 1)[1].strip() if line else platform.processor() or platform.machine()


def processor_features() -> str:
    """The processor's name, and its instruction sets where the system tells them."""
    return f"{processor_name()} {_line_of_cpuinfo('flags', 'Features')}"


def _line_of_cpuinfo(*begins: str) -> str:
    """The first line that begins so; empty where the system has no such line."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123  (a file of the kernel)
            return next(line for line in lines if line.startswith(begins))
    except (OSError, StopIteration):
        return ""


def compiler_version(name: str) -> str | None:
    """The first line of `NAME --version`, or None when it is not installed or does not work."""
    path = shutil.which(name)
    if path is None:
        return None
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.splitlines()[0] if result.returncode == 0 and result.stdout else None
