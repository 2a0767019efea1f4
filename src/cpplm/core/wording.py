"""Numbers in sentences."""


def counted(number: int, one: str, several: str = "") -> str:
    """ "1 file", "2 files", "1,000 files"; `several` where the plural takes more than an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
