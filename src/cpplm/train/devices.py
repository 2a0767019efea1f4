"""The devices of a run: this machine's, or those of a data sheet (`cpplm train --dry_run --gpu`)."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from cpplm.core.device_specs import PEAK_TERAFLOPS
from cpplm.core.hardware import processor_name
from cpplm.core.mfu import peak_flops_for_mfu

# Memory of one device in 10^9 bytes, by the names of PEAK_TERAFLOPS, as the makers state it. Where a
# device is sold with several sizes, the smallest.
MEMORY_GB = {
    "B300": 288, "GB200": 186, "B200": 180, "GH200": 96, "H200": 141, "H100 PCIe": 80, "H100 NVL": 94,
    "H100": 80, "H800": 80, "H20": 96, "A100": 40, "A800": 40, "L40S": 48, "L40": 48, "L4": 24, "A10G": 24,
    "A10": 24, "RTX 5090": 32, "RTX 4090": 24, "RTX 3090": 24,
}  # fmt: skip


@dataclass(frozen=True)
class Devices:
    """`count` devices of one kind ("cpu", "cuda", "mps", "tpu"), each with the memory and peak rate given.

    `peak_flops` is in operations per second, and `peak_source` says where it is from: "maker" or "measured".
    """

    name: str
    kind: str
    count: int
    peak_flops: float
    peak_source: str
    memory_bytes: int

    def tokens_per_second(self, flops_per_token: int, mfu: float) -> float:
        """Training rate, where the share `mfu` of the peak rate is reached."""
        return mfu * self.peak_flops * self.count / flops_per_token


def local_devices(device: torch.device, dtype: torch.dtype, count: int) -> Devices:
    """So many of `device`, one of which is this process's; a rate that no maker gives is measured."""
    peak, source = peak_flops_for_mfu(device, dtype)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Devices(properties.name, "cuda", count, peak, source, properties.total_memory)
    name = f"{processor_name()} ({torch.get_num_threads()} threads)"
    return Devices(name, device.type, count, peak, source, psutil.virtual_memory().total)


def data_sheet_devices(gpu: str, count: int, memory_gb: float = -1.0) -> Devices:
    """So many GPUs by their name in the data sheets; `memory_gb` in 10^9 bytes, -1 for the data sheet's."""
    memory = round(1e9 * (MEMORY_GB[gpu] if memory_gb == -1 else memory_gb))
    return Devices(gpu, "cuda", count, PEAK_TERAFLOPS[gpu] * 1e12, "maker", memory)
