"""The value of an `#if`: what no document shows."""

from cpplm.cpp.conditions import Macro, MacroState


def test_macros_that_stand_for_nothing_end_at_once() -> None:
    """Each of twelve names the one before ten times, and the first is empty: no token is ever left."""
    bodies = {b"A0": b""} | {b"A%d" % number: b"A%d " % (number - 1) * 10 for number in range(1, 31)}
    macros: dict[bytes, Macro | None] = {name: Macro(body) for name, body in bodies.items()}
    state = MacroState(frozenset(), macros=macros)
    assert state.holds(b"#if A12") is None
    assert state.holds(b"#if A30") is None
    assert state.holds(b"#if A2 1") is True


def test_large_numbers_are_divided_exactly() -> None:
    state = MacroState(frozenset())
    assert state.holds(b"#if LONG_MAX / 2 == 4611686018427387903") is True
    assert state.holds(b"#if LONG_MAX % 10 == 7") is True
    assert state.holds(b"#if -7 / 2 == -3 && -7 % 2 == -1 && 7 / -2 == -3 && 7 % -2 == 1") is True
