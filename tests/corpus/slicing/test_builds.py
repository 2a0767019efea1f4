"""What a build defines, finds and includes: the smallest project of each case."""

import pytest

from tests.corpus.cpp import assert_compiles, compile_errors, in_order, needs_gxx, one_document

pytestmark = needs_gxx

_PROJECTS: dict[str, dict[str, str]] = {
    "an option with the value that its script gives": {
        "configure.ac": 'AC_INIT([lib], [1])\nCPPFLAGS="-DLIB_LEVEL=7 $CPPFLAGS"\n',
        "lib.h": "#if LIB_LEVEL\ntypedef int level;\n#endif\n#if LIB_LEVEL > 3\ntypedef int high;\n#endif\n",
        "use.c": '#include "lib.h"\nlevel use(high n) { return n; }\n',
    },
    "headers that an installation puts into a folder": {
        "lib/gray.h": "int gray(void);\n",
        "lib/pixels.h": "int pixels(void);\n",
        "old/gray.h": "#error old\n",
        "names.h": "int names(void);\n",
        "picture_config.in.h": "#define PICTURE_DEPTH 1\n",
        "stdint.in.h": "#define int32_t @NEXT_STDINT_H@\n",
        "use.c": '#include "picture/gray.h"\n#include "picture/pixels.h"\n#include <picture/names.h>\n'
        "#include <picture/written.h>\n#include <picture/stdint.h>\n"
        '#include "picture/picture_config.h"\n'
        "int32_t use(void) { return gray() + pixels() + names() + PICTURE_DEPTH; }\n",
    },
    "attributes that a script finds": {
        "config.h.in": "#undef LIB_ATTRIBUTE_UNUSED\n#undef LIB_HAVE_ATTRIBUTE_COLD\n#undef USE_OTHER_API\n",
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n",
        "use.c": '#include "config.h"\n#ifdef LIB_HAVE_ATTRIBUTE_COLD\n#error cold\n#endif\n'
        "#if USE_OTHER_API\n#error other\n#endif\nint use(int n LIB_ATTRIBUTE_UNUSED) { return 1; }\n",
    },
    "whether there is a type": {
        "lib.h.in": "#if @cv_have_align_val_t@ && __cplusplus\n#define LIB_END 1\n#else\n"
        "#define LIB_END 2\n#endif\n",
        "configure.ac": "AC_CONFIG_FILES([lib.h])\n",
        "use.c": '#include "lib.h"\nint use(void) { return LIB_END; }\n',
    },
    "threads and structures, by whatever name": {
        "config.h.in": "#undef LIB_HAVE_PTHREAD\n#undef HAVE_LIBPTHREAD\n#undef LIB_HAVE_STRUCT_RUSAGE\n",
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n",
        "use.c": '#include "config.h"\n#if defined(LIB_HAVE_PTHREAD) && defined(HAVE_LIBPTHREAD)\n'
        "#include <pthread.h>\n#endif\npthread_once_t once = PTHREAD_ONCE_INIT;\n"
        "#include <sys/resource.h>\n#ifndef LIB_HAVE_STRUCT_RUSAGE\nstruct rusage { int n; };\n#endif\n"
        "int use(struct rusage *usage) { return 1; }\n",
    },
    "a header whose name a build may define": {
        "types.h": "#ifdef LIB_CPU_HEADER\n#include LIB_CPU_HEADER\n#else\n#include \"cpucfg.h\"\n#endif\n"
        "typedef int lib_int;\n",
        "use.c": '#include "types.h"\nlib_int use(void) { return 1; }\n',
    },
    "a macro that opens a scope around an include": {
        "sys.h": '#ifdef __cplusplus\n#define LIB_C extern "C" {\n#define LIB_C_ENDS }\n#else\n'
        "#define LIB_C\n#define LIB_C_ENDS\n#endif\n",
        "decl.h": "int one(void);\nint two(void);\n",
        "lib.h": '#include "sys.h"\nLIB_C\n#include "decl.h"\nLIB_C_ENDS\n',
        "use.c": '#include "lib.h"\nint use(void) { return one(); }\n',
    },
    "an option without which functions are empty": {
        "use.h": "#ifdef CONFIG_USE\nint use(int n);\nint stop(void);\n#else\n#define use(n) 0\n"
        "static inline int stop(void) { return 0; }\n#endif\n",
        "use.c": '#include "use.h"\nint use(int n) { return n; }\nint stop(void) { return 1; }\n',
    },
    "of headers here and as they are installed those here": {
        **{f"lib/{name}.h": f"struct {name} {{ int n; }};\n" for name in "abcd"},
        "a.h": "#pragma once\nstruct a { int n; };\n",
        "b.h": "#pragma once\nstruct b { int n; };\n",
        "all.h": '#if LIB_FLAT\n#include "a.h"\n#include "b.h"\n#else\n#include <proj/a.h>\n'
        "#include <proj/b.h>\n#endif\n",
        "other.c": "#include <proj/c.h>\n#include <proj/d.h>\n",
        "use.c": '#include "a.h"\n#include "all.h"\n'
        "int use(struct a *a, struct b *b) { return a->n + b->n; }\n",
    },
    "what the C library declares with _GNU_SOURCE alone": {
        "use.c": "#include <fcntl.h>\nint use(void) { return O_PATH; }\n"
    },
    "of headers for each system that for Linux": {
        **{f"OS/os.h-{name}": f"#define LIB_{name} 1\n" for name in ("AIX", "Linux", "SunOS5")},
        "use.c": '#include "os.h"\nint use(void) { return LIB_Linux; }\n',
    },
    "own includes of headers here or as they are installed": {
        **{f"{name}.h": f"struct {name} {{ int n; }};\n" for name in "ab"},
        "use.c": '#if LIB_FLAT\n#include "a.h"\n#include "b.h"\n#else\n#include <proj/a.h>\n'
        "#include <proj/b.h>\n#endif\nint use(struct a *a, struct b *b) { return a->n + b->n; }\n",
    },
    "several headers that the build includes before each file": {
        "Make.inc.in": "CFLAGS = \\\n\t-include src/lib-devel/build.h \\\n\t-include src/lib-devel/types.h\n",
        "src/include/build.h": "#define LIB_ID(text)\n",
        "src/include/types.h": "typedef int lib_int;\n",
        "use.c": 'LIB_ID("use.c")\nlib_int use(void) { return 1; }\n',
    },
    "a number that a script has by default": {
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\nAC_ARG_WITH([link-size], [], [], with_link_size=2)\n"
        "AC_DEFINE_UNQUOTED([LINK_SIZE], [$with_link_size], [bytes of a link])\n"
        "AC_DEFINE_UNQUOTED([WIDE_TYPE], [$wide], [type of a wide link])\n",
        "link.h": "#if LINK_SIZE == 2\ntypedef short link;\n#else\n#error LINK_SIZE must be 2\n#endif\n"
        "#ifdef WIDE_TYPE\ntypedef WIDE_TYPE wide;\n#else\ntypedef long wide;\n#endif\n",
        "use.c": '#include "config.h"\n#include "link.h"\nlink use(wide n) { return 1; }\n',
    },
    "a number that code can do without": {
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n"
        'if test "$most"; then\n  AC_DEFINE_UNQUOTED([LIB_MOST], [$most], [regions])\nfi\n',
        "lib.h": "#ifndef LIB_MOST\n#define LIMIT 8\n#else\n#if LIB_MOST < 8\n#error too few\n#endif\n"
        "#define LIMIT LIB_MOST\n#endif\n",
        "use.c": '#include "config.h"\n#include "lib.h"\nint use(void) { return LIMIT; }\n',
    },
    "an option that a structure has a member for": {
        "lib.h": "#ifdef LIB_USE_SIMD\ntypedef simd_of_library lib_simd;\n#endif\nstruct Lib {\n    int n;\n"
        "#ifdef LIB_USE_SIMD\n    lib_simd all;\n#endif\n};\n",
        "use.c": '#include "lib.h"\nint use(struct Lib *lib) { return lib->n; }\n',
    },
    "a template that git ignores": {
        ".git/HEAD": "",
        ".gitignore": "config.h\nconfig.h.in\n",
        "config.h.in": "/* Generated from configure.ac by autoheader.  */\n#undef HAVE_SIZE_T\n",
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n",
        "use.c": '#include "config.h"\n#include <stdlib.h>\n#ifndef HAVE_SIZE_T\ntypedef int size_t;\n'
        "#endif\nsize_t use(void) { return 1; }\n",
    },
    "a header in either of two branches, and one in it that asks for the guard of another": {
        "types.h": "#ifndef TYPES_H\n#define TYPES_H\ntypedef int lib_int;\n#endif\n",
        "lib.h": '#ifndef LIB_H\n#define LIB_H\n#ifndef TYPES_H\n#include "types.h"\n#endif\n'
        "lib_int lib(void);\n#endif\n",
        "all.h": '#ifdef LIB_INSIDE\n#define LIB_LEVEL 1\n#include "lib.h"\n#else\n#define LIB_LEVEL 2\n'
        '#include "lib.h"\n#endif\n',
        "use.c": '#include "all.h"\nlib_int use(void) { return lib() + LIB_LEVEL; }\n',
    },
    "unsigned types that a script finds": {
        "lib.h.in": "typedef @int_value@ lib_int32_t;\n__extension__ typedef unsigned @int_value@ "
        "lib_uint32_t;\n",
        "use.c": '#include "lib.h"\nlib_uint32_t use(lib_int32_t n) { return n; }\n',
    },
    "an option that a condition compares": {
        "int.h": "#ifndef LIB_WIDE\n#error LIB_WIDE undefined\n#endif\n#if LIB_WIDE > 0\n"
        "typedef long long wide;\n#else\ntypedef long wide;\n#endif\n",
        "use.c": '#include "int.h"\nwide use(void) { return 1; }\n',
    },
    "a header of the system in a folder that the project has too": {
        "include/sys/own.h": "struct own { int n; };\n",
        "version.h": "#include <sys/utsname.h>\nstruct version { struct utsname name; };\n",
        "use.c": '#include "version.h"\n#include <sys/own.h>\nint use(struct own *o, struct version *v) '
        "{ return o->n + v->name.release[0]; }\n",
    },
    "of options for many systems that for this one": {
        "sys.h": "".join(
            f"/*\n * {name}\n */\n#ifdef {name}\n#define LIB_LOCK {lock}\n#define LIB_{name} 1\n#endif\n"
            for name, lock in (("ULTRIX4", "ultrix()"), ("RELIANT", "reliant()"), ("LINUX5", "2"))
        ),
        "use.c": '#include "sys.h"\nint use(void) { return LIB_LOCK; }\n',
    },
    "headers of the kernel that no system has": {
        "include/linux/list.h": "struct list_head { struct list_head *next; };\n",
        "use.c": "#include <linux/list.h>\nvoid *use(struct list_head *l) { return l->next; }\n",
    },
    "types that scripts look for in a header": {
        "config.h.in": "#undef HAVE_SIZE_T_IN_STDDEF_H\n",
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n",
        "types.h": "#if HAVE_SIZE_T_IN_STDDEF_H\n#include <stddef.h>\n#else\ntypedef unsigned size_t;\n"
        "#endif\n#include <stdlib.h>\n",
        "use.c": '#include "config.h"\n#include "types.h"\nsize_t use(void) { return 1; }\n',
    },
    "limits of numbers, of a header that includes none": {
        "int.h": "#if INT_MIN < -2147483646 && INT_MAX > 2147483646\ntypedef int lib_int;\n#else\n"
        "#error no integer\n#endif\n",
        "use.c": '#include "int.h"\nlib_int use(void) { return 1; }\n',
    },
    "sizes of types, in a configuration that nothing describes": {
        "ids.h": "#if SIZEOF_UID_T == 4 && SIZEOF_UINT32_T == 4\ntypedef unsigned lib_id;\n#else\n"
        "#error Unknown size\n#endif\n",
        "use.c": '#include "config.h"\n#include "ids.h"\nlib_id use(void) { return 1; }\n',
    },
    "values that a script computes": {
        "config.h.in": "#undef MAJOR\n#undef UNUSED\n#undef HOME\n",
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\nAC_DEFINE_UNQUOTED([MAJOR], [$MAJOR], [number])\n"
        'AC_DEFINE_UNQUOTED([UNUSED], [$unused])\nAC_DEFINE_UNQUOTED([HOME], ["$home"])\n',
        "use.c": '#include "config.h"\nconst char *use(int n UNUSED) { return MAJOR > 3 ? HOME : "a"; }\n',
    },
    "values of Meson's configuration": {
        "meson.build": "conf.set_quoted('LIB_VERSION', meson.project_version())\nconf.set('LIB_LEVEL', 3)\n"
        "if get_option('debug')\n  conf.set('DEBUG', 1)\nendif\n",
        "use.c": '#include "config.h"\n/* not for DEBUG */\n#ifdef DEBUG\n#error debug\n#endif\n'
        'const char *use(void) { return LIB_LEVEL > 3 ? LIB_VERSION : "a"; }\n',
    },
    "an option that a function needs that has macros of its own": {
        "mark.h": "#if LIB_ALLOCA\n#define LIB_MARK int mark\n#endif\n#if LIB_REENTRANT\n"
        "#define LIB_MARK long mark\n#endif\n",
        "use.c": '#include "mark.h"\nint use(void) {\n  LIB_MARK = 1;\n#define LOW mark\n  return LOW;\n}\n',
    },
    "numbers of system calls": {"use.c": "#include <unistd.h>\nint use(void) { return __NR_getpid; }\n"},
    "a structure in another, one for each option": {
        "itc.h": "#if defined(LIB_ITC_EVENTFD)\nstruct itc { int fd; };\n#elif defined(LIB_ITC_PIPE)\n"
        "struct itc { int fd[2]; };\n#endif\n",
        "daemon.h": '#include "itc.h"\nstruct daemon { int n; struct itc itc; };\n',
        "use.c": '#include "daemon.h"\nint use(struct daemon *d) { return d->n; }\n',
    },
    "types that a configuration declares where the system does not": {
        "config.h.in": "#undef LIB_HAS_SIZE\n#ifndef LIB_HAS_SIZE\ntypedef int size_t;\n#endif\n",
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n",
        "use.c": '#include "config.h"\n#include <stdlib.h>\nsize_t use(void) { return 1; }\n',
    },
    "what a script finds, where it writes no configuration": {
        "configure.ac": "AC_INIT([lib], [1])\ndnl AC_CONFIG_HEADERS([config.h])\n"
        "AC_CHECK_HEADERS([stdint.h])\n",
        "lib.h": "#ifdef HAVE_STDINT_H\n#include <stdint.h>\n#endif\nuint32_t next(uint32_t n);\n",
        "other.c": '#ifdef HAVE_CONFIG_H\n#include "config.h"\n#endif\nint other(void) { return 1; }\n',
        "use.c": '#include "lib.h"\nint use(void) { return next(1); }\n',
    },
    "lists of the system's queues": {
        "list.h": "struct entry { TAILQ_ENTRY(entry) next; };\n",
        "use.c": '#include <stdio.h>\n#include "list.h"\n'
        "void *use(struct entry *e) { return e->next.tqe_next; }\n",
    },
    "a header whose name a script has in a variable": {
        "configure.ac": "AC_INIT([lib], [1])\nLIB_HEADER=\"<math.h>\"\n",
        "use.c": "#include LIB_HEADER\ndouble use(double x) { return sqrt(x); }\n",
    },
    "a header that a macro makes of its argument": {
        "lib.h": '#define LIB_INCLUDE(file) file\n#include LIB_INCLUDE("part.h")\n',
        "part.h": "struct part { int n; };\n",
        "use.c": '#include "lib.h"\nint use(struct part *p) { return p->n; }\n',
    },
    "of two lists of headers that which is there": {
        "all.h": "#ifndef LIB_ALONE\n#include <sys/times.h>\n#include \"part.h\"\n#else\n"
        '#include "../lib/times.h"\n#include "part.h"\n#endif\n',
        "part.h": "struct part { struct tms n; };\n",
        "use.c": '#include "all.h"\nlong use(struct part *p) { return p->n.tms_utime; }\n',
    },
    "a header that its source does not include": {
        "use.c": '#include "box.h"\nint change(struct box *b) { return b->n; }\n',
        "use.h": "int change(struct box *);\n",
        "box.h": "struct box { int n; };\n",
        "other.c": '#include "box.h"\n#include "use.h"\nint other(struct box *b) { return change(b); }\n',
    },
    "a macro that ends in a blank line, before another file": {
        "m.h": "#define C 1\n#define A(i) \\\n  (i) \\\n\nint g(int);\n",
        "use.c": '#include "m.h"\n#define B 1\nint use(void) { return A(B) + C; }\n',
    },
}  # fmt: skip


@pytest.mark.parametrize("files", _PROJECTS.values(), ids=_PROJECTS)
def test_a_project_compiles(tmp_path, files):
    assert_compiles(tmp_path, files)


def test_macros_for_the_header_of_a_library_stay_before_it_with_their_comment(tmp_path):
    macros = "/* The oldest version. */\n#define G_OLDEST G_2_42\n#define G_NEWEST G_2_42\n"
    macros += "#define G_EQUAL(a, b) ((a) == (b))\n"
    files = {
        "lib.h": f"#include <stdio.h>\n\n{macros}\n#include <glib.h>\nint f(void);\n",
        "use.c": '#include "lib.h"\nint use(void) { return f(); }\n',
    }
    text = one_document(tmp_path, files, of="use.c").text
    in_order(text, "#define G_OLDEST", "#define G_NEWEST", "#define G_EQUAL", "#include <glib.h>")


def test_headers_of_a_library_are_included_though_they_stand_in_quotes(tmp_path):
    headers = [f"tls_{name}.h" for name in ("pool", "ring", "file", "time")]
    files = {
        "use.c": "".join(f'#include "{name}"\n' for name in (*headers, "lib_config.h"))
        + "tls_pool *use(void) { return 0; }\n"
    }
    text = one_document(tmp_path, files, of="use.c").text
    assert all(f'#include "{name}"\n' in text for name in headers)
    assert "lib_config.h" not in text


def test_headers_that_begin_with_a_word_of_a_library_are_included(tmp_path):
    includes = "".join(f'#include "Osi{name}.hpp"\n' for name in ("Cuts", "Object", "Row", "Solver"))
    files = {
        "CbcCut.hpp": '#include "CbcConfig.h"\nstruct CbcCut { int n; };\n',
        "use.cpp": f'{includes}#include "CbcCut.hpp"\nint use(OsiRow* row) {{ return sizeof(CbcCut); }}\n',
    }
    text = one_document(tmp_path, files, of="use.cpp").text
    assert includes in text
    assert "CbcConfig.h" not in text


def test_headers_of_a_library_whose_folder_the_project_has_too_are_included(tmp_path):
    headers = [f"tls/{name}.h" for name in ("pool", "ring", "file", "time")]
    files = {
        "include/tls/own.h": "struct own { int n; };\n",
        "use.c": "".join(f"#include <{name}>\n" for name in (*headers, "tls/own.h"))
        + "tls_pool *use(struct own *o) { return o->n; }\n",
    }
    text = one_document(tmp_path, files, of="use.c").text
    assert all(f"#include <{name}>\n" in text for name in headers)
    assert "struct own {" in text


def test_a_header_of_a_library_is_not_one_of_the_same_name(tmp_path):
    files = {
        "common/tls.h": "#include <tls/tls.h>\nint own(void);\n",
        "common/tls-a.h": "int a(void);\n",
        "common/tls-b.h": "int b(void);\n",
        "use.c": "#include <tls/tls.h>\ntls_pool *use(void) { return 0; }\n",
    }
    assert "#include <tls/tls.h>\n" in one_document(tmp_path, files, of="use.c").text


def test_the_header_of_glib_that_asks_for_a_domain_has_one(tmp_path):
    files = {"use.c": '#include <glib/gi18n-lib.h>\nconst char *use(void) { return _("a"); }\n'}
    text = one_document(tmp_path, files, of="use.c").text
    in_order(text, '#define GETTEXT_PACKAGE ""\n', "#include <glib/gi18n-lib.h>")


def test_macros_of_the_compiler_are_no_options(tmp_path):
    files = {
        "tls.h": "#if defined(__GNUC__)\n#define LIB_LOCAL __thread\n#elif defined(LIB_OTHER)\n"
        "#define LIB_LOCAL\n#endif\n",
        "use.c": '#include "tls.h"\nLIB_LOCAL int use;\n',
    }
    assert "#define __GNUC__" not in one_document(tmp_path, files, of="use.c").text


def test_what_a_generated_script_tries_out_is_defined_nowhere(tmp_path):
    tried = "#define getenv autoconf_temporary\n"
    files = {
        "configure": f"# Generated automatically using autoconf version 2.13\n{tried}",
        "use.c": '#include <stdlib.h>\nchar *use(void) { return getenv("HOME"); }\n',
    }
    assert "autoconf_temporary" not in one_document(tmp_path, files, of="use.c").text


def test_what_a_class_has_in_a_condition_is_no_option_of_the_class(tmp_path):
    files = {
        "id.h": "struct id {\n  int n;\n#ifdef LIB_STRICT\n  int (*strict)(void);\n#endif\n};\n",
        "use.c": '#include "id.h"\nint use(struct id *i) { return i->n; }\n',
    }
    assert "#define LIB_STRICT" not in one_document(tmp_path, files, of="use.c").text


def test_a_file_is_taken_apart_where_a_scope_ends_in_a_condition_and_begins_again(tmp_path):
    files = {
        "types.h": "namespace a {\nnamespace b {\nint first();\n#if !LIB_NONE\nstruct Second { int n; };\n}\n"
        "struct Third { b::Second second; };\nnamespace b {\nstruct Fourth { Third third; };\n#endif\n"
        "struct Fifth { int n; };\nint sixth();\n}\n}\n",
        "use.cc": '#include "types.h"\nint use(a::b::Fourth &f, a::b::Fifth &g) '
        "{ return f.third.second.n + g.n; }\n",
    }
    text = one_document(tmp_path, files, of="use.cc").text
    assert compile_errors(text) == ""
    assert "first" not in text
    assert "sixth" not in text


def test_macros_of_another_library_hide_no_function(tmp_path):
    declaration = "void fail(const char *, ...) LIB_COLD LIB_FORMAT(LIB_PRINTF, 1, (2));"
    files = {"fail.h": f"{declaration}\n", "use.c": '#include "fail.h"\nvoid use(void) { fail("a"); }\n'}
    assert declaration in one_document(tmp_path, files, of="use.c").text


def test_a_macro_that_stands_with_an_include_is_there_for_declarations(tmp_path):
    members = "".join(f"  int member_{n};\n" for n in range(200))
    files = {
        "attribute.h": "#ifdef __GNUC__\n#ifdef __MINGW32__\n#include <stdio.h>\n#define FORMAT(a, b)\n"
        "#else\n#define FORMAT(a, b) __attribute__((format(printf, a, b)))\n#endif\n"
        "#else\n#define FORMAT(a, b)\n#endif\n",
        "log.h": f'#include "attribute.h"\nstruct log {{\n{members}}};\n'
        "void log_text(struct log *to, const char *text, ...) FORMAT(2, 3);\n",
        "use.c": '#include "log.h"\nvoid use(void) { log_text(0, "a"); }\n',
    }
    document = one_document(tmp_path, files, of="use.c", budget=1_000)
    assert document.kind == "compilable"
    assert "member_7" not in document.text
    assert compile_errors(document.text, language="c") == ""


def test_a_library_s_headers_below_a_folder_that_the_project_has_too_are_included(tmp_path):
    """Where no header of the project lies right beside them; others are a build's."""
    library = ["lib/lib.h", "lib/video/video.h", "lib/video/frame.h", "lib/base/bits.h"]
    files = {
        "include/lib/own/own.h": "#include <lib/lib.h>\nint own(lib_int n);\n",
        **{f"include/lib/own/{name}.h": f"int {name}(void);\n" for name in "abcde"},
        **{
            f"{name}.c": f"#include <lib/own/{name}.h>\nint {name}(void) {{ return 1; }}\n"
            for name in "abcde"
        },
        "other.c": "".join(f"#include <{name}>\n" for name in library),
        "use.c": "#include <lib/own/own.h>\n#include <lib/own/written.h>\nint use(void) { return own(1); }\n",
    }
    text = one_document(tmp_path, files, of="use.c").text
    assert "#include <lib/lib.h>\n" in text
    assert "written.h" not in text
