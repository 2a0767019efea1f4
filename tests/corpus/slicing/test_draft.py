"""What a draft says about items that might be added to it."""

import pytest

from cpplm.corpus.slicing.draft import Draft, is_local
from cpplm.cpp.items import Item, read_items
from cpplm.cpp.lexer import lex
from cpplm.cpp.macros import MacroTable, macro_bodies


def items_of(source: str, file: int = 0) -> list[Item]:
    data = source.encode()
    return read_items(data, MacroTable.from_bodies(macro_bodies(lex(data).directives)), file=file).items


@pytest.mark.parametrize(
    ("source", "local"),
    [
        ("static int f(int a) { return a; }", True),
        ("// static, once\nint f(int a) { static int b = a; return b; }", False),
        ("int f(int a) { return a; }", False),
        ("namespace {\nint f(int a) { return a; }\n}", True),
        ("namespace n { namespace {\nint f(int a) { return a; }\n} }", True),
        ("namespace n {\nint f(int a) { return a; }\n}", False),
    ],
)
def test_which_functions_belong_to_their_file(source, local):
    assert [is_local(item) for item in items_of(source)] == [local]


@pytest.mark.parametrize(
    ("there", "new", "admitted"),
    [
        ("int a;", "int b;", True),
        ("struct A { int x; };", "static int A() { return 1; }", False),
        ("struct A;", "struct A { int x; };", True),
        ("int f();", "int f() { return 1; }", True),
        ("int f(int wide) { return wide; }", "#define wide 3", False),
        ("#define wide 3", "int f(int wide) { return wide; }", False),
        ("int a;", "#include <vector>", True),
        ("int a;", "#include <sys/stat.h>", True),
        ("int a;", "#include <windows.h>", False),
    ],
)
def test_what_would_change_a_meaning_is_not_admitted(there, new, admitted):
    draft = Draft(frozenset({0}))
    for number, item in enumerate(items_of(there)):
        draft.add(item, (0, number), 1)
    (item,) = items_of(new, file=1)
    assert draft.admits(item, sight={1}) == admitted


def test_a_file_gets_on_with_what_it_sees_but_for_macros_of_its_own():
    draft = Draft(frozenset({0}))
    for number, item in enumerate(items_of("#define wide 3\nint narrow;\nint f() { return 1; }")):
        draft.add(item, (0, number), 1)
    user, overload, macro = items_of(
        "int g() { return wide; }\nint f(int a) { return a; }\n#define wide 4", file=1
    )
    assert draft.admits(user, sight={0, 1})
    assert draft.admits(overload, sight={0, 1})
    assert not draft.admits(macro, sight={0, 1})
