"""Projects for many systems, built in many ways: the smallest project of each case."""

import pytest

from tests.corpus.cpp import (
    assert_compiles,
    compile_errors,
    documents_of,
    needs_gxx,
    one_document,
    write_files,
)

pytestmark = needs_gxx

_PROJECTS: dict[str, dict[str, str]] = {
    "of several options for the same the first": {
        "config.h": "#ifndef NET_INET\n#define NET_INET 1\n#endif\n"
        "#ifndef NET_OLD\n#define NET_OLD 0\n#endif\n",
        "net.h": "#if NET_INET || NET_OLD\ntypedef struct { int port; } address;\n#endif\n"
        "#if NET_OLD\n#include <netold/old.h>\n#endif\n",
        "use.c": '#include "net.h"\n#include "config.h"\nint use(address *to) { return to->port; }\n',
    },
    "an option is a number where its value is asked for": {
        "net.h": "#if NET_INET\ntypedef int address;\n#endif\n",
        "use.c": '#include "net.h"\naddress use(address n) { return n; }\n'
        "#if NET_INET\nint more(void) { return 1; }\n#endif /* NET_INET */\n",
    },
    "a macro that CMake defines for all files": {
        "lib/CMakeLists.txt": 'add_definitions("-D__UserMode__" -DOTHER)\n'
        "if(X)\n  add_definitions(-DBAD)\nendif()\n",
        "os.h": "#if defined(__UserMode__) && defined(OTHER)\ntypedef int lock;\n#else\n"
        "#include <kernel/lock.h>\n#endif\n#ifdef BAD\n#error bad\n#endif\n",
        "use.c": '#include "os.h"\nlock use(lock n) { return n; }\n',
    },
    "an include that looks like its own file": {
        "mail/mail.h": '#include "mail/mail.h"\nint post(letter *);\n',
        "include/mail/mail.h": "typedef struct { int n; } letter;\n",
        "mail/use.c": '#include "mail.h"\nint use(letter *a) { return post(a) + a->n; }\n',
    },
    "a header in the folder of headers that are included as this one": {
        "include/sm/conf.h": "typedef int small;\n",
        "include/mail/mail.h": '#include "conf.h"\n#include <sm/conf.h>\n#include <sm/io.h>\n',
        "include/sm/io.h": "int io(void);\n",
        "mail/conf.h": "#define MAXIMUM 3\n",
        **{f"mail/{name}.h": f"int {name}(void);\n" for name in ("queue", "deliver", "alias", "map")},
        "mail/use.c": '#include <mail/mail.h>\n#include "queue.h"\n#include "deliver.h"\n'
        '#include "alias.h"\n#include "map.h"\n'
        "int use(small n) { return n + MAXIMUM + io() + queue() + deliver(); }\n",
        "other/other.c": '#include "queue.h"\n#include "deliver.h"\nint other(void) { return queue(); }\n',
    },
    "a header that is read under an option before it is read in any case": {
        "io.h": "#ifndef IO_H\n#define IO_H\ntypedef struct file file_t;\nstruct file { int n; };\n#endif\n",
        "ldap.h": '#if LDAP\n#include "io.h"\n#endif\ntypedef struct file *handle;\n',
        "use.c": '#include "ldap.h"\n#include "io.h"\nint use(handle a, file_t *b) { return a->n + b->n; }\n',
    },
    "a macro instead of `class`": {
        "com.h": "#define interface class\n",
        "query.h": '#include "com.h"\ninterface unknown { public: virtual int release() = 0; };\n'
        "interface query : public unknown { public: virtual int ask() = 0; };\n",
        "use.cpp": '#include "query.h"\nint use(query *q) { return q->ask() + q->release(); }\n',
    },
    "a macro that ends with a declaration in another macro": {
        "api.h": "#define OLD(text, declaration) declaration\n"
        '#define DEFINE_API(name) int name##_run(int n); OLD("no", int name##_stop(int n);)\n'
        "DEFINE_API(alpha)\nDEFINE_API(beta)\n#define LEVELS 2\ntypedef enum { LOW, HIGH } level;\n",
        "use.c": '#include "api.h"\nint use(level n) { return alpha_run(LOW) + beta_stop(n); }\n',
    },
    "a type named as attributes are": {
        "log.h": "typedef void (*PTR_PRINTFLIKE_FN)(const char *, ...);\n"
        "static inline PTR_PRINTFLIKE_FN logger(int level) { return 0; }\n",
        "use.c": '#include "log.h"\nvoid use(void) { logger(1)("a"); }\n',
    },
    "names that a macro makes by another one that it is given": {
        "api.h": "#define CONCAT(a, b) a##b\n#define NCO_FLOAT(name) CONCAT(nco_f, name)\n"
        "#define NCO_API(NCO, T) typedef struct NCO(_s) *NCO(); NCO() NCO(_create)(T n);\n"
        "NCO_API(NCO_FLOAT, float)\n#define COLORS(X) X(red) X(green)\n"
        "#define DECLARE(name) int paint_##name(void);\nCOLORS(DECLARE)\n",
        "use.c": '#include "api.h"\n'
        "int use(void) { nco_f a = nco_f_create(1); return a != 0 && paint_green(); }\n",
    },
    "functions and headers that glibc and the kernel have": {
        "config.h.in": "#undef HAVE_FGETPOS\n#undef HAVE_LINUX_FS_H\n#undef LIB_HAVE_DECL_STRLEN\n",
        "configure.ac": "AC_CONFIG_HEADERS([config.h])\n",
        "use.c": '#include "config.h"\n#include <stdio.h>\n#include <linux/types.h>\n#include <string.h>\n'
        "#ifndef HAVE_FGETPOS\ntypedef long fpos_t;\n#endif\n"
        "#ifndef HAVE_LINUX_FS_H\ntypedef int __u8;\n#endif\n"
        "#ifndef LIB_HAVE_DECL_STRLEN\nint strlen(int);\n#endif\n"
        'int use(FILE *f, fpos_t *n, __u8 b) { return fgetpos(f, n) + b + strlen(""); }\n',
    },
}


@pytest.mark.parametrize("files", _PROJECTS.values(), ids=_PROJECTS)
def test_a_project_compiles(tmp_path, files):
    assert_compiles(tmp_path, files)


def test_groups_for_other_systems_are_left_out_with_what_they_include_and_define(tmp_path):
    systems = "".join(
        f"#ifdef {name}\n#include <{name}.h>\n#define HAS_LOCKS 1\n#endif\n"
        f"#ifdef {name}\ntypedef int {name}_t;\n#define {name}\n#endif\n"
        for name in ("_AIX5", "IRIX", "ultrix", "__bsdi__", "_SCO_DS")
    )
    files = {
        "conf.h": f"{systems}#ifdef __linux__\n#include <sys/file.h>\n#define HAS_LOCKS 2\n#endif\n",
        "use.c": '#include "conf.h"\nint use(void) { return HAS_LOCKS; }\n',
    }
    text = one_document(tmp_path, files, of="use.c").text
    assert "#define HAS_LOCKS 2" in text
    assert "HAS_LOCKS 1" not in text
    assert "IRIX" not in text


def test_a_type_that_many_macros_are_given_is_declared_by_the_first(tmp_path):
    calls = "".join(f"DEFINE_API({name}, complex_t)\n" for name in ("agc", "nco", "fft", "fir", "iir", "dds"))
    files = {
        "api.h": "#define TYPE(R, C) typedef struct { R real; } C;\n"
        "#define DEFINE_API(name, T) int name##_run(T n);\n"
        f"TYPE(float, complex_t)\n{calls}",
        "use.c": '#include "api.h"\nint use(complex_t n) { return fft_run(n); }\n',
    }
    text = one_document(tmp_path, files, of="use.c").text
    assert "TYPE(float, complex_t)" in text
    assert "DEFINE_API(fft, complex_t)" in text
    assert "DEFINE_API(nco, complex_t)" not in text


def test_a_name_for_a_pointer_to_a_constant_is_no_definition(tmp_path):
    files = {
        "types.h": "typedef struct task *TASK;\ntypedef const struct task *CONST_TASK;\n",
        "task.h": '#include "types.h"\n#define RETURN(sub) return (sub)->job->level\n'
        f"struct sub {{ TASK job; }};\nstruct task {{ int level; }};\n{'int more(void);' * 100}\n",
        "use.c": '#include "task.h"\nint use(struct sub *s) { RETURN(s); }\n',
    }
    document = one_document(tmp_path, files, of="use.c", budget=1_000)
    assert document.kind == "compilable"
    assert compile_errors(document.text, language="c") == ""


def test_a_macro_alone_that_uses_a_namespace_stands_in_each_document(tmp_path):
    functions = "".join(f"count f{n}(count a) {{ return a + {n}; }}\n" for n in range(60))
    files = {
        "lib.h": "#define USING_LIB using namespace lib;\n#define LOCAL namespace {\n#define LOCAL_END }\n"
        "namespace lib { typedef int count; }\n",
        "use.cc": f'#include "lib.h"\nUSING_LIB\nLOCAL\n{functions}LOCAL_END\n',
    }
    documents = documents_of(write_files(tmp_path, files), budget=1_000, of="use.cc")
    assert len(documents) > 1
    assert [compile_errors(document.text) for document in documents] == [""] * len(documents)


def test_types_that_members_return_values_of_are_complete_where_these_are_called(tmp_path):
    members = "".join(f"int member_{n}; " for n in range(90))
    files = {
        "lib.h": "template <class T> struct step { T *at; void operator++() { ++at; }\n"
        "  T &operator*() { return *at; } bool operator!=(step b) { return at != b.at; } };\n"
        "template <class T> struct range { T *first; step<T> begin() { return {first}; }\n"
        "  step<T> end() { return {first}; } };\n"
        f"struct other {{ {members}}};\nstruct module {{ other *a; range<int> wires(); }};\n",
        "use.cc": '#include "lib.h"\n'
        "int use(module *m) { int n = 0; for (int w : m->wires()) n += w; return n; }\n",
    }
    document = one_document(tmp_path, files, of="use.cc", budget=1_000)
    assert document.kind == "compilable"
    assert compile_errors(document.text) == ""


@pytest.mark.parametrize(
    ("parameters", "arguments"), [("const text &t", "1"), ("int n, lib::text t", "0, 1")]
)
def test_types_that_arguments_are_converted_to_are_complete(tmp_path, parameters, arguments):
    members = "".join(f"int member_{n}; " for n in range(90))
    files = {
        "lib.h": "namespace lib { class text { public: text(const char *at, int size = 0); text(int); };\n"
        f"struct other {{ {members}}};\nstruct module {{ other *a; }};\n"
        f"int show({parameters}); }}\n",
        "use.cc": f'#include "lib.h"\nint use(lib::module *) {{ return lib::show({arguments}); }}\n',
    }
    document = one_document(tmp_path, files, of="use.cc", budget=1_000)
    assert document.kind == "compilable"
    assert compile_errors(document.text) == ""


@pytest.mark.parametrize(
    "template",
    [
        "template <typename F> class last { F f; public: last(F g) : f(g) {} ~last() { f(); } };\n",
        "#include <functional>\ntemplate <class... A> std::function<void()> last(A &&...a) "
        "{ return std::function<void()>(std::forward<A>(a)...); }\n",
    ],
)
def test_templates_have_the_bodies_that_a_lambda_needs(tmp_path, template):
    members = "".join(f"int member_{n}; " for n in range(90))
    files = {
        "lib.h": f"{template}struct other {{ {members}}};\nstruct module {{ other *a; }};\n",
        "use.cc": '#include "lib.h"\nint use(module *) { int n = 1; auto a = last([&] { n = 0; });\n'
        "return n; }\n",
    }
    document = one_document(tmp_path, files, of="use.cc", budget=1_000)
    assert document.kind == "compilable"
    assert compile_errors(document.text) == ""


def test_a_using_declaration_is_no_definition(tmp_path):
    files = {
        "lib.h": "namespace rtl { struct cell; }\nusing rtl::cell;\nstruct pair { cell *first; };\n"
        f"namespace rtl {{ struct cell {{ int type; }}; }}\n{'int more();' * 200}\n",
        "use.cc": '#include "lib.h"\nint use(pair *p) { return p->first->type; }\n',
    }
    document = one_document(tmp_path, files, of="use.cc", budget=1_000)
    assert document.kind == "compilable"
    assert compile_errors(document.text) == ""
