"""Lists that macros make, tables of functions, members of options: the smallest project of each case."""

import pytest

from cpplm.corpus.slicing.tables import table_pieces
from cpplm.cpp.items import read_items
from cpplm.cpp.macros import MacroTable
from tests.corpus.cpp import assert_compiles, compile_errors, in_order, needs_gxx, one_document

pytestmark = needs_gxx

_CALLS = "".join(
    f"  int (*call_{n}) (struct plugin *self, const char *first, int second);\n" for n in range(200)
)
_TABLE = "struct plugin {\n  int version;\n" + _CALLS + "};\n"
_OPTIONS = "".join(f'OPTION(NUMBER_{n}, "this is what option {n} is about")\n' for n in range(200))
_LIST = (
    "typedef enum {\n#define OPTION(name, text) OPT_##name,\n"
    + _OPTIONS
    + "#undef OPTION\n  LAST\n} option;\n"
)
_COMMAS = (
    "#define ERROR(name, text) ERR_##name\ntypedef enum {\n"
    + ",\n".join(f'ERROR(NUMBER_{n}, "this is what error {n} is about")' for n in range(200))
    + "\n, ERR_COUNT\n} error;\n"
)
_ORDERS = "".join(f"    Order_{n},\n" for n in range(200))
_CLASS = (
    "#define LAST_OF(type) type##_LAST\nstruct Model {\n  enum Order {\n" + _ORDERS + "    Order_LAST\n  };\n"
    "  static constexpr int last() { return LAST_OF(Order) + Order_7; }\n};\n"
)
_BODY = (
    "static int serve(int n)\n{\n#ifdef LOG\n  start_log();\n#else\n  n--;\n#endif\n"
    + "".join(f"  int step_{n} = {n};\n" for n in range(200))
    + "  return n + step_7;\n}\n"
)
_UNREADABLE = (
    "#define APPLY(op) n op 2;\nstatic int turn(int n)\n{\n  APPLY(+=)\n" + _BODY.partition("#endif\n")[2]
)
_POINTERS = (
    "void *get(const char *);\n#define GET(name) api_##name = get(#name)\n"
    + "".join(f"static int (*api_call_{n})(int first, int second);\n" for n in range(100))
    + "static int init(void) {\n"
    + "".join(f"  GET(call_{n});\n" for n in range(100))
    + "  return 1;\n}\n"
)
_LONG = {
    "a table of functions": (_TABLE, "((struct plugin *)0)->call_7(0, 0, 0)"),
    "a list of options": (_LIST, "OPT_NUMBER_7"),
    "a list with commas between what macros make": (_COMMAS, "ERR_NUMBER_7"),
    "names that a macro puts together": (_CLASS, "Model::last()"),
    "a body with branches": (_BODY, "serve(7)"),
    "a body that the parser cannot read": (_UNREADABLE, "turn(7)"),
    "names that a macro pastes in a body": (_POINTERS, "init() + api_call_7(1, 2)"),
}

_PROJECTS: dict[str, dict[str, str]] = {
    "a type that has the name of a macro with arguments": {
        "util.h": "#define Trace(x)\n",
        "trace.h": "typedef struct Trace { int level; } Trace;\nstruct interp { Trace *trace; };\n",
        "use.c": '#include "trace.h"\nint use(struct interp *i) { return i->trace->level; }\n',
    },
    "declarations beside the scope of C, in one condition": {
        "both.h": "#ifdef __cplusplus\n#include <cstddef>\nnamespace lib { typedef std::size_t length; }\n"
        'extern "C" {\n#endif\nstruct piece { int n; };\n#ifdef __cplusplus\n}\n#include "both.inl"\n'
        "namespace lib { inline length of(const piece &p) { return p.n + extra(); } }\n#endif\n",
        "both.inl": "inline int extra() { return 1; }\n",
        "use.cc": '#include "both.h"\nint use(const piece &p) { return lib::of(p); }\n',
    },
    "a member that an option hides": {
        "context.h": "struct context {\n  int fd;\n#ifdef LIB_NETLINK\n  struct link *link;\n#endif\n};\n"
        "struct link { int socket; };\n",
        "use.c": '#include "context.h"\nint use(struct context *c) { return c->link->socket; }\n',
    },
    "a header that the build includes before each file": {
        "Makefile.am": "AM_CPPFLAGS = \\\n\t-include $(top_builddir)/config.h \\\n\t-Iinclude\n",
        "config.h.in": "#undef HAVE_SEARCH_H\n#ifndef _GNU_SOURCE\n# undef _GNU_SOURCE\n#endif\n",
        "use.c": "#include <search.h>\nstruct table { struct hsearch_data data; };\n",
    },
    "headers that the checks of autoconf look for before all else": {
        "configure.ac": "AC_INIT([lib], [1])\nAC_CONFIG_HEADERS([config.h])\nAC_CHECK_FUNCS([other])\n",
        "lib.h": "#ifdef HAVE_STDINT_H\n# include <stdint.h>\n#endif\nstruct piece { uint64_t n; };\n",
        "use.c": '#include "config.h"\n#include "lib.h"\nlong use(struct piece *p) { return p->n; }\n',
    },
    "what gnulib's copies of the system's headers define": {
        "lib/fcntl.in.h": "#define O_BINARY 0\n",
        "use.c": "#include <stdio.h>\n#include <locale.h>\nint safer(const char *) _GL_ARG_NONNULL ((1));\n"
        "char buffer[SETLOCALE_NULL_MAX];\n",
    },
    "a macro of nothing at the end of a file": {
        "config.h": "#define hidden_def(name)\n#define weak_alias(name, other)\n",
        "use.c": '#include "config.h"\nint use(void) { return 1; }\nhidden_def (use)\nweak_alias (use, b)\n',
    },
    "a function type whose name stands in parentheses": {
        "hash.h": "typedef unsigned long long (hash_key)(void *key);\nstruct table { hash_key *hash; };\n",
        "use.c": '#include "hash.h"\nint use(struct table *t) { return t->hash(0) != 0; }\n',
    },
    "an operator that a function brings in from the global scope": {
        "secret.h": "#include <sstream>\nnamespace lib { class Secret; }\n"
        "void operator<<(lib::Secret &, int);\n"
        "namespace lib {\ntemplate <typename T> void print(std::ostream &s, const T &t) {\n"
        "  using ::operator<<;\n  s << t;\n}\n}\n",
        "use.cc": '#include "secret.h"\nvoid use(std::ostream &s) { lib::print(s, 1); }\n',
    },
    "a source that a header includes by a macro of its own": {
        "lib.h": "#ifndef APART\n#define LIB_HEADER_ONLY\n#endif\nint f(int);\n"
        '#if defined(LIB_HEADER_ONLY) && !defined(LIB_SOURCE)\n#define LIB_SOURCE "lib.c"\n'
        "#include LIB_SOURCE\n#endif\n",
        "use.c": '#include "lib.h"\nint use(void) { return f(1); }\n',
    },
    "names of headers that a build would include": {
        "types.h": "struct piece { uint32_t length; wchar_t first; bool is_last; };\n",
        "use.c": '#include <string.h>\n#include "types.h"\nint use(struct piece *p) { return p->is_last; }\n',
    },
    "a copy of a header of the system, and the system's": {
        "support/regex.h": "#ifndef _REGEX_H\n#define _REGEX_H 1\n#include <sys/types.h>\n"
        "struct re_pattern_buffer { int own; };\n#endif\n",
        "match.h": "#include <regex.h>\nint match(struct re_pattern_buffer *);\n",
        "use.c": '#include "support/regex.h"\n#include "match.h"\n'
        "int use(struct re_pattern_buffer *p) { return p->own + match(p); }\n",
    },
    "prose that is never read": {
        "defs.h": "#ifdef __cplusplus\n#define C_STRUCT\n#else\n#if 0\n  EXPAND = YES\n  LEVEL = 1\n#endif\n"
        "#define C_STRUCT struct\n#endif\n"
        "#ifdef WIDE\ntypedef double real;\n#else\ntypedef float real;\n#endif\n",
        "use.c": '#include "defs.h"\nreal use(void) { return 1; }\n',
    },
    "the version that a Makefile of GNU writes": {
        "use.c": '#include <stdio.h>\n#include "version.h"\nint use(void) { return puts (Version); }\n',
    },
    "macros whose last lines are blank": {
        "m.h": "int f(int);\n#define OTHER 1\n#define A(i) \\\n  f(i) \\\n\n"
        "#define B(i) \\\n  (#i)[0] \\\n\nint g(int);\n",
        "use.c": '#include "m.h"\nint use(void) { return A(1) + B(2) + g(3); }\n',
    },
    "types of the system, declared for others that lack them": {
        "net.h": "#include <sys/socket.h>\n#if defined(LIB_OPTEE)\ntypedef unknown_t socklen_t;\n#endif\n"
        "int length(socklen_t n);\n",
        "use.c": '#include "net.h"\nint use(socklen_t n) { return length(n); }\n',
    },
    "a header that a rule writes, included as one of the system": {
        "include/Makefile.in": "all: lib_def.h\n\nlib_def.h: MKdefs\n\tsh MKdefs > lib_def.h\n",
        "use.c": "#include <lib_def.h>\n#ifndef DEPTH\n#define DEPTH 4\n#endif\nint depth = DEPTH;\n",
    },
    "a header that stands on constants of what its includer reads before": {
        "lib.h": '#include "base.h"\n#include "use.h"\n',
        "base.h": "enum { BASE_COUNT = 3 };\n",
        "use.h": "enum { USE_FIRST = BASE_COUNT, USE_LAST };\n",
        "a.c": '#include "lib.h"\nint a = USE_LAST;\n',
    },
    "a structure that a macro begins": {
        "tries.h": "#define TRIES struct tries\ntypedef TRIES {\n  TRIES *child;\n"
        "  int value;\n#undef TRIES\n} TRIES;\n",
        "use.c": '#include "tries.h"\nint use(TRIES *t) { return t->child->value; }\n',
    },
    "names that a macro pastes of several arguments, and by way of another": {
        "super.h": "#define JOIN(a, b) a##b\n#define LAST(kind) JOIN(kind, _last)\n"
        "#define FUNCTIONS(name, ver, flag) \\\n"
        "static int has_##name(void) { return EXT##ver##_HAS_##flag; }\n"
        "#define EXT4_HAS_SPARSE 4\nenum { mode_first, mode_last };\nFUNCTIONS(sparse, 4, SPARSE)\n",
        "use.c": '#include "super.h"\nint use(void) { return has_sparse() + LAST(mode); }\n',
    },
    "an operator of a type that a macro names": {
        "guid.h": "typedef struct { unsigned a; } GUID;\n#define REFGUID const GUID &\n"
        "inline bool operator==(REFGUID x, REFGUID y) { return x.a == y.a; }\n",
        "use.cc": '#include "guid.h"\nbool use(REFGUID g) { return g == g; }\n',
    },
    "a file that includes nothing": {"use.c": "void *use(void *to, size_t n) { return n ? to : NULL; }\n"},
}  # fmt: skip


@pytest.mark.parametrize("files", _PROJECTS.values(), ids=_PROJECTS)
def test_a_project_compiles(tmp_path, files):
    assert_compiles(tmp_path, files)


@pytest.mark.parametrize(("header", "used"), _LONG.values(), ids=_LONG)
def test_of_a_long_table_only_what_is_used_is_borrowed(tmp_path, header, used):
    name = "use.cc" if "Model" in header else "use.c"
    files = {"table.h": header, name: f'#include "table.h"\nint use(void) {{ return {used}; }}\n'}
    document = one_document(tmp_path, files, of=name, budget=1_200)
    assert document.kind == "compilable"
    assert "7" in document.text
    assert "_9" not in document.text
    assert compile_errors(document.text, language="c" if name == "use.c" else "c++") == ""


def test_of_macros_in_the_midst_of_a_structure_only_what_is_used_is_borrowed(tmp_path):
    lines = "".join(f"#define net_{n} net_data.data_{n}\n" for n in range(90))
    files = {
        "net.h": "struct data { int data_7, data_8; };\n"
        f"struct net {{\n  struct data net_data;\n{lines}  int n;\n}};\n",
        "use.c": '#include "net.h"\nint use(struct net *n) { return n->net_7 + n->n; }\n',
    }
    document = one_document(tmp_path, files, of="use.c", budget=1_200)
    assert document.kind == "compilable"
    assert "net_9" not in document.text
    assert compile_errors(document.text, language="c") == ""


@pytest.mark.parametrize("pointers", ["{0}", "union {{ int which;\n{0}}} u;\n"])
def test_of_structures_that_are_only_pointed_to_no_members_are_borrowed(tmp_path, pointers):
    names = [f"part_{n}" for n in range(9)]
    aliases = "".join(f"typedef struct {name} {name};\n" for name in ["all", *names])
    bodies = "".join(
        f"struct {name} {{ long long {name}_first, {name}_second, {name}_third; }};\n" for name in names
    )
    members = pointers.format("".join(f"  {name} *{name}_of;\n" for name in names))
    files = {
        "all.h": f"{aliases}{bodies}struct all {{\n{members}  int n;\n}};\n",
        "use.c": '#include "all.h"\nint use(all *a) { return a->n; }\n',
    }
    document = one_document(tmp_path, files, of="use.c", budget=900)
    assert document.kind == "compilable"
    assert "_first" not in document.text
    assert compile_errors(document.text, language="c") == ""


@pytest.mark.parametrize(("member", "used"), [("int id;", "id"), ("int (*id)(void);", "id()")])
def test_a_structure_that_a_macro_leads_to_keeps_its_members(tmp_path, member, used):
    padding = "".join(f"  long long operation_{n};\n" for n in range(40))
    files = {
        "all.h": f"struct link {{ {member} }};\nstruct header {{ struct link *header_link; }};\n"
        "struct operation {\n  struct header *header;\n#define operation_link header->header_link\n"
        f"{padding}}};\n",
        "use.c": f'#include "all.h"\nint use(struct operation *o) {{ return o->operation_link->{used}; }}\n',
    }
    document = one_document(tmp_path, files, of="use.c", budget=600)
    assert "operation_39" not in document.text
    assert compile_errors(document.text, language="c") == ""


@pytest.mark.parametrize("pasted", [False, True])
def test_of_a_long_group_of_macros_those_that_are_used_are_borrowed(tmp_path, pasted):
    macros = "".join(f"#define LIB_PART_{n} part_{n}_of_the_library\n" for n in range(200))
    macros += "#define LIB_PART(n) LIB_PART_ ## n\n" if pasted else ""
    files = {
        "parts.h": f"#if !(defined(LIB_ONE) && defined(LIB_TWO))\n#define LIB_TWO\n{macros}#endif\n",
        "use.c": '#include "parts.h"\nint use(int LIB_PART_7) { return LIB_PART_7; }\n',
    }
    document = one_document(tmp_path, files, of="use.c", budget=600)
    assert (document.kind == "chunk") == pasted  # each of the others may be used
    if not pasted:
        in_order(document.text, "#if", "#define LIB_TWO", "#define LIB_PART_7 part_7", "#endif")
        assert "LIB_PART_8" not in document.text


_BEGINS = '#include "begin.h"\n'
_ENDS = '#include "end.h"\n'


@pytest.mark.parametrize("number", [1, 2])
def test_macros_that_each_header_defines_and_ends_are_defined_once(tmp_path, number):
    files = {
        "begin.h": "#ifdef LIB_API\n#error twice\n#endif\n#define LIB_API extern\n",
        "end.h": "#undef LIB_API\n",
        "one.h": f"#ifndef ONE_H\n#define ONE_H\n{_BEGINS}LIB_API int one(void);\n{_ENDS}#endif\n",
        "two.h": f"#ifndef TWO_H\n#define TWO_H\n{_BEGINS}LIB_API int two(void);\n{_ENDS}#endif\n",
        "use.h": f'#include "one.h"\n#include "two.h"\n{_BEGINS}LIB_API int use(void);\n#undef LIB_API\n',
    }
    files["use.c"] = (
        f'#include "use.h"\n{_BEGINS}LIB_API int more;\n{_ENDS}int use(void) {{ return one() + two(); }}\n'
    )
    if number == 1:
        files["use.h"] = files["use.h"].replace("#undef LIB_API\n", _ENDS)
    text = one_document(tmp_path, files, of="use.h").text
    assert text.count("#define LIB_API") == number
    assert compile_errors(text, language="c") == ""


def test_a_macro_is_defined_in_each_branch_that_reads_its_header(tmp_path):
    files = {
        "level.h": "#define LEVEL 7\n",
        "one.h": '#include "level.h"\nint one[LEVEL];\n',
        "two.h": '#include "level.h"\nint two[LEVEL];\n',
        "use.c": '#ifdef __FAST_MATH__\n#include "one.h"\n#endif\n#ifndef __FAST_MATH__\n#include "two.h"\n'
        "#endif\nint use(void) { return sizeof two; }\n"
        "#ifdef __FAST_MATH__\nint more(void) { return sizeof one; }\n#endif\n",
    }
    text = one_document(tmp_path, files, of="use.c").text
    assert text.count("#define LEVEL") == 2
    assert compile_errors(text, language="c") == ""


def test_a_list_stands_where_a_header_that_is_one_block_includes_it(tmp_path):
    files = {
        "errors.h": "#if !(defined ERRORS_H && defined OLD_ERRORS)\n#define ERRORS_H\n#define OLD_ERRORS\n"
        '#define ERROR(name, value) name = value,\nenum {\n#include "list.h"\n  LIB_LAST };\n'
        "#undef ERROR\n#endif\n",
        "list.h": "ERROR(LIB_A, 1)\nERROR(LIB_B, 2)\n",
        "use.c": '#include "errors.h"\nint use(void) { return LIB_LAST; }\n',
    }
    text = one_document(tmp_path, files, of="use.c").text
    in_order(text, "enum {", "ERROR(LIB_A, 1)", "ERROR(LIB_B, 2)", "  LIB_LAST };", "#undef")


def test_arguments_in_a_list_declare_nothing(tmp_path):
    files = {
        "list.h": "typedef enum {\n  OPTION(FIRST, FALSE, 1),\n  OPTION(SECOND, NULL, 2)\n} option;\n",
        "note.h": '#define NOTE(id, text) static int id(void);\nNOTE(note, "what data is for")\n',
        "use.c": '#include "list.h"\n#include "note.h"\ntypedef int number;\n'
        "number use(number data) { return data ? FALSE : 1; }\n",
    }
    text = one_document(tmp_path, files, of="use.c").text
    assert "OPTION" not in text
    assert "NOTE" not in text


def test_a_signature_in_a_macro_declares_nothing_but_its_function(tmp_path):
    files = {
        "box.h": "typedef unsigned word;\n#define METHOD(f) inline int f noexcept\n"
        "struct Box { int size(word n) noexcept; };\nMETHOD(Box::size(word n)) { return n; }\n",
        "use.cc": '#include "box.h"\nword use(word n) { return n; }\n',
    }
    assert "METHOD" not in one_document(tmp_path, files, of="use.cc").text


def test_a_calling_convention_of_another_library_hides_no_name(tmp_path):
    pointer = "typedef status (CALL *checker)(void *handle, int a);"
    files = {
        "check.h": f"typedef int status;\n{pointer}\nstruct config {{ checker check; }};\n",
        "use.c": '#include "check.h"\nstatus use(struct config *c) { return c->check(0, 1); }\n',
    }
    assert pointer in one_document(tmp_path, files, of="use.c").text


def test_an_option_that_a_build_sets_keeps_its_value(tmp_path):
    files = {
        "lib/fcntl.in.h": "#define O_BINARY 0\n",
        "binary.h": "#if O_BINARY\nvoid set_mode(int);\n#endif\n",
        "use.c": '#include "binary.h"\nvoid use(void) { if (O_BINARY) set_mode(1); }\n',
    }
    assert "#define O_BINARY 0\n" in one_document(tmp_path, files, of="use.c").text


def test_a_function_that_a_macro_renames_or_replaces_does_not_declare_its_parameters(tmp_path):
    files = {
        "all.h": "#define unrelated LIB_(unrelated)\n#define LIB_(name) lib_##name\n"
        "typedef struct box {\n  int n;\n} box;\nint\nunrelated(box *b, int value);\nint another (box *b);\n"
        "#define another(b) (b)->n\n",
        "use.c": '#include "all.h"\nint use(box *b) { return b->n; }\n',
    }
    text = one_document(tmp_path, files, of="use.c").text
    assert "struct box" in text
    assert "unrelated" not in text
    assert "another" not in text


def test_names_that_a_project_declares_itself_are_not_the_standard_s(tmp_path):
    files = {
        "types.h": "typedef unsigned char bool;\ntypedef unsigned uint32_t;\n",
        "use.c": '#include "types.h"\nbool use(uint32_t n) { return n > 0; }\n',
    }
    assert "#include" not in one_document(tmp_path, files, of="use.c").text


def test_a_piece_of_the_header_that_all_include_first_stands_there_once(tmp_path):
    files = {
        "all.h": '#ifndef ALL_H\n#define ALL_H\ntypedef unsigned word;\n#include "piece.h"\n#endif\n',
        "piece.h": "static word turn(word w) { return w + 1; }\n#define TURN(w) turn(w)\n",
    }
    files |= {f"{n}.c": f'#include "all.h"\nword f{n}(word w) {{ return turn(w); }}\n' for n in range(9)}
    text = one_document(tmp_path, files, of="piece.h").text
    assert text.count("static word turn") == 1
    assert compile_errors(text, language="c") == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("static const int squares[] = {", "};"),
        ("static const struct { int r, c; } backward[][2] = {", "};"),
        ("typedef enum level {", "} level;"),
    ],
)
def test_pieces_of_a_table_have_each_row_once(before, after):
    rows = "\n" + "".join(f"    row_{n},\n" for n in range(9))
    (item,) = read_items(f"{before}{rows}{after}\n".encode(), MacroTable()).items
    pieces = [piece.text.decode() for piece in table_pieces(item, 3)]
    assert all(piece.startswith(before) and piece.endswith(after) for piece in pieces)
    assert "".join(piece[len(before) : -len(after)] for piece in pieces) == rows
    assert len(pieces) == 3


def test_a_list_within_a_class_is_no_table():
    (item,) = read_items(
        b"struct A { struct { int r; } rows[2] = { {1}, {2} }; int n; };\n", MacroTable()
    ).items
    assert table_pieces(item, 2) == []
