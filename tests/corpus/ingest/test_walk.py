"""Build folders are left out, whatever they are called; what lies in them is counted and named."""

import pytest

from cpplm.corpus.ingest.discovery import FileRules, Project, find_files
from cpplm.corpus.ingest.walk import BUILD_FOLDER, IGNORED
from tests.corpus.cpp import write_files

# What tools write, below a project with `src/own.cc`; everything is in a build folder.
BUILD_TREES = {
    "cmake": {"b/CMakeCache.txt": "", "b/gen/x.cc": "int x;\n", "b/CMakeFiles/3.25/id/y.cpp": "int y;\n"},
    "in-source cmake": {"CMakeCache.txt": "", "CMakeLists.txt": "", "CMakeFiles/3.25/id.cpp": "int x;\n"},
    "in-source cmake of a part": {
        "src/CMakeCache.txt": "", "src/CMakeLists.txt": "", "src/CMakeFiles/id.c": "int x;\n",
    },
    "cmake's leftovers": {"src/CMakeFiles/a.dir/x.cc": "int x;\n"},
    "qt": {"src/app_autogen/include/ui_x.h": "int x;\n"},
    "ninja": {"out/Debug/build.ninja": "", "out/Debug/gen/x.h": "int x;\n"},
    "meson": {"builddir/meson-private/sanity.c": "int s;\n", "builddir/x.p/x.c": "int x;\n"},
    "bazel": {"bazel-bin/x.cc": "int x;\n"},
    "bazel, by the name of the workspace": {"MODULE.bazel": "", "bazel-demo/x.cc": "int x;\n"},
}  # fmt: skip


@pytest.mark.parametrize("tree", BUILD_TREES)
def test_build_trees_are_left_out_and_counted(tmp_path, tree):
    root = tmp_path / "build"  # the project may be called so
    write_files(root, {"src/own.cc": "int own;\n", **BUILD_TREES[tree]})
    files, skips = find_files(Project("p", (root,)))
    assert [file.name for file in files if file.makes_documents] == ["src/own.cc"]
    headers = [name for name in BUILD_TREES[tree] if name.endswith(".h")]
    assert [file.name for file in files if file.is_built] == headers  # for what includes them
    written = sorted(name for name in BUILD_TREES[tree] if name.endswith((".cc", ".c", ".cpp", ".h")))
    entry = skips.to_dict()[BUILD_FOLDER]
    assert (entry["examples"], entry["files"]) == (written, len(written))
    assert entry["bytes"] == sum(len(BUILD_TREES[tree][name]) for name in written)
    everything, none = find_files(Project("p", (root,)), FileRules(keep_ignored=True))
    assert ({file.name for file in everything}, none.to_dict()) == ({"src/own.cc", *written}, {})


@pytest.mark.parametrize("tree", BUILD_TREES)
def test_a_build_folder_that_is_named_is_read(tmp_path, tree):
    name = next(name for name in BUILD_TREES[tree] if name.endswith((".cc", ".c", ".cpp", ".h")))
    write_files(tmp_path, BUILD_TREES[tree])
    folder = (tmp_path / name).parent
    assert [file.path for file in find_files(Project("p", (folder,)))[0]] == [tmp_path / name]


OWN = ["bazel-rules/a.cc", "build/a.cc", "out/a.cc", "src/CMakeFilesystem/a.cc", "tools/ninja/a.cc"]


@pytest.mark.parametrize("name", OWN)
def test_folders_of_similar_names_are_kept(tmp_path, name):
    write_files(tmp_path, {name: "int a;\n", "tools/ninja/build.ninja": "", "tools/ninja/configure.py": ""})
    assert [file.name for file in find_files(Project("p", (tmp_path,)))[0]] == [name]


def test_of_what_git_ignores_only_generated_headers_are_read(tmp_path):
    generated = "/* config.h.  Generated from config.h.in by configure.  */\n#define LEVEL 7\n"
    files = {
        ".git/HEAD": "",
        ".gitignore": "config.h\nsecrets.h\nown.cc\n",
        "config.h": generated,
        "secrets.h": '#define KEY "x"\n',
        "own.cc": "int own;\n",
        "use.cc": "int use;\n",
    }
    found, skips = find_files(Project("p", (write_files(tmp_path, files),)))
    assert [(file.name, file.makes_documents, file.is_built) for file in found] == [
        ("use.cc", True, False),
        ("config.h", False, True),
    ]
    assert skips.to_dict()[IGNORED]["files"] == 3


def test_of_an_unpacked_archive_nothing_is_ignored(tmp_path):
    files = {".gitignore": "gl/\n*.gen.h\n", "gl/own.c": "int own;\n", "a.gen.h": "int a;\n"}
    found, skips = find_files(Project("p", (write_files(tmp_path, files),)))
    assert [file.name for file in found] == ["a.gen.h", "gl/own.c"]
    assert skips.to_dict() == {}
