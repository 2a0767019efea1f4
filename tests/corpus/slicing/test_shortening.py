"""What is left of a borrowed item, and that it still compiles with the code that uses it."""

from pathlib import Path

import pytest

from cpplm.corpus.document import Document
from cpplm.corpus.slicing.shortening import Detail, Shortener, without_comments
from cpplm.cpp.items import Item, ItemKind, read_items
from cpplm.cpp.lexer import lex
from cpplm.cpp.macros import MacroTable, macro_bodies
from tests.corpus.cpp import compile_errors, documents_of, in_order, needs_gxx, write_files


def items(source: str) -> tuple[list[Item], Shortener]:
    table = MacroTable.from_bodies(macro_bodies(lex(source.encode()).directives))
    return read_items(source.encode(), table).items, Shortener(table)


def shortened(source: str, detail: Detail, *wanted: str) -> str:
    """The last item of a source."""
    found, shortener = items(source)
    item = shortener.shorten(found[-1], detail, frozenset(name.encode() for name in wanted))
    return " ".join(item.text.decode().split())


def test_comments_go_and_strings_stay():
    text = b'// one\nint a; // two\n\n/* three */\nconst char* b = "// four"; /* five */ int c;\n'
    assert without_comments(text) == b'int a;\nconst char* b = "// four";  int c;\n'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("int f(int a) { return a; }", "int f(int a);"),
        ("inline std::string g() noexcept { return {}; } // why", "inline std::string g() noexcept;"),
        ("template <class T> T h(T a) { return a; }", "template <class T> T h(T a);"),
        ("struct A { int x = 1; int f() const { return x; } };", "struct A { int x = 1; int f() const; };"),
        ("struct A { A() : x(1), y{2} { x = 2; } int x, y; };", "struct A { A(); int x, y; };"),
        ("struct A { ~A() = default; A(A&) = delete; };", "struct A { ~A() = default; A(A&) = delete; };"),
        ("struct A { virtual int f() = 0; int g() { } };", "struct A { virtual int f() = 0; int g(); };"),
        ("class A { struct B { int f() { return 1; } }; };", "class A { struct B { int f(); }; };"),
        ("struct A { template <class T> T f(T a) { } };", "struct A { template <class T> T f(T a); };"),
        ("enum E { kOne, kTwo };", "enum E { kOne, kTwo };"),
    ],
)  # fmt: skip
def test_bodies_become_declarations(source, expected):
    assert shortened(source + "\n", Detail.DECLARATIONS) == expected


@pytest.mark.parametrize(
    "source",
    [
        "constexpr int size() { return 4; }",
        "auto f() { return 1; }",
        "struct A { constexpr int f() const { return 1; } };",
        "struct A { auto f() { return 1; } };",
        "struct A { decltype(auto) f() { return 1; } };",
        "struct A { friend bool operator==(A, A) { return true; } };",
        "template <class F> void each(F call) { call(1); }",
        "struct A { template <class F> void each(F&& call) { call(1); } };",
        "int A::f() { return 1; }",
        "template <class T> int A<T>::f() { return 1; }",
        "A::operator bool() const { return true; }",
        "int x[] = {1, 2, 3};",
        "struct A { int f()\n#if X\n{ return 1; }\n#else\n{ return 2; }\n#endif\n};",
    ],
)
def test_bodies_that_the_compiler_needs_stay(source):
    assert shortened(source + "\n", Detail.DECLARATIONS) == " ".join(source.split())


def test_a_shortened_function_is_a_prototype_that_mentions_less():
    (item,), shortener = items("// about\nBig make(Small a) { return helper(a); }\n")
    short = shortener.shorten(item, Detail.DECLARATIONS)
    assert (short.kind, short.functions, short.function_name) == (ItemKind.PROTOTYPE, 0, b"")
    assert {b"Big", b"Small", b"make"} <= short.mentions
    assert b"helper" not in short.mentions
    assert short.names == (b"make",)
    assert (short.line, short.last_line) == (item.line, item.last_line)


SHAPE = """class Shape {
 public:
  Shape(int sides) : sides_(sides) {}
  explicit Shape(const char* name);
  virtual ~Shape() {}
  virtual double area() const = 0;
  virtual double scale(double by) { return by; }
  int sides() const { return sides_; }
  bool operator<(const Shape& other) const { return sides_ < other.sides_; }
  operator bool() const { return sides_; }
  void unused() { secret(); }
  template <class T> T unused_template(T a) { return a; }
  static int unused_static();
  int helper() const { return 1; }
  int sides_ = 0, more_ = 1;
  using Number = int;
  enum Color { kRed };
 private:
  void secret();
};
"""


def test_a_skeleton_keeps_what_somebody_may_use():
    text = shortened(SHAPE, Detail.SKELETON, "Shape", "area", "scale", "sides")
    kept = (
        "Shape(int sides);", "explicit Shape(const char* name);", "virtual ~Shape();",
        "virtual double area() const = 0;", "virtual double scale(double by);", "int sides() const;",
        "bool operator<(const Shape& other) const;", "operator bool() const;", "int sides_ = 0, more_ = 1;",
        "using Number = int;", "enum Color { kRed };",
    )  # fmt: skip
    in_order(text, *kept)
    assert not any(word in text for word in ("unused", "helper", "secret", "{ return"))


@needs_gxx
@pytest.mark.parametrize("budget", [49_152, 1_500])
def test_a_document_with_skeletons_compiles(tmp_path, budget):
    unused = "".join(f"  int unused_{i}(int a) {{ return a + {i}; }}\n" for i in range(60))
    header = SHAPE.replace("  void unused()", unused + "  void unused()")
    source = (
        '#include "shape.h"\nclass Square : public Shape {\n public:\n  Square() : Shape(4) {}\n'
        "  double area() const override { return 1; }\n};\n"
        "double use(Square& s) { return s ? s.area() + s.sides() + (s < s) : s.scale(2); }\n"
        "Shape::Number number = Shape::kRed;\n"
    )
    write_files(tmp_path, {"shape.h": "#pragma once\n" + header, "use.cc": source})
    (document,) = documents_of(tmp_path, of="use.cc", generous=False, budget=budget)[0]
    assert document.kind == "compilable"
    assert compile_errors(document.text) == ""
    assert "unused" not in document.text
    in_order(document.text, "int sides() const;", "class Square", "double use(")
    assert "return sides_;" not in document.text


def skeleton(folder: Path, files: dict[str, str]) -> Document:
    """The document of use.cc, which borrows skeletons; it compiles."""
    (document,), _ = documents_of(write_files(folder, files), of="use.cc", generous=False)
    assert compile_errors(document.text) == "", document.text
    return document


@needs_gxx
def test_macros_in_conditions_inside_a_shortened_class_come_along(tmp_path):
    long = "\n".join(f"  int filler{n}() const {{ return {n}; }}  // never called" for n in range(60))
    document = skeleton(
        tmp_path,
        {
            "config.h": "#pragma once\n#define HAS_LONG\n",
            "value.h": '#pragma once\n#include "config.h"\nclass Value {\n public:\n'
            "  Value(int) {}\n#ifdef HAS_LONG\n  Value(long) {}\n#endif\n  Value(double) {}\n"
            f"{long}\n}};\n",
            "use.cc": '#include "value.h"\nValue use(long a) { return a; }\n',
        },
    )
    in_order(document.text, "#define HAS_LONG", "class Value")
    assert "filler" not in document.text
