from pathlib import Path

import pytest

from cpplm.corpus.clang.compile_commands import find_database, folders_in, front_end_flags


def flags(arguments: str, directory: Path = Path("/build")) -> list[str]:
    return front_end_flags([*arguments.split(), "a.cpp"], directory)


def test_relative_paths_count_from_the_directory(tmp_path):
    (tmp_path / "config.h").touch()
    folders = "-I. -I ../inc -isystem=x -isystem ../sys -iquote q"
    assert flags(f"c++ {folders} -include config.h -include std.h -idirafter/opt/x", tmp_path) == [
        *("-I", str(tmp_path), "-I", f"{tmp_path}/../inc", "-isystem", "=x"),
        *("-isystem", f"{tmp_path}/../sys", "-iquote", f"{tmp_path}/q"),
        *("-include", f"{tmp_path}/config.h", "-include", "std.h", "-idirafter", "/opt/x"),
    ]


def test_outputs_and_the_source_go_and_what_is_read_stays():
    command = (
        "/usr/bin/g++-12 -std=c++20 -fno-exceptions -fno-rtti -m32 -mavx2 -pthread -O2 -g -Wall -D A=1 -U B "
        "--target=x86_64-linux-gnu -MD -MT x.o -MF x.d -o x.o -Lfoo -lbar -c -- -DNO"
    )
    assert flags(command) == [
        "-std=c++20", "-fno-exceptions", "-fno-rtti", "-m32", "-mavx2", "-pthread", "-DA=1", "-UB",
        "--target=x86_64-linux-gnu",
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
        "--target evil;evil",
        "-ftime-trace=/tmp/evil",
    ],
)
def test_flags_that_load_run_or_write_something_are_left_out(hostile):
    assert flags(f"clang++ -DA {hostile} -DB") == ["-DA", "-DB"]


@pytest.mark.parametrize("last", ["-D", "-I", "-o", "-x", "--target", "-isystem"])
def test_a_flag_without_its_value_is_nothing(last):
    assert front_end_flags(["g++", "-DA", last], Path("/")) == ["-DA"]


def test_languages():
    assert flags("gcc -x c++-header") == ["-x", "c++"]
    assert flags("g++ --driver-mode=g++ -xc") == ["-x", "c++", "-x", "c"]


def test_folders_of_a_database():
    text = rb'"command": "g++ -I/a/b -isystem /c -D X=/no --sysroot=/d", "arguments": ["-iquote", "/e f/g"]'
    assert folders_in(text) == ["/a/b", "/c", "/d", "/e"]


def test_databases_are_found_in_the_project_and_its_build_folders(tmp_path):
    assert find_database([tmp_path]) is None
    for place in ("out/Debug", "build-release", "."):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        path = tmp_path / place / "compile_commands.json"
        path.write_text("[]")
        found = find_database([tmp_path])
        assert found is not None
        assert found.resolve() == path.resolve()
