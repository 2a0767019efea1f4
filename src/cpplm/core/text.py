"""Numbers in sentences and tables."""


def pluralize(number: int, one: str, several: str = "") -> str:
    """ "1 file", "2 files", "1,000 files"; `several` where the plural takes more than an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def format_bytes(number: float) -> str:
    """ "1 byte", "512 bytes", "1.5 kB", "12.0 MB": decimal units, one digit behind the point."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return pluralize(round(number), "byte")


def short_number(number: float) -> str:
    """ "1.5K", "20.7M", "3T": a number in three or four digits."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.4g}"


def duration(seconds: float) -> str:
    """ "90.0 s", "15.0 min", "2.5 h": one digit behind the point."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
