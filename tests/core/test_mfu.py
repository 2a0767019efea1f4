"""The rate that counts as 100 %: how it is searched for, and that it is measured once."""

import pytest
import torch

import cpplm.core.mfu
from cpplm.core.mfu import measured_flops, peak_flops_for_mfu

CPU = torch.device("cpu")


def test_sizes_grow_until_the_overhead_of_a_product_no_longer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    peak, sizes = 5e12, list[int]()

    def fastest_product(size: int, device: torch.device, dtype: torch.dtype) -> float:
        sizes.append(size)
        return 2 * size**3 / peak + 2e-4

    monkeypatch.setattr(cpplm.core.mfu, "_fastest_product", fastest_product)
    assert 0.95 * peak < measured_flops(CPU, torch.float32, 12_345) < peak
    measured_flops(CPU, torch.float32, 12_345)
    assert sizes == [512, 1024, 2048, 4096]  # once


def test_a_real_measurement() -> None:
    rate, source = peak_flops_for_mfu(CPU, torch.float32)
    assert source == "measured"
    assert 1e8 < rate < 1e15  # a hundredth of one old core; more than any CPU has


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_reaches_most_of_what_its_maker_says() -> None:
    device = torch.device("cuda")
    rate, source = peak_flops_for_mfu(device, torch.bfloat16)
    if source == "maker":
        assert 0.4 < measured_flops(device, torch.bfloat16, 1) / rate < 1.1
