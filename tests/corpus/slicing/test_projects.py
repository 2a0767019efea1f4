"""Projects of which no document compiled, each as small as shows the cause: the one of `use.*` does."""

import pytest

from tests.corpus.cpp import assert_compiles, needs_gxx

pytestmark = needs_gxx

_EVENT_CONFIG = "#define EV_size_t @EV_size_t@\n#cmakedefine EV_HAVE_STDINT_H\ntypedef @COUNT_T@ count_t;\n"
_NAMESPACES = (
    "#define PUSH PRAGMA(GCC diagnostic push)\n#define POP PRAGMA(GCC diagnostic pop)\n"
    "#define PRAGMA(...) _Pragma(#__VA_ARGS__)\n#define NAME lib\n"
    "#define NAMESPACE_BEGIN(name) namespace name { PUSH\n#define NAMESPACE_END(name) POP }\n"
)
_PROJECTS: dict[str, dict[str, str]] = {
    "a header that includes itself by way of another, before its guard": {
        "all.h": '#ifndef ALL_H\n#define ALL_H\n#include "log.h"\nerror_t run(int n);\n#endif\n',
        "log.h": '#include "all.h"\n#ifndef LOG_H\n#define LOG_H\ntypedef int error_t;\n#endif\n',
        "use.cc": '#include "log.h"\nerror_t use() { return run(1); }\n',
    },
    "an explicit instantiation by its qualified name makes no class of a namespace": {
        "text.h": "namespace lib {\nstruct Text { int n; };\ntemplate <class T> struct List { T t; };\n}\n"
        "lib::Text operator+(const lib::Text& a, const lib::Text& b);\n",
        "list.cc": '#include "text.h"\ntemplate class lib::List<lib::Text>;\n',
        "use.cc": '#include "text.h"\nlib::Text use(lib::Text a, lib::Text b) { return a + b; }\n',
    },
    "the values of a build for placeholders, not those for Windows": {
        "CMakeLists.txt": "if(WIN32)\nconfigure_file(win/conf.h.in conf.h)\nelse()\n"
        "configure_file(conf.h.in conf.h)\nendif()\nif(WIDE)\nset(BITS 12)\nelse()\nset(BITS 8)\nendif()\n",
        "win/conf.h.in": "#define BITS @BITS@\n#define INLINE __forceinline\n",
        "conf.h.in": "#define BITS @BITS@\n#define INLINE @INLINE@\n#define SIZEOF_SIZE_T @SIZE_T@\n"
        "#define DWORD @DWORD@\n#define THREAD_LOCAL @THREAD_LOCAL@\n",
        "a.h": '#include "conf.h"\n#if BITS == 8 && SIZEOF_SIZE_T == 8\ntypedef DWORD sample;\n#endif\n'
        "static THREAD_LOCAL sample last;\n#define LOCAL(type) static type\n"
        "INLINE\nLOCAL(int)\nlength(sample s) { return s; }\n",
        "use.cc": '#include "a.h"\nint use(sample n) { return n + last; }\n',
    },
    "enumerators that a macro makes": {
        "e.h": "#ifndef E\n#define LIST\n#endif\n#ifdef LIST\ntypedef enum {\n#define E(text, code) code,\n"
        '#endif\nE("full", FULL)\nE("lost", LOST)\n'
        "#ifdef LIST\nLAST } code_t;\n#undef LIST\n#endif\n#undef E\n",
        "use.cc": '#include "e.h"\nint use() { return LOST; }\n',
    },
    "an #error asks for what is no choice for Windows": {
        "common.h": "#ifndef FINDER_WINDOW_ORDER\n#error it must be defined\n#endif\n"
        "#define FINDER_SIZE (1 << FINDER_WINDOW_ORDER)\n",
        "use.h": '#include "common.h"\nstatic int size() { return FINDER_SIZE; }\n',
        "main.c": '#define FINDER_WINDOW_ORDER 15\n#include "use.h"\nint main(void) { return size(); }\n',
    },
    "an #error asks for a system, not for one of devices": {
        "port.h": "#if defined(APP_THREADX)\n#include <tx.h>\n#elif defined(APP_POSIX)\n#include <stddef.h>\n"
        "#else\n#error which system?\n#endif\ntypedef size_t port_t;\n",
        "use.c": '#include "port.h"\nport_t use(void) { return 1; }\n',
    },
    "a header that needs what the file reads that includes its includer": {
        "use.h": "static word half(word n) { return apply(ops, n); }\n",
        "impl.h": '#define apply(f, n) f(n)\n#include "use.h"\n',
        "main.cc": 'typedef int (*word_f)(int);\ntypedef int word;\nextern word_f ops;\n#include "impl.h"\n',
    },
    "functions of C that a macro makes of the name of a type": {
        "a.h": "#define LOADS_OF(type) static type *load_##type(type *p) { return p; }\n"
        "typedef unsigned u32;\nLOADS_OF(u32)\n",
        "use.c": '#include "a.h"\nu32 use(u32 *p) { return *load_u32(p); }\n',
    },
    "C code that C++ includes, too": {
        "use.c": "#include <stdlib.h>\nint *use(options n) { return malloc(n); }\n",
        "all.h": "typedef int options;\n",
        "a.c": '#include "all.h"\n#include "use.c"\n',
        "Fuzz.cc": 'extern "C" {\n#include "all.h"\n#include "use.c"\n}\n',
    },
    "a member class of a template outside of it, with a base": {
        "list.h": "struct Base { int references; };\ntemplate <class T> struct List {\n  struct Private;\n"
        "  Private* d;\n  int count() const { return d->references; }\n};\n"
        "template <class T> struct List<T>::Private : public Base { T first; };\n",
        "use.cc": '#include "list.h"\nint use(const List<int>& all) { return all.count() + all.d->first; }\n',
    },
    "what a script adds to its template decides by itself": {
        "configure.ac": "AC_INIT([a], [1])\nAC_CONFIG_HEADERS([config.h])\n"
        "AH_BOTTOM([#if !HAVE_DECL_LOG1P\n#define log1p a_log1p\n#endif])\n",
        "config.h.in": "#undef HAVE_DECL_LOG1P\n#if !HAVE_DECL_LOG1P\n#define log1p a_log1p\n#endif\n",
        "use.cc": '#include "config.h"\n#include <math.h>\ndouble use() { return log1p(1); }\n',
    },
    "of two headers of one name that in a folder of the same name": {
        "codec/encoder/inc/mv.h": "int encoder_mv();\n",
        "codec/decoder/inc/mv.h": "int decoder_mv();\n",
        "test/decoder/use.cc": '#include "mv.h"\nint use() { return decoder_mv(); }\n',
    },
    "what a macro declares in the middle of a line": {
        "a.h": "#define ALIGNED(type, name, n) type __attribute__((aligned(n))) name\n"
        "extern const ALIGNED(int, table[4], 16);\n",
        "use.cc": '#include "a.h"\nint use(int n) { return table[n]; }\n',
    },
    "what a macro stands for is declared behind it": {
        "a.h": "struct S { int x; };\n#ifdef DLL\n#define it that->\nextern S* that;\n"
        "#else\n#define it that.\nextern S that;\n#endif\n",
        "use.cc": '#include "a.h"\nint use() { return it x; }\n',
    },
    "config_h.in becomes config.h": {
        "configure.in": "AC_CONFIG_HEADER(config.h:config_h.in)\n",
        "config_h.in": "#undef SIZEOF_LONG\n",
        "use.cc": "#include <config.h>\nint use() { return SIZEOF_LONG; }\n",
    },
    "of two headers that a build chooses from, that of the #else": {
        "all.h.in": "@ALL@\n",
        "part.h": "int part();\n",
        "use.cc": '#ifdef ALL\n#include "all.h"\n#else\n#include "part.h"\n#endif\n'
        "int use() { return part(); }\n",
    },
    "a header for another system does not stand for that of the build": {
        "CMakeLists.txt": "configure_file(config.h.cmake ${DIR}/include/ev/config.h)\n",
        "config.h.cmake": _EVENT_CONFIG,
        "win32/ev/config.h": "#define EV_size_t SIZE_T\n",
        "use.cc": '#include "ev/config.h"\n#include <stddef.h>\n'
        "EV_size_t use(count_t count) { return count; }\n",
    },
    "macros with arguments open and close namespaces": {
        "a.h": _NAMESPACES + "NAMESPACE_BEGIN(NAME)\nNAMESPACE_BEGIN(inner)\nint f();\nint g();\n"
        "NAMESPACE_END(inner)\nNAMESPACE_END(NAME)\n",
        "use.cc": '#include "a.h"\nnamespace l = lib;\nint use() { return l::inner::f(); }\n',
    },
    "a configuration that only configure.ac describes": {
        "configure.ac": "AC_INIT([a], [1.0])\nAC_CONFIG_HEADERS([config.h])\n"
        "AC_CHECK_FUNCS([getline nosuch])\n"
        "AC_DEFINE([LEVEL], [3], [of all])\nif test x; then\n  AC_DEFINE([ONLY_THEN], [1])\nfi\n"
        "if test y; then\n  AC_DEFINE([EITHER], [5])\nelse\n  AC_DEFINE([EITHER], [6])\nfi\n",
        "use.cc": "#include <config.h>\n#ifndef HAVE_GETLINE\n#error no\n#endif\n"
        "#ifdef HAVE_NOSUCH\n#error yes\n#endif\n"
        "#ifdef ONLY_THEN\n#error then\n#endif\nint use() { return LEVEL + EITHER + sizeof PACKAGE_NAME; }\n",
    },
    "an #error asks for the macro that avoids it": {
        "real.h": "#if defined(REAL_IS_FLOAT) && !defined(TABLES)\ntypedef float real;\n"
        "#elif defined REAL_IS_FIXED || defined(TABLES)\ntypedef long real;\n#else\n#error none\n#endif\n",
        "use.cc": '#include "real.h"\nreal use() { return 1; }\n',
    },
    "a hand-written configure defines macros": {
        "configure": '#!/bin/sh\nadd_def DEBUG $debug\nadd_def VERSION "\\"$version\\""\n',
        "CMakeLists.txt": 'set(DEFINES "#define _Maybe")\nadd_definitions(-DDEPTH=4)\n',
        "use.cc": "int use(char *_Maybe s) { return s ? DEBUG + DEPTH : sizeof VERSION; }\n",
    },
    "a scope that is left for an include, within a condition": {
        "a.h": "#pragma once\n#ifdef SPACE\n#define BEGIN_NS namespace ns {\n#define END_NS }\n#else\n"
        "#define BEGIN_NS\n#define END_NS\n#endif\nBEGIN_NS\nstruct A {};\n"
        "#if __cplusplus > 199711L\nEND_NS\n#include <vector>\nBEGIN_NS\n"
        "std::vector<A> all();\n#endif\nEND_NS\n",
        "use.cc": '#include "a.h"\nBEGIN_NS\nint use() { return all().size(); }\nEND_NS\n',
    },
    "a header whose brackets close elsewhere, with includes of its own": {
        "other.h": "#pragma once\ntypedef int number;\n",
        "a.h": '#ifndef A_H\n#define A_H\n#include "other.h"\n#ifdef WIDE\nstruct A { number x;\n#else\n'
        "struct A {\n#endif\n#ifdef LONG\nnumber y; };\n#endif\n#ifndef LONG\n};\n#endif\n#endif\n",
        "use.cc": '#include "a.h"\nnumber use(A*) { return 1; }\n',
    },
    "a comment behind using namespace": {
        "a.h": "namespace a {\nnamespace inner {\nint f();\n}\n// f; g\nusing namespace inner;  // NOLINT\n"
        "int g();\n}\n",
        "use.cc": '#include "a.h"\nint use() { return a::g(); }\n',
    },
    "keywords and types in a template of a header": {
        "a.h.in": "#define MY_INLINE @my_inline@\n#define my_int_t @my_int_t@\n"
        "#define MY_LEN_T ${TYPEOF_SOCKLEN_T}\n",
        "use.cc": '#include "a.h"\n#include <sys/socket.h>\n'
        "MY_INLINE my_int_t use(MY_LEN_T n) { return n; }\n",
    },
    "a configuration of which nothing is there": {
        "use.cc": '#include "config-auto.h"\n#if !MY_HAVE_UNISTD_H\n#define std\n#endif\n'
        "#include <string>\nstd::string use() { return {}; }\n",
    },
    "what is never read opens nothing": {
        "a.h": "#if 1 + 1 == 3\nstruct A\n{\n#endif\ntypedef int number;\n",
        "use.cc": '#include "a.h"\nnumber use() { return 1; }\n',
    },
    "a macro of the build behind a pointer": {
        "CMakeLists.txt": 'set(DEFINES "#define _Maybe")\n',
        "a.h": "struct A;\nA *_Maybe closing(A *_Maybe a, int n);\n",
        "use.cc": '#include "a.h"\nA* use(A* a) { return closing(a, 2); }\n',
    },
    "the macro of an export header, by its name in CMake": {
        "CMakeLists.txt": "generate_export_header(a EXPORT_MACRO_NAME A_DLL_API)\n",
        "a.h": '#include "a_export.h"\nclass A_DLL_API A {\npublic:\n  int f();\n};\n',
        "use.cc": '#include "a.h"\nint use(A* a) { return a->f(); }\n',
    },
    "of the values of a macro in a script that for another system": {
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\nif test x; then\n"
        "  AC_DEFINE([API], [__attribute__((x)) __declspec(dllexport) extern])\nelse\n"
        "  AC_DEFINE([API], [extern])\nfi\n",
        "use.cc": '#include "config.h"\nAPI int use();\n',
    },
    "what a check of autoconf finds, where it stands for code": {
        "m4/checks.m4": "AC_DEFUN([CHECKS], [\n  AC_DEFINE([functional_header], [<functional>], [a])\n"
        "  AC_DEFINE([functional_header], [<tr1/functional>], [b])\n"
        "  AC_DEFINE(aligned, __attribute__((aligned(CACHE_BYTES))), [c])\n])\n",
        "a.h": "#include functional_header\nclass aligned A {\npublic:\n  std::function<int()> f;\n};\n",
        "use.cc": '#include "a.h"\nint use(A* a) { return a->f(); }\n',
    },
    "enumerators of a typedef in a large class": {
        "a.h": "class A {\npublic:\n  typedef enum {\n    FIRST,\n    LAST\n  } Kind;\n"
        "  static const int count = LAST - FIRST;\n  int f();\n"
        + "".join(f"  int member_{n:050};\n" for n in range(900))
        + "private:\n  int hidden;\n};\n",
        "use.cc": '#include "a.h"\nint use(A* a) { return a->f(); }\n',
    },
    "the compiler of Linux, where a template has to be told": {
        "config.h.in": "#cmakedefine01 COMPILER_IS_CLANG\n#cmakedefine01 COMPILER_IS_GNU\n"
        "#if COMPILER_IS_CLANG || COMPILER_IS_GNU\ntypedef int number;\n#else\n#error which?\n#endif\n",
        "use.cc": '#include "config.h"\nnumber use() { return 1; }\n',
    },
    "what a build looks for under names of its own": {
        "CMakeLists.txt": "CHECK_INCLUDE_FILES(emmintrin.h HAVE_SSE2_HEADER)\n"
        "check_function_exists(strdup CAN_COPY)\ncheck_symbol_exists(no_such_name string.h CAN_NOT)\n",
        "config.h.in": "#cmakedefine HAVE_SSE2_HEADER\n#cmakedefine CAN_COPY\n#cmakedefine CAN_NOT\n",
        "use.cc": '#include "config.h"\n#ifdef HAVE_SSE2_HEADER\n#include <emmintrin.h>\n#endif\n'
        "#if !defined(CAN_COPY) || defined(CAN_NOT)\n  Error which?\n#endif\n"
        "int use(__m128i a) { return sizeof a; }\n",
    },
    "a brace that closes for editors what was just opened": {
        "row.h": "struct Row { int n; };\n",
        "use.cc": '#include "row.h"\n#ifdef HAVE_NAMESPACES\nnamespace lib {\n# ifdef NOT_DEFINED\n}\n'
        "# endif\n#endif\nint use(Row* row) { return row->n; }\n#ifdef HAVE_NAMESPACES\n}\n#endif\n",
    },
    "a header that is read once, by a pragma with a space": {
        "row.h": "# pragma once\nstruct Row { int n; };\n",
        "cell.h": '# pragma once\n# include "row.h"\nstruct Cell { Row row; };\n',
        "use.cc": '# include "row.h"\n# include "cell.h"\nint use(Cell& cell) { return cell.row.n; }\n',
    },
    "a header that a macro names, unless a build has another": {
        "lib/config.h": "#if !defined(USER_CONFIG) && !defined(NO_USER_CONFIG)\n"
        "#  define USER_CONFIG <lib/user.h>\n#endif\n#ifdef USER_CONFIG\n#  include USER_CONFIG\n#endif\n",
        "lib/user.h": "typedef int number;\n",
        "use.cc": '#include "lib/config.h"\nnumber use() { return 1; }\n',
    },
    "a number that a build chooses, and conditions compare": {
        "config.h.in": "#define INTEGER_SIZE @INTEGER_SIZE@\n#define LEVEL @LEVEL@\n",
        "types.h": '#include "config.h"\n#if !defined(INTEGER_SIZE)\n#error no\n#elif INTEGER_SIZE == 64\n'
        "typedef long integer;\n#elif INTEGER_SIZE == 32\ntypedef int integer;\n#endif\n"
        "#if LEVEL == 1\n#error a level\n#elif LEVEL == 0\ntypedef int level;\n#endif\n",
        "use.cc": '#include "types.h"\ninteger use(level a) { return a; }\n',
    },
    "a macro in a condition, defined by what a source includes before": {
        "all.c": '#include "api.h"\n#include "use.h"\n',
        "api.h": "#ifndef API_H\n#define API_H\n# if !defined(LIB_PREREQ)\n"
        "#  define LIB_PREREQ(a) (__GNUC__ >= (a))\n# endif\n#endif\n",
        "util.h": "#ifndef UTIL_H\n#define UTIL_H\n#if LIB_PREREQ(3)\n"
        "#define LIKELY(x) __builtin_expect((x), 1)\n#else\n#define LIKELY(x) (x)\n#endif\n#endif\n",
        "use.h": '#include "util.h"\nstatic int use(int a) { return LIKELY(a); }\n',
    },
    "a macro in a condition around an include": {
        "util.h": "#ifndef UTIL_H\n#define UTIL_H\n#if defined(FORCE_WIDE)\n# define WIDE 1\n"
        "#elif defined(FORCE_NARROW)\n# define NARROW 1\n"
        "#elif defined(UINT128_MAX) || defined(__SIZEOF_INT128__)\n# define WIDE 1\n"
        "#else\n# define NARROW 1\n#endif\n#endif\n",
        "wide.h": "typedef struct { long a[2]; } field;\n",
        "narrow.h": "typedef struct { int a[4]; } field;\n",
        "field.h": '#include "util.h"\n#if defined(WIDE)\n#include "wide.h"\n#elif defined(NARROW)\n'
        '#include "narrow.h"\n#else\n#error which?\n#endif\n',
        "use.cc": '#include "field.h"\nint use(field* f) { return f->a[0]; }\n',
    },
    "the second half of a header, in a source that includes what it needs": {
        **{f"bench_{n}.c": '#include "use.h"\nint main(void) { return 0; }\n' for n in range(5)},
        "all.c": '#include "api.h"\n#include "use-impl.h"\n',
        "api.h": "#ifndef API_H\n#define API_H\n#define FAST(x) (x)\n#endif\n",
        "use.h": "#ifndef USE_H\n#define USE_H\nint use(int a);\n#endif\n",
        "use-impl.h": '#include "use.h"\nint use(int a) { return FAST(a) + FAST(1); }\n',
    },
    "a type that a build chooses": {
        "config.h.in": "#define LIB_U64BIT_INT @LIB_U64BIT_INT@\n#define LIB_CHAR @LIB_CHAR@\n",
        "types.h": '#include "config.h"\ntypedef LIB_U64BIT_INT lib_u64;\ntypedef LIB_CHAR lib_char;\n',
        "use.cc": '#include "types.h"\nstatic_assert(lib_u64(-1) > 0 && sizeof(lib_u64) == 8, "");\n'
        "lib_char use(lib_u64 a) { return a & 1; }\n",
    },
    "a header of a search folder, not the nearest of its name": {
        **{f"include/lib_{name}.h": f"typedef int lib_{name};\n" for name in ("a", "b", "c", "d", "lock")},
        "tests/lock/lib_lock.h": "#error of another program\n",
        "tests/more/use.cc": "".join(f"#include <lib_{name}.h>\n" for name in ("a", "b", "c", "d", "lock"))
        + "lib_lock use() { return lib_a(1); }\n",
    },
    "headers in a namespace of the header that includes them all": {
        "include/all": '#include <vector>\nnamespace all\n  {\n  #include "all_parts/row.hpp"\n'
        '  #include "all_parts/use.hpp"\n  }\n',
        "include/all_parts/row.hpp": "struct Row { std::vector<int> cells; };\n",
        "include/all_parts/use.hpp": "inline int use(const Row& row) { return row.cells.size(); }\n",
    },
    "an allocator for a container": {
        "pool.h": "#include <vector>\ntemplate <class T> class Pool {\npublic:\n  typedef T value_type;\n"
        "  T* allocate(unsigned long n);\n  void deallocate(T*, unsigned long);\n  int used();\n"
        + "".join(f"  int other_{number:050}();\n" for number in range(900))
        + "};\n",
        "use.cc": '#include "pool.h"\nint use() {\n  std::vector<int, Pool<int>> all(3);\n'
        "  return Pool<int>().used();\n}\n",
    },
    "a header that the build has written, beside its template": {
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n",
        "config.h.in": "#undef LEVEL\n",
        "config.h": "/* config.h.  Generated from config.h.in by configure.  */\n#define LEVEL 7\n",
        "src/use.cc": "#include <config.h>\nint use() { return LEVEL; }\n",
    },
    "a header that the build has written, in its folder": {
        "CMakeLists.txt": "configure_file(config.h.in config.h)\n",
        "config.h.in": "#cmakedefine LEVEL ${LEVEL}\n",
        "debug/CMakeCache.txt": "",
        "debug/config.h": "#define LEVEL 7\n",
        "src/use.cc": '#include "config.h"\nint use() { return LEVEL; }\n',
    },
    "types of arguments, found by a script": {
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\nAM_GNU_GETTEXT([external])\n",
        "config.h.in": "#undef HAVE_RECV\n#undef RECV_TYPE_ARG1\n#undef HAVE_TYPE_BOOL\n",
        "use.cc": '#include "config.h"\n#ifndef HAVE_RECV\n  Error no recv\n#endif\n#ifndef HAVE_TYPE_BOOL\n'
        "typedef enum { no } bool;\n#endif\nint use() { return (RECV_TYPE_ARG1)sizeof GETTEXT_PACKAGE; }\n",
    },
    "both branches include a header that guards a part of itself": {
        "api.h": "/* The API. */\n#ifndef API_H\n#define API_H\ntypedef long number;\n#endif\nvoid api();\n",
        "impl.h": '#ifdef WITH_INTERNALS\n#include "api.h"\n#define MORE 1\n#else\n#include "api.h"\n'
        "#define MORE 0\n#endif\n",
        "use.cc": '#include "impl.h"\nnumber use() { return MORE; }\n',
    },
    "a keyword that one file defines": {
        "trick.c": '#define extern\n#include "shared.h"\n',
        "shared.h": '#ifdef __cplusplus\nextern "C" {\n#endif\nint f(void);\n'
        "#ifdef SOME\nint g(void);\n#endif\n#ifdef __cplusplus\n}\n#endif\n",
        "use.cc": '#include "shared.h"\nint use() { return f(); }\n',
    },
    "an #error over the version of a library": {
        "user.h": "#include <stdint.h>\n#if !(defined(__GLIBC__) && __GLIBC__ >= 2) && !defined(MINI)\n"
        "#error old\n#endif\n#ifdef MINI\nmini_t small();\n#else\nuint8_t small();\n#endif\n",
        "use.cc": '#include "user.h"\nuint8_t use() { return small(); }\n',
    },
    "a source file that another one includes": {
        "trace.h": "#define TRACE(text)\n",
        "use.cc": "void use() { TRACE(1); }\n",
        "whole.cc": '#include "trace.h"\n#include "use.cc"\n',
    },
}


@pytest.mark.parametrize("files", _PROJECTS.values(), ids=_PROJECTS)
def test_a_project_compiles(tmp_path, files):
    assert_compiles(tmp_path, files)
