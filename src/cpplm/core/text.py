"""Numbers in sentences."""


def pluralize(number: int, one: str, several: str = "") -> str:
    """ "1 file", "2 files", "1,000 files"; `several` where the plural takes more than an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def format_bytes(number: float) -> str:
    """ "1 byte", "512 bytes", "1.5 kB", "12.0 MB": decimal units, one digit behind the point."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return pluralize(round(number), "byte")
