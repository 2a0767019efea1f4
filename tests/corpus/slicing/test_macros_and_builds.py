"""What macros make, builds decide and members call: the smallest project that shows each case."""

import pytest

from cpplm.corpus.slicing.shortening import Shortener
from cpplm.cpp.conditions import MacroState, parse_define
from cpplm.cpp.items import read_items
from cpplm.cpp.macros import MacroTable
from tests.corpus.cpp import assert_compiles, compile_errors, in_order, needs_gxx, one_document

pytestmark = needs_gxx

_PROJECTS: dict[str, dict[str, str]] = {
    "text that stops other compilers belongs to its branch": {
        "build.h": "#ifndef BUILD_H\n#define BUILD_H\n#if defined(__VMS)\n#define NONE\n"
        "#elif defined(__GNUC__)\n"
        "#define PULL_SYS_TYPES 1\n#else\n#error Unknown target\n  Error Unknown_target\n#endif\n"
        "#ifdef PULL_SYS_TYPES\n#include <sys/types.h>\n#endif\ntypedef ssize_t lib_ssize;\n#endif\n",
        "use.c": '#include "build.h"\nlib_ssize use(void) { return -1; }\n',
    },
    "headers of gnulib that are not the system's": {
        "config.h.in": "#undef GNULIB_TEXT_LENGTH\n#undef PROMOTED_MODE_T\n#undef ICONV_CONST\n"
        "#ifndef _GNU_SOURCE\n# undef _GNU_SOURCE\n#endif\n",
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n",
        "types.in.h": "typedef unsigned int char_t;\n",
        "text.in.h": '#include "types.h"\n#if GNULIB_TEXT_LENGTH || @HAVE_LIBTEXT@\n'
        "int text_length(ICONV_CONST char_t *text, PROMOTED_MODE_T mode);\n#endif\n",
        "string.in.h": "#error instead of the system's\n",
        "lib/fcntl.in.h": "#ifndef O_BINARY\n# define O_BINARY 0\n#endif\n",
        "use.c": '#include <config.h>\n#include <sys/types.h>\n#include <string.h>\n#include "text.h"\n'
        "int use(char_t *text) { return text_length(text, 1) + strverscmp(\"a\", \"b\") + O_BINARY; }\n",
    },
    "a branch that is not likely to be read asks for nothing": {
        "lock.h": "#ifndef LOCK_H\n#define LOCK_H\n#if defined(LIB_RTK)\n#include \"rtk_mutex.h\"\n"
        "#elif defined(LIB_OTHER)\n#include \"other_mutex.h\"\n#else\n#include <pthread.h>\n#endif\n"
        "#if defined(LIB_RTK)\ntypedef rtk_mutex lock_t;\n#else\ntypedef pthread_mutex_t lock_t;\n"
        "#endif\n#endif\n",
        "use.c": '#include "lock.h"\nlock_t *use(lock_t *lock) { return lock; }\n',
    },
    "the largest numbers are known, and `INLINE`": {
        "width.h": "#include <limits.h>\n#if UINT_MAX == 4294967295U\ntypedef unsigned word;\n#elif MISSING\n"
        "typedef unsigned long word;\n#else\n#error no word\n#endif\n"
        "#ifndef WORD_MAX\n#define WORD_MAX UINT_MAX\n#endif\n",
        "use.c": '#include "width.h"\nstatic INLINE word use(void) { return WORD_MAX; }\n',
    },
    "functions that macros of the same names replace in other builds": {
        "trace.h": "#ifndef NO_TRACE\nvoid trace(const char *text);\nextern void flush(void);\n#else\n"
        "#define trace(text)\n#define flush()\n#endif\n"
        "#define ALIGNED(n) __attribute__((aligned(n)))\nextern int table ALIGNED(sizeof(int) * 2);\n",
        "use.cc": '#include "trace.h"\nint use() { trace("use"); flush(); return table; }\n',
    },
    "the nearer of two templates of one name": {
        "CMakeLists.txt": "configure_file(src/config.h.in src/config.h)\n"
        "configure_file(tools/config.h.in tools/config.h)\n",
        "src/config.h.in": "#define LIB 1\n",
        "tools/config.h.in": '#define VERSION "@VERSION@"\n',
        "tools/use.c": '#include "config.h"\nconst char *version = VERSION;\n',
    },
    "a constant that a macro makes, with braces in the call": {
        "tag.h": "#define CONSTANT(type, name, init) constexpr type other_##name init, name init\n"
        "namespace lib {\nstruct Tag {};\nstruct Other {};\nCONSTANT(Tag, in_place, {});\n"
        "CONSTANT(Other, o, {});\n}\n",
        "use.cc": '#include "tag.h"\nvoid take(lib::Tag);\nvoid use() { take(lib::in_place); }\n',
    },
    "enumerators that a macro makes where the header is no table": {
        "known.h": "#ifdef TABLE\n# define KNOWN(a, b) b\nstatic const char *table[] = {\n#else\n"
        "# define KNOWN(a, b) a\nenum known {\n#endif\nKNOWN(ID_NULL, 0),\nKNOWN(ID_ARCH, \"arch\")\n};\n"
        "#undef KNOWN\n",
        "use.c": '#include "known.h"\nint use(void) { return ID_ARCH; }\n',
    },
    "names for the library's own code, by an option of its Makefile alone": {
        "math.h": "struct lib_math { int digits; };\n#ifdef LIB_SOURCE\n#define math_digits lib_math_digits\n"
        "extern int lib_math_digits;\n#endif\n",
        "use.c": '#include "math.h"\nint use(void) { return math_digits; }\n',
    },
    "a function that the initializer of a member calls": {
        "capture.h": "struct Capture {};\nCapture& capture_of_all();\nstruct Scope {\n"
        "  Capture& capture = capture_of_all();\n  int n = 0;\n};\n",
        "use.cc": '#include "capture.h"\nint use() { return Scope().n; }\n',
    },
    "threads of POSIX, not those of Windows": {
        "lock.h": "#if defined(LIB_W32_THREADS)\n#include <windows.h>\ntypedef HANDLE lock_t;\n"
        "#elif defined(LIB_POSIX_THREADS)\n#include <pthread.h>\ntypedef pthread_mutex_t lock_t;\n"
        "#else\n#error no threads\n#endif\n",
        "use.c": '#include "lock.h"\nlock_t *use(lock_t *lock) { return lock; }\n',
    },
    "a type `bool` of old C": {
        "types.h": "typedef enum { FALSE = 0, TRUE } bool;\nstruct entry { bool is_folder; };\n",
        "use.c": '#include "types.h"\nbool use(struct entry *e) { return e->is_folder; }\n',
    },
    "names for the library's own code, in branches that its configuration decides": {
        "custom.h": "#ifndef LIB_NO_MATH\n#define LIB_MATH\n#endif\n",
        "math.h": '#include "custom.h"\n#ifdef LIB_MATH\nextern int lib_digits;\n#endif\n'
        "#if !defined(TABLES) && defined(LIB_SOURCE)\n#define digits lib_digits\nint more(void);\n#endif\n",
        "use.c": '#include "math.h"\n#ifdef LIB_MATH\nint use(void) { return digits; }\n#endif\n'
        "int length(void);\n",
    },
    "a type for an option without which headers cannot be read, and options as values": {
        "tables.h": "#if CONFIG_WIDE || CONFIG_NARROW\ntypedef struct {\n  int n;\n} table_t;\n#endif\n",
        "coder.h": '#include "config.h"\n#include "tables.h"\nstruct coder { table_t tables[2]; };\n'
        "#if CONFIG_FAST\nint fast(void);\n#endif\n",
        "use.c": '#include "coder.h"\nint use(struct coder *c) { return CONFIG_FAST + c->tables[0].n; }\n',
    },
    "a statement of a macro that is empty in other builds": {
        "id.h": "#ifdef NO_IDS\n#define ID(kind, text)\n#else\n"
        "#define ID(kind, text) static const char kind[] = text\n#endif\n#define FILE_ID(x) ID(file_id, x)\n",
        "use.c": '#include "id.h"\n\nFILE_ID("use.c");\n\nstatic int use(void);\n',
    },
    "a template that is not named for its header": {
        "autoconf/configure.in": "AC_CONFIG_HEADER(src/config.h:autoconf/header.in)\n",
        "autoconf/header.in": "#undef HAVE_STDBOOL_H\n#ifdef HAVE_STDBOOL_H\n# include <stdbool.h>\n#endif\n",
        "src/use.c": '#include "config.h"\nbool use(void) { return 1; }\n',
    },
    "what a template has of the compiler's own, and headers for where the system lacks one": {
        "config.h.in": "#ifdef WORDS_BIGENDIAN\n#define BIG\n#else\n# define @ORDER@\n#endif\n"
        "#define LIB_DLL_VARIABLE @LIB_DLL_VARIABLE@\n",
        "use.c": '#include "config.h"\n#include <lib/stdbool.h>\nextern LIB_DLL_VARIABLE int limit;\n'
        "bool use(int n) { return n < limit; }\n",
        "lib/lib.h": "int other(void);\n",
    },
    "copies of the kernel's headers": {
        "include/uapi/linux/netlink.h": "#ifndef __LINUX_NETLINK_H\n#define __LINUX_NETLINK_H\n"
        "struct nlmsghdr { unsigned nlmsg_len; };\n#endif\n",
        "use.c": "#include <linux/netlink.h>\n#include <linux/rtnetlink.h>\n"
        "int use(struct nlmsghdr *h, struct rtmsg *m) { return h->nlmsg_len + m->rtm_family; }\n",
    },
    "the kernel's headers in the kernel": {
        "include/linux/init.h": "int begin(void);\n",
        "include/linux/list.h": "struct list_head { struct list_head *next; };\n",
        "use.c": "#include <linux/list.h>\nstruct list_head *use(struct list_head *l) { return l->next; }\n",
    },
    "a macro of another library behind parameters, and one around a type": {
        "lib.h": "#ifdef BUILD_DLL\n#define LIB_CALL __stdcall\n#else\n#define LIB_CALL\n#endif\n"
        "#define LIB_API(type) extern type LIB_CALL\n#include <sys/cdefs.h>\n"
        "#define CHECK_IT(a, b) __attribute_const__\n"
        "void log_text(const char *text, ...) CHECK_IT(1, 2);\nLIB_API(void) lib_end(int *state);\n",
        "use.c": '#include "lib.h"\nvoid use(int *s) { (void)(&log_text == 0); (void)(&lib_end == 0); }\n',
    },
    "extensions of the system's headers that a build asks for": {
        "Makefile": "CFLAGS += -O2 -D_GNU_SOURCE\n",
        "use.c": "#include <sys/socket.h>\nstruct message { struct ucred sender; };\n",
    },
    "what no declaration hides: behind `>>` and `#endif`, in strings": {
        "lib.h": "extern int bits, shared, other;\nextern const char *version;\n",
        "use.c": '#include "lib.h"\nconst char *use(int a) {\n  int n = (a + 1) >> bits, m;\n'
        "#ifndef LIB_NONE\n  shared = n;\n#endif\n  other = 2;\n"
        '  return m ? "unknown version" : version;\n}\n',
    },
    "headers that meson writes": {
        "conf.h.meson": "#define LIB_WIDTH 8\n",
        "use.cc": '#include "conf.h"\nint width = LIB_WIDTH;\n',
    },
    "macros that one `#undef` ends with others": {
        "table.h": "#define _ENTRY(name) typedef struct name##_entry { int n; } name##_entry\n"
        "#define ENTRY(name) _ENTRY (name)\nENTRY (NAME);\n"
        "#ifndef NO_UNDEF\n# undef ENTRY\n# undef NAME\n#endif\n",
        "one.h": '#ifndef ONE_H\n#define ONE_H\n#define NAME one\n#include "table.h"\n#endif\n',
        "two.h": '#ifndef TWO_H\n#define TWO_H\n#define NAME two\n#include "table.h"\n#endif\n',
        "use.c": '#include "one.h"\n#include "two.h"\n#define NAME three\n#include "table.h"\n'
        "int use(one_entry *a, three_entry *b) { return a->n + b->n; }\n",
    },
    "a header whose name a macro pastes": {
        "config.h": "#define LIB_HEADER(name) <lib##name.h>\n",
        "dwarf/libdw.h": "typedef int dwarf;\n",
        "use.c": '#include "config.h"\n#include LIB_HEADER(dw)\ndwarf use;\n',
    },
    "attributes that gcc has": {
        "config.h.in": "#undef HAVE_ATTRIBUTE__NONNULL__\n#undef HAVE_ATTR_PACKED\n",
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n"
        "AC_DEFINE_UNQUOTED([LIB_HAVE_ATTRIBUTE_MALLOC], [$lib_cv_malloc])\n",
        "use.c": '#include "config.h"\n#if !HAVE_ATTRIBUTE__NONNULL__ || !HAVE_ATTR_PACKED\n'
        "#error not there\n#endif\n#define HAS_MALLOC LIB_HAVE_ATTRIBUTE_MALLOC\n"
        "#if HAS_MALLOC\n#endif\nint use;\n",
    },
    "functions of ISO C are declared whatever the options": {
        "old.h": "#ifdef MISSING_PROTOTYPES\nint fprintf();\n#endif\n"
        "#ifdef LIB_HUGE\n#undef HUGE_VAL\n#define HUGE_VAL LIB_HUGE\n#endif\n",
        "use.c": '#include <math.h>\n#include <stdio.h>\n#include "old.h"\n'
        'int use(double d) { return d < HUGE_VAL ? fprintf(stderr, "a") : 0; }\n',
    },
    "headers that precede the system's": {
        **{f"common/{name}.h": f"typedef int lib_{name};\n" for name in ("common", "types", "wide")},
        "common/narrow.h": '#include "memory.h"\ntypedef int lib_narrow;\n',
        "common/memory.h": "#include <stdlib.h>\n#define lib_allocate(type) (type *) malloc(sizeof(type))\n",
        "other.c": "#include <narrow.h>\nlib_narrow other;\n",
        "use.c": "#include <common.h>\n#include <types.h>\n#include <wide.h>\n#include <memory.h>\n"
        "lib_types *use(void) { return lib_allocate(lib_types); }\n",
    },
    "a header of the system whose name a macro makes, a type that a script finds": {
        "configure.ac": "AC_INIT([lib], [1])\nCPPFLAGS=\"-DLIB_ID_TYPE=`echo $INT32_T`\"\n",
        "lib.h": "#define LIB_HEADER(name) <name.h>\n#include LIB_HEADER(stdint)\n"
        "typedef unsigned LIB_ID_TYPE lib_id;\n",
        "use.c": '#include "lib.h"\nint32_t use(lib_id n) { return n; }\n',
    },
    "a function in capitals is no call of a macro": {
        "io.h": "typedef struct { int n; } FILE_IO;\n",
        "all.c": '#include "io.h"\n#include "use.h"\nint all(FILE_IO *io) { return CAN_READ(io); }\n',
        "use.h": "static inline int CAN_READ(FILE_IO *io)\n{\n  return io->n;\n}\n",
    },
    "an option that a structure with conditions asks for": {
        "lib.h": "#ifdef LIB_INTERNAL\ntypedef struct { int n; } options;\n#endif\n",
        "use.c": '#include "lib.h"\nstruct writer {\n  int a;\n#ifdef LIB_XML\n  int b;\n#endif\n'
        "  options c;\n};\nint use(struct writer *w) { return w->a; }\n",
    },
    "an option that is asked for where no program of its own is made": {
        "lib.h": "#ifdef LIB_INTERNAL\ntypedef struct { int n; } options;\n#endif\n",
        "use.c": '#include "lib.h"\n#ifndef STANDALONE\nint use(options *o) { return o->n; }\n#endif\n',
    },
    "copies of a header with one guard": {
        **{
            f"{name}/compat.h": "#ifndef COMPAT_H\n#define COMPAT_H\nstruct word { int n; };\n#endif\n"
            for name in ("one", "two")
        },
        "one/list.h": '#include "compat.h"\nint list(struct word *w);\n',
        "two/tree.h": '#include "compat.h"\nint tree(struct word *w);\n',
        "use.c": '#include "one/list.h"\n#include "two/tree.h"\n'
        "int use(struct word *w) { return list(w) + tree(w); }\n",
    },
    "names that Fortran has, fast integers, a name of the package that a script computes": {
        "config.h.in": "#undef F77_FUNC\n#undef PACKAGE\n",
        "configure.ac": 'AC_CONFIG_HEADERS([config.h])\nAC_DEFINE_UNQUOTED(PACKAGE, "${PACKAGE}", [name])\n',
        "use.c": '#include "config.h"\n#define open_file F77_FUNC(openf, OPENF)\n'
        'int_fast16_t open_file(uint_least8_t n) { return n; }\nconst char *use = PACKAGE "-1";\n',
    },
}  # fmt: skip


@pytest.mark.parametrize("files", _PROJECTS.values(), ids=_PROJECTS)
def test_a_project_compiles(tmp_path, files):
    assert_compiles(tmp_path, files)


def test_a_header_of_libjpeg_has_what_it_needs_before_it(tmp_path):
    files = {
        "a.c": "#ifdef COLOR\n#include <lcms2.h>\n#endif\n#include <jpeglib.h>\nJSAMPLE a;\n",
        "b.c": "#include <stdio.h>\n#include <jpeglib.h>\nJSAMPLE b;\n",
    }
    first, second = (one_document(tmp_path, files, of=name).text for name in files)
    assert first.startswith("#include <stdio.h>\n")
    assert second.count("stdio.h") == 1


@pytest.mark.parametrize(
    "before", ["", "#include <stdint.h>\n", "#ifdef _WIN32\ntypedef int uint32_t;\n#endif\n"]
)
def test_types_of_an_integer_header_that_a_build_writes_are_of_stdint(tmp_path, before):
    files = {"a.cpp": f'#include "_stdint.h"\n{before}uint32_t a;\n'}
    document = one_document(tmp_path, files, of="a.cpp")
    assert document.text.count("#include <stdint.h>") == 1
    assert compile_errors(document.text) == ""


def test_an_enumerator_whose_comma_is_in_another_branch_stays():
    text = b"enum kinds { unknown, png, mng\n#ifdef WITH_JNG\n  , jng\n#endif\n};\n"
    (item,) = read_items(text, MacroTable(), language="c").items
    short, gone = Shortener(MacroTable()).skeleton(item, frozenset(), bare=True)
    assert {member.name for member in gone} >= {b"png"}
    assert b"mng\n#ifdef WITH_JNG\n" in short.text


def test_members_defined_beside_their_class_stay_definitions():
    """The class ends in each branch of a condition, and its members follow there."""
    branch = (
        '  int part_{n};\n}};\n#pragma message("{n}")\ninline void\nSum::init() {{\n  part_{n} = {n};\n}}\n'
    )
    first, second = (branch.format(n=n) for n in range(2))
    ends = f"#if defined(USE_0)\n{first}#elif defined(USE_1)\n{second}#else\n}};\n#endif\n"
    text = f"class Sum {{\npublic:\n  void init();\n{ends}"
    (item,) = read_items(text.encode(), MacroTable()).items
    assert b"Sum::init();" not in Shortener(MacroTable()).skeleton(item, frozenset(), bare=True)[0].text


@pytest.mark.parametrize("option", ["__KERNEL__", "_LIBC"])
def test_members_that_the_kernel_or_glibc_alone_has_are_no_option(tmp_path, option):
    files = {
        "lib.h": f"struct lib {{\n  int n;\n#ifdef {option}\n  int k;\n#endif\n}};\n",
        "use.c": '#include <other.h>\n#include "lib.h"\n'
        "int use(struct lib *l, struct other *o) { return l->n + o->k; }\n",
    }
    assert f"#define {option}" not in one_document(tmp_path, files, of="use.c").text


def test_a_class_of_gobject_is_there_whole_for_what_is_derived_from_it(tmp_path):
    files = {
        "base.h": "#include <glib-object.h>\n"
        "G_DECLARE_DERIVABLE_TYPE (LibBase, lib_base, LIB, BASE, GObject)\n"
        "struct _LibBaseClass\n{\n  GObjectClass parent_class;\n  int n;\n};\n",
        "use.h": '#include "base.h"\nG_DECLARE_FINAL_TYPE (LibUse, lib_use, LIB, USE, LibBase)\n',
    }
    in_order(one_document(tmp_path, files, of="use.h").text, "BASE, GObject", "  int n;", "USE, LibBase")


def test_the_header_of_a_library_below_a_folder_of_its_name_is_included(tmp_path):
    files = {
        "src/tk/own.h": "typedef int own;\n",
        "src/use.c": '#include <tk/tk.h>\n#include "tk/own.h"\n#include "tk/tk_config.h"\n'
        "own use(TkWindow *w) { return 1; }\n",
    }
    text = one_document(tmp_path, files, of="src/use.c").text
    assert "#include <tk/tk.h>\n" in text
    assert "tk_config.h" not in text


def test_of_enumerators_that_calls_with_calls_make_those_stay_that_are_named(tmp_path):
    entries = "".join(f'entry(NAME_{number}, of(1, {number}), of(0, 0), "text")\n' for number in range(200))
    files = {
        "list.h": f"enum {{\n#define entry(id, since, until, text) id,\n{entries}#undef entry\n}};\n",
        "use.c": '#include "list.h"\nint use(void) { return NAME_7; }\n',
    }
    document = one_document(tmp_path, files, of="use.c", budget=900)
    assert document.kind == "compilable"
    assert compile_errors(document.text, language="c") == ""


def test_virtual_functions_of_another_project_stay_in_what_is_derived_from_it(tmp_path):
    files = {
        "reader.h": "#include <stream.h>\nclass Own { public: virtual int close() = 0; };\n"
        "class Reader : public lib::Stream<int>, public Own {\npublic:\n  int read(int n) override;\n"
        + "".join(f"  int other_{number}(int n);\n" for number in range(99))
        + "};\n",
        "use.cc": '#include "reader.h"\nint use() { Reader reader; return 1; }\n',
    }
    text = one_document(tmp_path, files, of="use.cc", budget=600).text
    assert "int read(int n) override;" in text
    assert "other_7" not in text


def test_members_of_what_a_base_of_another_project_is_given_stay(tmp_path):
    others = "".join(f"  int other_{number}(int n);\n" for number in range(99))
    files = {
        "list.h": "#include <facade.h>\nclass List : public std::enable_shared_from_this<List> {\npublic:\n"
        f"  int size();\n{others}"
        "  class Step : public lib::facade<Step, int> {\n    int get() const;\n  };\n};\n",
        "use.cc": '#include "list.h"\nint use(List& list) { return list.size(); }\n',
    }
    text = one_document(tmp_path, files, of="use.cc", budget=600).text
    assert "int get() const;" in text
    assert "other_7" not in text


@pytest.mark.parametrize(("indent", "is_read"), [("", True), ("  ", False)])
def test_a_header_that_a_branch_of_a_script_includes_first_is_not_read(tmp_path, indent, is_read):
    files = {
        "configure.ac": f'AC_INIT([lib], [1])\n{indent}CPPFLAGS="$CPPFLAGS -include kernel.h"\n',
        "kernel.h": "typedef unsigned char size_t;\n",
        "use.c": "int use(void) { return sizeof(size_t); }\n",
    }
    assert ("typedef" in one_document(tmp_path, files, of="use.c").text) == is_read


def test_macros_that_grow_without_end_name_no_header():
    state = MacroState(frozenset())
    name, macro = parse_define(b"GROW(x) GROW(" + b"x " * 400 + b")")
    state.macros[name] = macro
    assert state.include_argument(b"GROW(a)") == ""
