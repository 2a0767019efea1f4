"""`corpus build --configure`: what a project's own configuration step makes, and a hostile one."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import SPLITS, ShardReader
from cpplm.corpus.build import build
from cpplm.corpus.clang.compile_commands import command_macros
from cpplm.corpus.ingest import configure as module
from cpplm.corpus.ingest.configure import configure
from cpplm.corpus.reports.stats import format_summary
from cpplm.sandbox.limits import RunResult
from cpplm.sandbox.sandbox import Sandbox
from tests.corpus.cpp import write_files
from tests.corpus.settings import compilable

CONFIGURE = """#!/bin/sh
source=$(dirname "$0")
sed "s/@DEPTH@/17/" "$source/config.h.in" >config.h || exit 1
mkdir -p lib && echo "#define LIMIT 23" >lib/limits_of_build.h
echo "struct Beside { int width; };" >"$source/src/beside.h"
printf '%s' '[{"command": "cc -DMODE=\\\\\\"fast\\\\\\" -D LEVEL -c a.c"}]' >compile_commands.json
date +%s%N >stamp.h
"""
PROJECT = {
    "src/b.c": "int other(void) { return 2; }\n",
    "LICENSE": "SPDX-License-Identifier: MIT\n",
    "configure": CONFIGURE,
    "config.h.in": "#define DEPTH @DEPTH@\n",
    "src/a.c": """#include "config.h"
#include "limits_of_build.h"
#include "beside.h"

const char *mode(void) { return LEVEL ? MODE : 0; }

int depth(void) { return DEPTH + LIMIT + (int)sizeof(struct Beside); }
""",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the sandbox's user can read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def built(folder: Path, out: Path, **options: Any) -> dict[str, Any]:
    return build(compilable(str(out), projects=(folder / "harbour",), workers=1, configure=True, **options))


def texts(out: Path) -> str:
    reader = ShardReader(out)
    tables = [reader.table(shard) for split in SPLITS for shard in reader.shards(split)]
    return "".join(row["text"] for table in tables for row in table.to_pylist())


def names_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_documents_have_what_the_configuration_wrote(folder: Path, tmp_path: Path) -> None:
    write_files(folder / "harbour", PROJECT)
    result = built(folder, tmp_path / "out", label=True, licenses=("permissive",))
    text = texts(tmp_path / "out")
    for line in (
        "#define DEPTH 17",
        "#define LIMIT 23",
        "struct Beside",
        '#define MODE "fast"',
        "#define LEVEL 1",
    ):
        assert line in text
    figures = result["projects"]["harbour"]
    assert figures["configured"] == {"step": "configure", "headers": 4, "problem": ""}
    assert figures["labels"]["compile"] == {"compilable": 2}
    assert figures["documents"] == 2  # what it wrote is no code to learn
    assert "configured 1 of 1 project, 0 have no such step, 4 headers" in format_summary(result, "out")
    assert names_below(folder / "harbour") == set(PROJECT)  # it worked on a copy
    assert names_below(tmp_path / "out") == {"_COMPLETE", "manifest.json"} | {
        name for name in names_below(tmp_path / "out") if name.endswith(".parquet")
    }


def test_what_a_killed_build_left_is_not_taken_for_headers(folder: Path, tmp_path: Path) -> None:
    write_files(folder / "harbour", PROJECT)
    write_files(tmp_path / "out/_configured/0/build", {"config.h": "#define DEPTH 3\n", "left.h": "int l;\n"})
    result = built(folder, tmp_path / "out")
    assert "#define DEPTH 17" in texts(tmp_path / "out")
    assert result["projects"]["harbour"]["configured"]["headers"] == 4


def test_a_finished_corpus_is_not_configured_again(folder: Path, tmp_path: Path) -> None:
    write_files(folder / "harbour", PROJECT)  # stamp.h is another each time
    built(folder, tmp_path / "out")
    assert built(folder, tmp_path / "out")["already_complete"]


def test_a_build_of_the_user_comes_first(folder: Path, tmp_path: Path) -> None:
    write_files(folder / "harbour", PROJECT | {"build/config.h": "#define DEPTH 5\n"})
    built(folder, tmp_path / "out")
    assert "#define DEPTH 5" in texts(tmp_path / "out")


def test_a_step_that_fails_is_named_and_the_rest_goes_on(folder: Path, tmp_path: Path) -> None:
    failing = "#!/bin/sh\necho 'checking for tea'\necho 'configure: error: no tea'\nexit 1\n"
    write_files(folder / "harbour", PROJECT | {"configure": failing})
    result = built(folder, tmp_path / "out")
    assert result["projects"]["harbour"]["configured"]["problem"] == "configure: error: no tea"
    summary = format_summary(result, "out")
    assert (
        "configured 0 of 1 project, 0 have no such step, 0 headers\n  harbour: configure: error: no tea"
        in summary
    )
    assert "DEPTH" in texts(tmp_path / "out")


def test_the_last_lines_of_a_step_say_why_it_failed(folder: Path, tmp_path: Path) -> None:
    write_files(folder / "harbour", PROJECT | {"configure": "echo checking\necho no assembler\nexit 1\n"})
    result = built(folder, tmp_path / "out")
    assert result["projects"]["harbour"]["configured"]["problem"] == "checking no assembler"


def test_a_step_that_says_nothing(folder: Path, tmp_path: Path) -> None:
    write_files(folder / "harbour", PROJECT | {"configure": "exit 3\n"})
    result = built(folder, tmp_path / "out")
    assert result["projects"]["harbour"]["configured"]["problem"] == "it ended with 1 and said nothing"


def test_copies_of_what_is_left_out_are_not_read(folder: Path, tmp_path: Path) -> None:
    script = r"""cp ../source/hidden.h renamed.h; ln -s ../source/gpl.h linked.h
echo '#define DEPTH 1' >config.h
mail='-DMAIL=\\\"ann@corp.com\\\"'; root="-DROOT=\\\\\\\"$PWD\\\\\\\""
printf %s "[{\"command\": \"cc $mail $root\"}]" >compile_commands.json
"""
    files = {
        ".git/HEAD": "", ".gitignore": "hidden.h\n", "hidden.h": "#define HIDDEN 1\n",
        "gpl.h": "// SPDX-License-Identifier: GPL-3.0-only\nstruct Gpl { int a; };\n",
        "src/c.c": '#include "renamed.h"\n#include "linked.h"\nint c = HIDDEN + sizeof(struct Gpl);\n'
        "const char *mail = MAIL, *root = ROOT;\n",
    }  # fmt: skip
    write_files(folder / "harbour", PROJECT | {"configure": f"#!/bin/bash\n{script}"} | files)
    result = built(folder, tmp_path / "out", licenses=("permissive",))
    text = texts(tmp_path / "out")
    assert result["projects"]["harbour"]["configured"]["headers"] == 1
    assert "define HIDDEN" not in text and "struct Gpl {" not in text and "ann@corp" not in text
    (made,) = configure([folder / "harbour"], tmp_path / "headers", 1, unsafe=False)
    assert made.macros == {b"MAIL": b'"ann@corp.com"', b"ROOT": b'""'}


def test_strange_names_and_many_files(folder: Path, tmp_path: Path) -> None:
    script = r"""#!/bin/bash
array=(1 2); echo "#define DEPTH ${array[1]}" >config.h
echo '#define A 1' >$'a\nb.h'; echo '#define B 1' >$'c\\td.h'; echo '#define C 1' >$'lat\351in.h'
mkdir ../source/build ../source/build/config.h; echo '#define D 1' >../source/build/config.h/q.h
"""
    write_files(
        folder / "harbour", PROJECT | {"configure": script} | {f"docs/{n}.txt": "" for n in range(6000)}
    )
    (folder / "harbour/configure").chmod(0o755)
    result = built(folder, tmp_path / "out")
    assert result["projects"]["harbour"]["configured"] == {"step": "configure", "headers": 4, "problem": ""}
    assert "#define DEPTH 2" in texts(tmp_path / "out")
    assert built(folder, tmp_path / "out")["already_complete"]


def test_without_the_flag_it_is_another_corpus(folder: Path, tmp_path: Path) -> None:
    write_files(folder / "harbour", PROJECT)
    built(folder, tmp_path / "out")
    with pytest.raises(UserError, match="configure was True, now False"):
        build(compilable(str(tmp_path / "out"), projects=(folder / "harbour",), workers=1))


def test_no_step_is_no_problem(folder: Path, tmp_path: Path) -> None:
    write_files(folder / "harbour", {"a.c": "int a(void) { return 1; }\n", "b.c": PROJECT["src/b.c"]})
    result = built(folder, tmp_path / "out")
    assert result["projects"]["harbour"]["configured"] == {"step": "", "headers": 0, "problem": ""}


def test_an_endless_step_is_stopped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LIMITS", replace(module._LIMITS, wall_seconds=0.5))
    write_files(folder / "harbour", PROJECT | {"configure": "while :; do :; done\n"})
    result = built(folder, tmp_path / "out")
    assert result["projects"]["harbour"]["configured"]["problem"] == "timeout"


def test_a_hostile_step_reaches_nothing(folder: Path, tmp_path: Path) -> None:
    secret = folder / "secret"
    secret.write_text("the secret of the host\n")
    script = f"""#!/bin/sh
cat {secret} >stolen.h
ln -s {secret} link.h
echo pwned >>{folder}/harbour/src/a.c
echo pwned >>../project/src/a.c
echo '#define DEPTH 1' >config.h
"""
    write_files(folder / "harbour", PROJECT | {"configure": script})
    result = built(folder, tmp_path / "out")
    assert result["projects"]["harbour"]["configured"]["headers"] == 2  # stolen.h is empty
    assert "secret" not in texts(tmp_path / "out")
    assert (folder / "harbour/src/a.c").read_text() == PROJECT["src/a.c"]


def archive(members: dict[str, tarfile.TarInfo | bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content) if isinstance(content, bytes) else 0
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return stream.getvalue()


def test_names_in_the_archive_lead_nowhere_else(tmp_path: Path) -> None:
    link, device = tarfile.TarInfo("build/link.h"), tarfile.TarInfo("build/null.h")
    link.type, link.linkname, device.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.CHRTYPE
    hostile: dict[str, tarfile.TarInfo | bytes] = {
        "build/../../up.h": b"x", "/tmp/absolute.h": b"x", "other/a.h": b"x", "link": link, "device": device,
        "": b"x", "source//etc/b.h": b"x", "build": b"x", "source": b"x",
    }  # fmt: skip
    headers, _ = module._unpack(archive(hostile | {"build/good.h": b"/here/x"}), tmp_path / "out", b"/here")
    assert names_below(tmp_path) == {"out/0", "out/1"}
    assert headers == {"etc/b.h": tmp_path / "out/0", "build/good.h": tmp_path / "out/1"}
    assert headers["build/good.h"].read_bytes() == module._WORK + b"/x"


def test_a_name_with_nul_is_left_out(tmp_path: Path) -> None:
    info = tarfile.TarInfo("build/a.h")
    info.pax_headers = {"path": "build/a\0.h"}
    data = info.tobuf(tarfile.PAX_FORMAT) + bytes(1_024)
    assert module._unpack(data, tmp_path / "out", b"/here") == ({}, b"")


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("build/sparse.h")
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(1 << 45),
                        "GNU.sparse.map": f"{(1 << 45) - 1},1"}  # fmt: skip
    info.size = 1
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(b"x"))
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as tar:
        assert [member.size for member in tar] == [1 << 45]  # as hostile as it looks
    assert module._unpack(stream.getvalue(), tmp_path / "out", b"/here") == ({}, b"")


def hostile_archive(kind: str) -> bytes:
    if kind == "nested headers":
        info = tarfile.TarInfo("build/a.h")
        info.type = tarfile.GNUTYPE_LONGNAME
        return info.tobuf() * 5_000
    return {"noise": b"noise" * 400, "cut": archive({"build/a.h": b"x" * 900})[:900]}[kind]


@pytest.mark.parametrize("kind", ["nested headers", "noise", "cut"])
def test_an_archive_that_cannot_be_read_is_a_problem(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = hostile_archive(kind)
    result = RunResult("exit", 0, None, b"configure\n/work\n", b"", 1.0, 1.0, {"built.tar": data})
    monkeypatch.setattr(Sandbox, "run", lambda *_, **__: result)
    (made,) = configure([folder], tmp_path / "headers", 1, unsafe=True)
    assert made.headers == {} and made.problem.startswith("its headers cannot be read")


@pytest.mark.parametrize(
    "database", [b"", b"{", b"[1]", b'{"a": 1}', b'[{"command": "cc \'"}]', b"[{}]", b"null"]
)
def test_a_database_that_cannot_be_read_defines_nothing(database: bytes) -> None:
    assert command_macros(database) == {}


def test_macros_of_commands() -> None:
    entries = [
        {"command": r'cc -DA=1 -D B -DC="\"x y\"" -D\'D(x)=x\' -DE= -o D.o -c d.c'},
        {"arguments": ["cc", "-DA=2", "-D", "F=3", "-DG=two\nlines", "-D"]},
    ]
    macros = {b"A": b"1", b"B": b"1", b"C": b'"x y"', b"E": b"", b"F": b"3"}
    assert command_macros(json.dumps(entries).encode()) == macros


@pytest.mark.skipif(not Path("/usr/bin/cmake").exists(), reason="needs CMake in the sandbox")
def test_cmake(folder: Path) -> None:
    if Sandbox.probe().name == "landlock":
        pytest.skip("CMake sets modes, which Landlock cannot confine")
    lists = """cmake_minimum_required(VERSION 3.5)
project(harbour C)
set(DEPTH 40)
add_definitions(-DMODE=3)
configure_file(depth.h.in depth.h)
configure_file(depth.h.in ${CMAKE_CURRENT_SOURCE_DIR}/inner/depth_here.h)
add_library(harbour a.c)
"""
    files = {"CMakeLists.txt": lists, "depth.h.in": "#cmakedefine DEPTH @DEPTH@\n", "a.c": "int a;\n"}
    (made,) = configure([write_files(folder / "harbour", files)], folder / "headers", 1, unsafe=False)
    assert (made.step, made.problem, made.macros[b"MODE"]) == ("cmake", "", b"3")
    assert {name: path.read_text() for name, path in made.headers.items()} == dict.fromkeys(
        ("build/depth.h", "inner/depth_here.h"), "#define DEPTH 40\n"
    )


def test_it_needs_documents_that_compile() -> None:
    with pytest.raises(UserError, match="--configure has no effect with --mode file"):
        replace(compilable("out", projects=(Path("p"),), configure=True), mode="file")
