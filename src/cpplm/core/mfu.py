"""The peak rate of a device, to which the rate of training is compared (MFU, Chowdhery et al. 2022,
arXiv 2204.02311, appendix B).

For GPUs that are known it is the maker's figure for dense bfloat16 products; no maker gives one for a CPU in
this sense, so there, and for other GPUs, the rate of a large matrix product is measured.
"""

from __future__ import annotations

import functools
import time

import torch

from cpplm.core.device_specs import PEAK_TERAFLOPS

_SMALLEST = 512
# Seconds of a product that keeps every core busy; longer ones are interrupted more often.
_LONG_ENOUGH = 0.005
_SECONDS_PER_SIZE = 0.2


def peak_flops_for_mfu(device: torch.device, dtype: torch.dtype) -> tuple[float, str]:
    """Operations per second to call 100 %, and where the figure comes from: "maker" or "measured".

    Args:
        device: where the model trains.
        dtype: of its matrix products; the makers' figures are for bfloat16 whatever it is.
    """
    if device.type == "cuda":  # a GPU that is not in the table is measured
        name = torch.cuda.get_device_name(device)
        for part, peak in PEAK_TERAFLOPS.items():
            if part in name:
                return peak * 1e12, "maker"
    return measured_flops(device, dtype, torch.get_num_threads()), "measured"


@functools.cache
def measured_flops(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """Operations per second of the fastest square matrix product found, among sizes from 512 up.

    Measured once per process, in half a second. The fastest of many short products counts, which other work
    on the machine disturbs less than a long one; on a very busy machine the figure is still too low.

    Args:
        device: where to multiply.
        dtype: of the matrices.
        threads: what `torch.get_num_threads()` says; another number is another measurement.
    """
    size, rate = _SMALLEST, 0.0
    while True:
        seconds = _fastest_product(size, device, dtype)
        rate = max(rate, 2 * size**3 / seconds)
        if seconds > _LONG_ENOUGH:
            return rate
        size *= 2


def _fastest_product(size: int, device: torch.device, dtype: torch.dtype) -> float:
    """Seconds of the fastest of many products."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    (left @ right)[0, 0].item()  # the first one prepares the library
    fastest, begin = float("inf"), time.perf_counter()
    while time.perf_counter() < begin + _SECONDS_PER_SIZE:
        started = time.perf_counter()
        (left @ right)[0, 0].item()  # the figure arrives when the product is done
        fastest = min(fastest, time.perf_counter() - started)
    return fastest
