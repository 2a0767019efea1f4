"""Hostile source texts: the compiler, the assembler or the linker is the program that is made to do harm.

`{secret}` stands for the path of a file that everybody on this machine may read.
"""

from __future__ import annotations

from typing import NamedTuple


class Hostile(NamedTuple):
    """A source text that wants to do harm."""

    harm: str
    """What it does where nothing holds it."""
    source: str


# ---- reading what is not theirs ----------------------------------------------------------------------------

READING = {
    "include": Hostile(
        "The file's first lines stand in the error message.",
        '#include "{secret}"\nint main() {}',
    ),
    "include_from_above": Hostile(
        "The same, through a path that does not look like one to a secret.",
        '#include "../../../../../../../../..{secret}"\nint main() {}',
    ),
    "include_of_a_macro": Hostile(
        "The same, past a filter that looks for paths in the text.",
        "#define QUOTE(x) #x\n#define FILE(x) QUOTE(x)\n#include FILE({secret})\nint main() {}",
    ),
    "existence": Hostile(
        "Says which files exist.",
        '#if __has_include("{secret}")\n#error there it is\n#endif\nint main() {}',
    ),
    "incbin": Hostile(
        "The file's contents stand in the program.",
        'asm(".incbin \\"{secret}\\"");\nint main() {}',
    ),
    "assembler_include": Hostile(
        "The assembler quotes the file's lines.",
        'asm(".include \\"{secret}\\"");\nint main() {}',
    ),
    "precompiled": Hostile(
        "Has the compiler map a file into its own memory.",
        '#pragma GCC pch_preprocess "{secret}"\nint main() {}',
    ),
    "dependency": Hostile(
        "Says whether a file is newer than this one.",
        '#pragma GCC dependency "{secret}" there it is\nint main() {}',
    ),
}

# ---- never coming to an end, or taking everything ----------------------------------------------------------

COSTLY = {
    "self_include": Hostile("Takes seconds and megabytes of messages.", "#include __FILE__\nint main() {}"),
    "huge_object": Hostile("Leaves a file of 400 MB.", "int numbers[100000000] = {1};\nint main() {}"),
    "huge_variable": Hostile(
        "A program of a petabyte, which the linker lays out.", "char all[1L << 50] = {1};\nint main() {}"
    ),
    "endless_templates": Hostile(
        "Templates without end, gigabytes of memory.",
        "template <int N> struct S { S<N + 1> s; };\nS<0> s;\nint main() {}",
    ),
    "repeated_data": Hostile(
        "The assembler writes until the disk is full.",
        'asm(".rept 1000000000\\n.quad 1\\n.endr");\nint main() {}',
    ),
    "skipped_space": Hostile(
        "An object file of a terabyte.", 'asm(".data\\n.space 1099511627776, 1");\nint main() {}'
    ),
    "assembler_macro": Hostile(
        "A macro of the assembler that doubles itself for ever.",
        'asm(".macro m\\nm\\nm\\n.endm\\nm");\nint main() {}',
    ),
    "many_errors": Hostile(
        "Megabytes of messages.", "".join(f"int a{i} = undeclared{i};\n" for i in range(5000))
    ),
    "long_message": Hostile(
        "A message of a megabyte.", f'static_assert(false, "{"A" * 1_000_000}");\nint main() {{}}'
    ),
    "user_error": Hostile(
        "Endless recursion of an overloaded operator while the compiler looks for a type.",
        "struct S {};\ntemplate <class T> auto operator+(T t, S s) -> decltype(t + s + s);\n"
        "auto x = S{} + S{};\nint main() {}",
    ),
}
"""None of them compiles."""

BOMBS = {
    "growing_names": Hostile(
        "Names that double in length with each step, until memory is full.",
        "template <class A, class B> struct P {};\n"
        + "".join(f"using T{i + 1} = P<T{i}, T{i}>;\n" for i in range(40)).replace("T0", "int")
        + "template <class T> auto f() { return __PRETTY_FUNCTION__; }\nint main() { f<T40>(); }",
    ),
    "nested_brackets": Hostile(
        "The parser calls itself until its stack ends.",
        "int x = " + "(" * 100_000 + "1" + ")" * 100_000 + ";",
    ),
    "dev_zero": Hostile("Reads zeros until memory is full.", '#include "/dev/zero"\nint main() {}'),
    "dev_random": Hostile("Reads for ever.", '#include "/dev/urandom"\nint main() {}'),
    "incbin_zero": Hostile("The assembler reads for ever.", 'asm(".incbin \\"/dev/zero\\"");\nint main() {}'),
    "constexpr": Hostile(
        "Hours of computation in the compiler.",
        "constexpr int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\nconstexpr int x = f(60);",
    ),
    "constexpr_loop": Hostile(
        "The same with a loop.",
        "constexpr long f() { long s = 0; for (long i = 0; i < 1L << 60; ++i) s += i; return s; }\n"
        "static_assert(f() == 0);",
    ),
    "template_tree": Hostile(
        "A compiler that outlives the time limit of its driver, and fills the memory.",
        "template <int N, int M> struct T { T<N - 1, 2 * M> a; T<N - 1, 2 * M + 1> b; };\n"
        "template <int M> struct T<0, M> { int x; };\nT<26, 0> tree;\nint main() {}",
    ),
    "macro_bomb": Hostile(
        "Four gigabytes of memory.",
        "#define A0 x x x x x x x x\n"
        + "".join(f"#define A{i} {' '.join([f'A{i - 1}'] * 8)}\n" for i in range(1, 10))
        + "int main() { A9 }",
    ),
}
"""Those that take as long as they are allowed to; a limit ends them."""

HARMLESS_HERE = {
    "nested_blocks": Hostile(
        "The parser calls itself until its stack ends.", "int main() {" + "{" * 100_000 + "}" * 100_000 + "}"
    ),
    "standard_input": Hostile(
        "The compiler waits for ever for what the user types.", '#include "/dev/stdin"\nint main() {}'
    ),
}
"""Compiling them ends, with or without a program."""
