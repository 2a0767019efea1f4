"""Headers that are read repeatedly under other macros, which is how C writes templates."""

import pytest

from tests.corpus.cpp import assert_compiles, compile_errors, needs_gxx, one_document

pytestmark = needs_gxx

# As in the GNU Scientific Library and igraph: the names are pasted of macros that stand for words.
_PASTES = (
    "#define CONCAT3x(a, b, c) a ## _ ## b ## _ ## c\n#define CONCAT3(a, b, c) CONCAT3x(a, b, c)\n"
    "#define CONCAT2x(a, b) a ## _ ## b\n#define CONCAT2(a, b) CONCAT2x(a, b)\n"
)
_ON = (
    f"{_PASTES}#if defined(BASE_DOUBLE)\n#define BASE double\n#define SHORT\n#define BASE_VECTOR vector_t\n"
    "#elif defined(BASE_INT)\n#define BASE int\n#define SHORT int\n#define BASE_VECTOR vector_int_t\n#endif\n"
    "#if defined(BASE_DOUBLE)\n#define FUNCTION(a, c) CONCAT2(a, c)\n#define TYPE(a) CONCAT2(a, t)\n"
    "#else\n#define FUNCTION(a, c) CONCAT3(a, SHORT, c)\n#define TYPE(a) CONCAT3(a, SHORT, t)\n#endif\n"
)
_OFF = "".join(
    f"#ifdef {name}\n#undef {name}\n#endif\n" for name in ("BASE", "SHORT", "FUNCTION", "TYPE", "BASE_VECTOR")
)
_VECTOR = "typedef struct TYPE(vector) {\n  BASE *begin;\n  BASE *end;\n} TYPE(vector);\n"
_LIST = (
    "#if defined(LIST_OF_VECTORS)\n#define ITEM BASE_VECTOR\n#else\n#define ITEM BASE\n#endif\n"
    "#undef TYPE\n#undef FUNCTION\n"
    "#if defined(BASE_DOUBLE)\n#define TYPE vector_list_t\n#define FUNCTION(c) CONCAT2(vector_list, c)\n"
    "#else\n#define TYPE CONCAT3(vector, SHORT, list_t)\n#define FUNCTION(c) CONCAT3(vector, SHORT, c)\n"
    "#endif\ntypedef struct {\n  ITEM *begin;\n} TYPE;\nITEM *FUNCTION(first)(const TYPE *list);\n"
)


def _read_under_each(header: str, *bases: str) -> str:
    return "".join(
        f'#define {base}\n#include "on.h"\n#include "{header}"\n#include "off.h"\n#undef {base}\n'
        for base in bases
    )


def _once(name: str, text: str) -> str:
    return f"#ifndef {name}_H\n#define {name}_H\n{text}#endif\n"


_BASES = ("BASE_DOUBLE", "BASE_INT")
_LIBRARY = {
    "on.h": _ON,
    "off.h": _OFF,
    "vector_type.h": _VECTOR,
    "vector_functions.h": "int FUNCTION(vector, size)(const TYPE(vector) *v);\n"
    "int FUNCTION(vector, scale)(TYPE(vector) *v, BASE by);\n",
    "matrix_type.h": _VECTOR.replace("vector", "matrix"),
    "list_type.h": _LIST,
    "vector.h": _once(
        "VECTOR", _read_under_each("vector_type.h", *_BASES) + _read_under_each("vector_functions.h", *_BASES)
    ),
    "matrix.h": _once("MATRIX", _read_under_each("matrix_type.h", *_BASES)),
    "list.h": _once(
        "LIST",
        '#include "vector.h"\n#define LIST_OF_VECTORS\n'
        + _read_under_each("list_type.h", *_BASES)
        + "#undef LIST_OF_VECTORS\n",
    ),
}
_PROJECTS: dict[str, dict[str, str]] = {
    "types and functions whose names are pasted of a macro's word": {
        **_LIBRARY,
        "use.c": '#include "vector.h"\n#include "matrix.h"\n'
        "int use(vector_int_t *v, const vector_t *w) { return vector_int_size(v) + vector_size(w); }\n",
    },
    "names that a macro without parameters stands for, of what another header defines": {
        **_LIBRARY,
        "use.c": '#include "list.h"\nint *use(vector_int_list_t *l) { return vector_int_first(l)->begin; }\n',
    },
    "a structure whose tag a macro makes": {
        "impl.h": "#define GVTTYPE GVT(t)\ntypedef struct GVT(s) GVTTYPE;\n"
        "struct GVT(s) {\n  GVT_TYPE *array;\n#ifdef GVT_FIELDS\n  GVT_FIELDS\n#endif\n};\n",
        "ints.h": _once("INTS", '#define GVT(x) ints_ ## x\n#define GVT_TYPE int\n#include "impl.h"\n'
                                "#undef GVT\n#undef GVT_TYPE\n#undef GVTTYPE\n"),
        "texts.h": _once("TEXTS", '#define GVT(x) texts_ ## x\n#define GVT_TYPE char *\n#include "impl.h"\n'
                                  "#undef GVT\n#undef GVT_TYPE\n#undef GVTTYPE\n"),
        "use.c": '#include "ints.h"\n#include "texts.h"\nint use(texts_t *t, ints_t i)\n'
        "{\n  return i.array[0] + *t->array[0];\n}\n",
    },
    "an optional type that the header itself names where the includer does not": {
        "table.h": "#ifndef HT_HAS_CONST_KEY\ntypedef HT(key_t) HT(const_key_t);\n#else\n"
        "#undef HT_HAS_CONST_KEY\n#endif\ntypedef struct HT(entry_s) {\n  HT(key_t) key;\n} HT(entry_t);\n"
        "HT(entry_t) *HT(get)(HT(const_key_t) key);\n",
        "by_text.h": _once("BY_TEXT", "#define HT_HAS_CONST_KEY\ntypedef char *by_text_key_t;\n"
                           "typedef const char *by_text_const_key_t;\n"
                           '#define HT(x) by_text_ ## x\n#include "table.h"\n#undef HT\n'),
        "by_int.h": _once("BY_INT", "typedef int by_int_key_t;\n"
                          '#define HT(x) by_int_ ## x\n#include "table.h"\n#undef HT\n'),
        "use.c": '#include "by_text.h"\n#include "by_int.h"\n'
        'int use(void) { return by_int_get(1)->key + *by_text_get("a")->key; }\n',
    },
    "a macro that pastes, defined in one `#if` with an include": {
        "timer.h": "#ifdef CPU_MHZ\n#include <cycles.h>\n#define TIMER(name) cycles begin_##name\n#else\n"
        "#define TIMER(name) long begin_##name\n#endif\n",
        "use.c": '#include "timer.h"\nint use(void)\n{\n  TIMER(all);\n  return begin_all = 2;\n}\n',
    },
}  # fmt: skip


def test_a_use_borrows_the_definitions_that_hold_there(tmp_path):
    """Not those under which other headers were read, of which nothing is used."""
    files = _PROJECTS["types and functions whose names are pasted of a macro's word"]
    text = one_document(tmp_path, files, of="use.c").text
    assert compile_errors(text, language="c") == ""
    # Two for the types, two for the functions, none for matrices.
    assert text.count("#define SHORT int\n") == 4


@pytest.mark.parametrize("files", _PROJECTS.values(), ids=_PROJECTS)
def test_a_project_compiles(tmp_path, files):
    assert_compiles(tmp_path, files)


def test_a_source_that_is_compiled_for_several_targets_through_a_header_stands_once(tmp_path):
    """As with Google's Highway: the header includes the source again for each target."""
    each = "".join(f"#define ARCH {name}\n#include ARCH_FILE\n#undef ARCH\n" for name in ("scalar", "wide"))
    files = {
        "foreach.h": _once("FOREACH", each + "#define ARCH best\n"),
        "weight.h": _once("WEIGHT", "#define WEIGHT 3\n"),
        "sum.cc": '#define ARCH_FILE "sum.cc"\n#include "foreach.h"\n#include "weight.h"\n\n'
        "namespace ARCH {\nint sum(const int *first) {\n  return first[0] * WEIGHT + first[1];\n}\n}\n",
    }
    document = one_document(tmp_path, files, of="sum.cc")
    assert document.text.count("int sum(") == 1
    assert not compile_errors(document.text)
