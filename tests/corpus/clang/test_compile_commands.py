import json
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.corpus.clang.compile_commands import Database, find_database, read_database, split_command


def database(folder: Path, *entries: object) -> Database:
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    return read_database(folder / "compile_commands.json", [folder])


def flags(folder: Path, *arguments: str, file: str = "a.cpp", **others: object) -> list[str]:
    entry = {"directory": str(folder), "file": file, "arguments": [*arguments, file]} | others
    return list(database(folder, entry).flags[(folder / file).resolve()])


def command_flags(folder: Path, command: str) -> list[str]:
    entry = {"directory": str(folder), "file": "a.cpp", "command": command}
    return list(database(folder, entry).flags[(folder / "a.cpp").resolve()])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ('g++ -D"NAME=a b" a.cpp', ["-DNAME=a b"]),
        ("g++ '-DNAME=\"a b\"' a.cpp", ['-DNAME="a b"']),
        (r"g++ -DNAME=\"a\ b\" a.cpp", ['-DNAME="a b"']),
        (r'g++ -DPATH="C:\\x" a.cpp', [r"-DPATH=C:\x"]),
        ("g++ -D 'F(x)=(x) + 1' -U G a.cpp", ["-DF(x)=(x) + 1", "-UG"]),
    ],
)
def test_a_command_is_quoted_as_in_a_shell(tmp_path, command, expected):
    assert command_flags(tmp_path, command) == expected


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=6))
def test_splitting_undoes_quoting_for_a_shell(words):
    assert split_command(shlex.join(words)) == words


@given(st.lists(st.text(' \t"\\ab', max_size=8), max_size=5))
def test_splitting_undoes_quoting_for_windows(words):
    assert split_command(subprocess.list2cmdline(words), windows=True) == words


def test_entries_of_windows_keep_their_backslashes(tmp_path):
    entry = {
        "directory": "C:\\build",
        "file": "a.cpp",
        "command": r'cl.exe /nologo /I"C:\my libs\inc" /DNAME=\"x\" /std:c++20 /EHsc a.cpp',
    }
    read = database(tmp_path, entry)
    (kept,) = read.flags.values()
    assert kept[0] == "-I"
    assert kept[1].endswith(r"C:\my libs\inc")
    assert kept[2:] == ('-DNAME="x"', "-std=c++20")


def test_relative_paths_count_from_the_directory(tmp_path):
    build = tmp_path / "build"
    build.mkdir()
    (build / "config.h").touch()
    entry = {
        "directory": str(build),
        "file": "../src/a.cpp",
        "command": "c++ -I. -I ../include -isystem=x -isystem ../sys -iquote q -include config.h "
        "-include std.h -idirafter/opt/x ../src/a.cpp",
    }
    read = database(tmp_path, entry)
    assert list(read.flags) == [tmp_path / "src" / "a.cpp"]
    assert list(read.flags[tmp_path / "src" / "a.cpp"]) == [
        *("-I", str(build), "-I", f"{build}/../include", "-isystem", "=x"),
        *("-isystem", f"{build}/../sys", "-iquote", f"{build}/q"),
        *("-include", f"{build}/config.h", "-include", "std.h", "-idirafter", "/opt/x"),
    ]


def test_outputs_and_the_source_go_and_what_is_read_stays(tmp_path):
    given_flags = (
        "ccache /usr/bin/g++-12 -std=c++20 -fno-exceptions -fno-rtti -m32 -mavx2 -pthread -O2 -g -Wall -c "
        "-MD -MT x.o -MF x.d -o x.o -Lfoo -lbar"
    )
    assert flags(tmp_path, *given_flags.split()) == [
        "-std=c++20", "-fno-exceptions", "-fno-rtti", "-m32", "-mavx2", "-pthread",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "hostile",
    [
        "-fplugin=evil.so",
        "-fplugin evil.so",
        "-Xclang -load -Xclang evil.so",
        "-Xclang -fmodule-map-file=x",
        "-mllvm -load=evil.so",
        "-B /tmp/evil",
        "-B/tmp/evil",
        "--config evil.cfg",
        "--config=evil.cfg",
        "-specs=evil",
        "-wrapper evil",
        "-fpass-plugin=evil.so",
        "-ivfsoverlay evil.yaml",
        "-include-pch evil.pch",
        "-serialize-diagnostics out",
        "-fmodules",
        "-march=native;evil",
        "-Wp,-MD,/etc/evil",
        "-x ir",
        "-ftime-trace=/tmp/evil",
    ],
)
def test_flags_that_load_run_or_write_something_are_left_out(tmp_path, hostile):
    assert flags(tmp_path, "clang++", "-DA", *hostile.split(), "-DB") == ["-DA", "-DB"]


def test_the_first_entry_of_a_file_counts(tmp_path):
    entry = {"directory": str(tmp_path), "file": "a.cpp", "arguments": ["g++", "-DFIRST"]}
    again = {"directory": "/", "file": str(tmp_path / "x" / ".." / "a.cpp"), "arguments": ["g++", "-DSECOND"]}
    read = database(tmp_path, entry, again)
    assert read.flags == {tmp_path / "a.cpp": ("-DFIRST",)}
    assert sum(read.skips.counts.values()) == 1


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {},
        {"file": "a.c"},
        {"file": 3, "command": "x"},
        {"directory": "/", "file": "a.c", "command": "g++ 'open"},
        {"directory": "/", "file": "a\0b", "command": "g++ a"},
    ],
)
def test_entries_that_say_nothing_are_counted(tmp_path, entry):
    read = database(tmp_path, entry)
    assert not read.flags
    assert sum(read.skips.counts.values()) == 1


def test_a_c_file_that_a_cxx_compiler_compiles_is_cxx(tmp_path):
    assert flags(tmp_path, "g++", file="a.c") == ["-x", "c++"]
    assert flags(tmp_path, "x86_64-linux-gnu-g++-12", file="a.c") == ["-x", "c++"]
    assert flags(tmp_path, "gcc", file="a.c") == []
    assert flags(tmp_path, "cl.exe", "/TP", file="a.c") == ["-x", "c++"]
    assert flags(tmp_path, "env", "A=b", "sccache", "g++", "-x", "c", file="a.c")[-2:] == ["-x", "c"]


def test_response_files_are_read_through_one_another(tmp_path):
    (tmp_path / "one.rsp").write_text('-DONE "-DTWO=a b" @two.rsp')
    (tmp_path / "two.rsp").write_text("-I inc\n-DTHREE")
    assert flags(tmp_path, "g++", "@one.rsp", "-DLAST") == [
        "-DONE", "-DTWO=a b", "-I", f"{tmp_path}/inc", "-DTHREE", "-DLAST",
    ]  # fmt: skip


def test_response_files_are_bounded_and_stay_inside(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "outside.rsp").write_text("-DOUTSIDE")
    (project / "loop.rsp").write_text("-DTURN @loop.rsp @loop.rsp")
    (project / "link.rsp").symlink_to(tmp_path / "outside.rsp")
    kept = flags(project, "g++", "@../outside.rsp", "@link.rsp", "@missing.rsp", "@loop.rsp", "-DEND")
    assert "-DOUTSIDE" not in kept
    assert kept[-1] == "-DEND"
    assert 0 < kept.count("-DTURN") <= 64


def test_databases_are_found_in_the_project_and_its_build_folders(tmp_path):
    assert find_database([tmp_path]) is None
    for place in ("out/Debug", "build-release", "."):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        path = tmp_path / place / "compile_commands.json"
        path.write_text("[]")
        found = find_database([tmp_path])
        assert found is not None
        assert found.resolve() == path.resolve()


@pytest.mark.parametrize("text", ["", "{}", '{"a": 1}', "[" * 100_000, b"\xff\xfe"])
def test_something_else_is_refused_by_name(tmp_path, text):
    path = tmp_path / "compile_commands.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=r"compile_commands\.json"):
        read_database(path, [])


def test_the_digest_moves_with_the_project(tmp_path):
    digests = []
    for name, flag in (("one", "-DA"), ("two", "-DA"), ("three", "-DB")):
        root = tmp_path / name
        root.mkdir()
        entry = {"directory": str(root), "file": "a.cpp", "arguments": ["g++", flag, "-Iinc"]}
        digests.append(database(root, entry).digest(root))
    assert digests[0] == digests[1] != digests[2]
