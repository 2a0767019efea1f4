import pytest

from cpplm.core.wording import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1000, "1,000 files")]
)
def test_one_is_not_several(number: int, text: str) -> None:
    assert counted(number, "file") == text


def test_a_plural_of_its_own() -> None:
    assert [counted(n, "pass", "passes") for n in (1, 2)] == ["1 pass", "2 passes"]
