from cpplm.corpus.slicing.writer import opening_line, render
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.segments import Condition, Frame, Scope


def item(text: str, *stack: Frame) -> Item:
    return Item(ItemKind.FUNCTION, text.encode(), stack, frozenset(), 0, 0, 0)


A, B = Scope(b"namespace a {", b"}  // a"), Scope(b"namespace b {", b"}  // b")
IF, ELIF, ELSE = (Condition((b"#if X", b"#elif Y", b"#else")[:n]) for n in (1, 2, 3))


def words(*items: Item) -> list[str]:
    return [line for line in render(items)[0].decode().splitlines() if line]


def test_the_common_prefix_stays_open():
    assert words(item("1", A), item("2", A, B), item("3", A), item("4")) == [
        "namespace a {", "1", "namespace b {", "2", "}  // b", "3", "}  // a", "4",
    ]  # fmt: skip


def test_an_else_continues_its_if_also_over_a_branch_that_is_left_out():
    assert words(item("1", IF), item("2", ELIF), item("3", ELSE)) == [
        "#if X", "1", "#elif Y", "2", "#else", "3", "#endif",
    ]  # fmt: skip
    assert words(item("1", A, IF), item("3", A, ELSE)) == [
        "namespace a {", "#if X", "1", "#elif Y", "#else", "3", "#endif", "}  // a",
    ]  # fmt: skip


def test_a_branch_on_its_own_gets_the_negated_condition():
    assert words(item("3", ELSE), item("1", IF)) == [
        "#if !(X) && !(Y)",
        "3",
        "#endif",
        "#if X",
        "1",
        "#endif",
    ]
    assert opening_line(ELIF) == b"#if !(X) && (Y)"
    assert opening_line(Condition((b"#ifdef X", b"#else"))) == b"#ifndef X"
    assert opening_line(Condition((b"#ifndef X", b"#elif Y", b"#else"))) == b"#if !(!defined(X)) && !(Y)"


def test_starts_are_where_the_items_begin():
    items = [item("\nfirst", A), item("// second\nlonger", A, IF), item("third\n\n", B), item("fourth")]
    text, starts = render(items)
    assert len(starts) == len(items)
    for start, each in zip(starts, items, strict=True):
        assert text.startswith(each.text.strip(b"\n"), start)
