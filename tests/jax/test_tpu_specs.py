"""Names of slices, and what they stand for."""

import pytest

from cpplm.core.errors import UserError
from cpplm.jax.tpu_specs import CHIPS, CHIPS_BY_KIND, parse_slice


@pytest.mark.parametrize(
    ("name", "chips", "devices", "topology"),
    [
        ("v6e-4", 4, 4, "v6e:2x2"),
        ("v5e-8", 8, 8, "v5e:2x4"),
        ("v6e-1", 1, 1, "v6e:1x1"),
        ("v5litepod-8", 8, 8, "v5e:2x4"),  # the name in Google's command
        ("v5p-8", 4, 4, "v5p:2x2x1"),  # Google counts its cores, two of each chip
        ("v4-32", 16, 16, "v4:2x2x4"),
        ("v7x-4", 4, 8, "tpu7x:2x2x1"),  # two devices of each chip
    ],
)
def test_slices(name: str, chips: int, devices: int, topology: str) -> None:
    found = parse_slice(name)
    assert (found.chips, found.devices, found.topology) == (chips, devices, topology)


@pytest.mark.parametrize("name", ["v6e", "v6e-3", "v5p-6", "v5p-9", "v9-4", "", "H100-8", "v6e-4x"])
def test_unknown_slices(name: str) -> None:
    with pytest.raises(UserError, match="no TPU slice"):
        parse_slice(name)


def test_devices_share_their_chip() -> None:
    assert CHIPS_BY_KIND["TPU v5"] is CHIPS["v5p"]  # as JAX calls them
    assert CHIPS_BY_KIND["TPU v5 lite"] is CHIPS["v5e"]
    assert CHIPS["v6e"].device_memory == 32 * 2**30
    assert CHIPS["v7x"].device_memory == 96 * 2**30
    assert CHIPS["v7x"].device_peak == 2307e12 / 2
