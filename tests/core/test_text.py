import pytest

from cpplm.core.text import duration, format_bytes, pluralize, short_number


def test_one_is_not_several() -> None:
    assert [pluralize(n, "file") for n in (0, 1, 1000)] == ["0 files", "1 file", "1,000 files"]
    assert [pluralize(n, "pass", "passes") for n in (1, 2)] == ["1 pass", "2 passes"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1_000, "1.0 kB"), (44_000, "44.0 kB"),
     (1_250_000, "1.2 MB"), (3e12, "3,000.0 GB")],
)  # fmt: skip
def test_sizes_have_a_unit_that_fits(number: float, text: str) -> None:
    assert format_bytes(number) == text


def test_durations_have_a_unit_that_fits() -> None:
    assert [duration(seconds) for seconds in (90, 900, 9000)] == ["90.0 s", "15.0 min", "2.5 h"]


def test_abbreviated_numbers() -> None:
    assert [short_number(n) for n in (7, 1_500, 20_700_000, 3e12)] == ["7", "1.5K", "20.7M", "3T"]
