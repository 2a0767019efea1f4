"""Every name once, and nobody has much more than the others."""

from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.partition import partition_by_size


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 100), max_size=20), st.integers(1, 6))
def test_shares(sizes: dict[str, int], count: int) -> None:
    shares = partition_by_size(sizes, count)
    assert len(shares) == count
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    assert shares == partition_by_size(dict(reversed(sizes.items())), count)
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


def test_the_largest_first() -> None:
    assert partition_by_size({"a": 1, "b": 5, "c": 3, "d": 3}, 2) == [["b", "a"], ["c", "d"]]
