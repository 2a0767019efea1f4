"""Peak rates of GPUs from the makers' data sheets; torch-free, so that settings can import it."""

from __future__ import annotations

# Dense bfloat16 operations per second, in 10^12, by a part of the device's name. The first match counts.
PEAK_TERAFLOPS = {
    "B300": 2500.0,
    "GB200": 2500.0,
    "B200": 2250.0,
    "GH200": 989.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "A10G": 70.0,
    "A10": 125.0,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
}
