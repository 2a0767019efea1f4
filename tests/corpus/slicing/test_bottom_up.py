"""Callees before callers, as far as that is the same code."""

import pytest

from tests.corpus.cpp import in_order, one_document


def test_own_functions_that_stand_together_come_callees_first(tmp_path):
    source = (
        "int leaf();\nint middle();\n\nint top() { return middle(); }\n\nint middle() { return leaf(); }\n\n"
        "int limit = 3;\n\nint other() { return leaf(); }\n\nint leaf() { return limit; }\n"
    )
    document = one_document(tmp_path, {"a.cc": source})
    in_order(document.text, *("int limit", "int leaf() {", "int middle() {", "int top() {", "int other() {"))


def test_a_caller_moves_down_past_scopes_and_conditions(tmp_path):
    source = (
        "int leaf();\n\nint top() { return leaf(); }\n\nnamespace {\nint after() { return leaf(); }\n\n"
        "int limit = 3;\n}\n\n#ifdef FAST\nint leaf() { return limit; }\n#else\n"
        "int leaf() { return limit + 1; }\n#endif\n"
    )
    text = one_document(tmp_path, {"a.cc": source}).text
    in_order(text, "int leaf();", "namespace {", "int after() {", "int limit", "limit + 1;", "int top() {")
    assert sorted(text.split()) == sorted(source.split())


def test_functions_in_a_thousand_scopes_keep_their_order(tmp_path):
    head = "".join(f"namespace n{number} {{\nint x;\n" for number in range(1_000))
    source = f"{head}int top();\nint use() {{ return top(); }}\nint top() {{ return 1; }}\n" + "}\n" * 1_000
    in_order(one_document(tmp_path, {"a.cc": source}).text, "int use()", "int top() {")


BEHIND = {
    "names it": "int (*table)() = top;",
    "declares what it mentions": "struct Row { int a; };",
    "defines a macro that it mentions": "#undef SIZE",
    "is no declaration": "#pragma pack(1)",
    "changes the scope": "using namespace std;",
}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_a_caller_does_not_move_past_what(behind, tmp_path):
    source = (
        "#include <string>\n\nstruct Row;\nint leaf();\n#define SIZE 3\n\n"
        f"int top() {{\n  Row* row = nullptr;\n  return row ? SIZE : leaf();\n}}\n\n{behind}\n\n"
        "int limit = 3;\n\nint leaf() { return limit; }\n"
    )
    assert one_document(tmp_path, {"a.cc": source}).text == source


def test_functions_that_call_each_other_keep_their_order(tmp_path):
    source = "bool even(int n);\nbool odd(int n) { return n && even(n - 1); }\n"
    source += "bool even(int n) { return !n || odd(n - 1); }\n"
    assert one_document(tmp_path, {"a.cc": source}).text == source
