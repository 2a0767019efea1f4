import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.corpus.slicing.ordering import Graph
from cpplm.corpus.slicing.placing import components, order
from cpplm.corpus.slicing.writer import render
from cpplm.cpp.items import read_items
from cpplm.cpp.macros import MacroTable
from tests.corpus.cpp import compile_errors, in_order, needs_gxx


def ordered(source: str) -> str:
    items = read_items(source.encode(), MacroTable()).items
    return render([items[index] for index in order(Graph(items))])[0].decode()


def test_callees_come_before_callers():
    text = ordered(
        "int a();\nint b();\nint top() { return a() + b(); }\n"
        "int b() { return a(); }\nint a() { return 1; }\n"
    )
    in_order(text, "int a();", "int a() {", "int b() {", "int top()")


@pytest.mark.parametrize("name", ["freeList", "exitCode", "assertValid", "testAll", "__impl", "memoryOf"])
def test_names_that_start_like_library_calls_are_callees_like_any_other(name):
    text = ordered(f"int {name}();\nint top() {{ return {name}(); }}\nint {name}() {{ return 1; }}\n")
    in_order(text, f"int {name}() {{", "int top()")


def test_a_cycle_keeps_its_source_order_and_nothing_else_is_disturbed():
    text = ordered(
        "bool odd(int);\nbool leaf();\nint user() { return odd(3); }\n"
        "bool even(int n) { return n == 0 || odd(n - 1); }\n"
        "bool odd(int n) { return n && even(n - 1) && leaf(); }\n"
        "bool leaf() { return true; }\n"
    )
    in_order(text, "bool leaf() {", "bool even(int n)", "bool odd(int n)", "int user()")


def test_what_types_need_goes_before_them():
    text = ordered(
        "constexpr int size() { return 4; }\nvoid other() {}\n"
        "struct A { int x[size()]; };\nenum { kTwo = 2 };\n"
        "int table[kTwo];\nstruct B { A a[sizeof(table)]; };\n"
    )
    in_order(text, "size() {", "struct A", "kTwo = 2", "int table", "struct B", "void other")


def test_default_arguments_and_out_of_class_members():
    text = ordered(
        "struct C { int m(); static int s; };\nint f(int a = 1);\nint C::s = 0;\nint C::m() { return f(); }\n"
        "int f(int a) { return a; }\ntemplate <class T> struct X { void g(); };\n"
        "template <class T> void X<T>::g() {}\ntemplate struct X<int>;\n"
    )
    in_order(text, "struct C {", "struct X { void g(); }", "int f(int a = 1)", "int f(int a) {", "int C::m()")
    in_order(text, "X<T>::g", "template struct X<int>;")


def test_a_macro_that_is_undefined_keeps_its_users_between():
    source = (
        "#define X 1\nint a() { return X; }\n#undef X\n#define X 2\nint b() { return X; }\nstruct T { };\n"
    )
    text = ordered(source)
    in_order(text, "#define X 1", "int a()", "#undef X", "#define X 2", "int b()")


def test_an_x_macro_keeps_its_include_in_place():
    text = ordered(
        '#define ENTRY(x) int x;\nstruct T {};\n#include "entries.def"\n#undef ENTRY\nint f() { return 1; }\n'
    )
    in_order(text, "#define ENTRY", "struct T", "entries.def", "#undef ENTRY")
    in_order(text, "entries.def", "int f()")


@needs_gxx
def test_namespaces_and_conditions_are_reopened_and_it_compiles():
    source = """#include <string>
namespace a {
#if __cplusplus >= 201703L
inline namespace v1 {
std::string late();
std::string early() { return late(); }
}  // namespace v1
#else
int never() { return 1; }
#endif
namespace { struct T { int x; }; }
std::string v1::late() { return T().x ? "a" : "b"; }
}  // namespace a
extern "C" { int c_function(int x) { return x; } }
namespace a { int use() { return c_function(T{1}.x); } }
"""
    text = ordered(source)
    assert compile_errors(source) == ""
    assert compile_errors(text) == ""
    assert text.count("{") == text.count("}")


@given(st.integers(0, 2**32), st.integers(1, 14))
def test_every_call_outside_cycles_is_in_order_and_nothing_is_lost(seed, count):
    random_state = random.Random(seed)
    calls = {
        i: sorted({random_state.randrange(count) for _ in range(random_state.randrange(3))})
        for i in range(count)
    }
    prototypes = "".join(f"int f{i}x();\n" for i in range(count))
    bodies = "".join(
        f"int f{i}x() {{ return {' + '.join(['1', *(f'f{c}x()' for c in calls[i])])}; }}\n" for i in calls
    )
    text = ordered(prototypes + bodies)
    place = {i: text.index(f"int f{i}x() {{") for i in calls}
    reach: dict[int, set[int]] = {}
    for i, called in calls.items():
        seen: set[int] = set()
        waiting = list(called)
        while waiting:
            callee = waiting.pop()
            if callee not in seen:
                seen.add(callee)
                waiting += calls[callee]
        reach[i] = seen
    for caller, callees in calls.items():
        for callee in callees:
            if caller not in reach[callee]:
                assert place[callee] < place[caller]
            elif caller != callee:  # in one cycle: source order
                assert (place[callee] < place[caller]) == (callee < caller)


@given(st.dictionaries(st.integers(0, 8), st.lists(st.integers(0, 8), max_size=4), min_size=1))
def test_components_agree_with_reachability(edges):
    nodes = sorted(edges)
    graph = {node: [target for target in edges[node] if target in edges] for node in nodes}
    reach = {node: {node} for node in nodes}
    for _ in nodes:
        for node in nodes:
            reach[node] |= set().union(*(reach[target] for target in graph[node]), set())
    found = components(nodes, graph)
    assert sorted(node for part in found for node in part) == nodes
    for number, part in enumerate(found):
        assert all(other in reach[node] for node in part for other in part)
        later = {node for rest in found[number + 1 :] for node in rest}
        assert not any(later & reach[node] for node in part)
