"""Projects that nobody would write on purpose: every file is counted or used, and the build ends in time."""

import os
import time

from cpplm.core.shards import ShardReader
from cpplm.corpus.build import build
from tests.corpus.cpp import TINYLIB, write_files
from tests.corpus.settings import compilable


def built(tmp_path, *projects, **options):
    """The figures of the first project, and all text by project."""
    settings = compilable(out=str(tmp_path / "out"), projects=(*projects, TINYLIB), workers=1, **options)
    result = build(settings)
    texts: dict[str, str] = {}
    for split in ("train", "val"):
        for project, text in ShardReader(tmp_path / "out").texts(split):
            texts[project] = texts.get(project, "") + text
    return result["projects"][projects[0].name], texts.get(projects[0].name, "")


def skipped(figures) -> dict[str, int]:
    return {reason: entry["files"] for reason, entry in figures["skipped"].items()}


def test_names_of_any_bytes(tmp_path):
    names = {
        "a\nb": "newline",
        'quo"te\t': "quote",
        "-o": "dash",
        "x#1": "hash",
        "\x1b[31m": "escape",
        "d\n/e": "deep",
    }
    folder = write_files(tmp_path / "p", {f"{name}.cc": f"int {word};\n" for name, word in names.items()})
    (folder / os.fsdecode(b"\xff\xfe.cc")).write_text("int bytes_;\n")
    (folder / os.fsdecode(b"\xff\xff.cc")).write_text("int others;\n")
    figures, text = built(tmp_path, folder)
    for word in (*names.values(), "bytes_", "others"):
        assert f"int {word};" in text
    assert figures["files"] == 8
    (tmp_path / "p").rename(tmp_path / "a\nb")
    figures, text = built(tmp_path / "2", tmp_path / "a\nb")
    assert figures["files"] == 8 and "int newline;" in text


def test_links_in_circles_and_what_is_no_file(tmp_path):
    folder = write_files(tmp_path / "p", {"a.cc": "int a;\n", "d/b.cc": "int b;\n"})
    (folder / "loop").symlink_to(folder)
    (folder / "d" / "up").symlink_to("..")
    (folder / "self.cc").symlink_to("self.cc")
    (folder / "one.cc").symlink_to("two.cc")
    (folder / "two.cc").symlink_to("one.cc")
    (folder / "gone.cc").symlink_to("nowhere.cc")
    (folder / "again.cc").symlink_to("a.cc")
    (folder / "out.cc").symlink_to(next(TINYLIB.rglob("*.h")))
    (folder / "folder.cc").mkdir()
    os.mkfifo(folder / "pipe.cc")  # reading it would wait for ever
    figures, text = built(tmp_path, folder)
    assert figures["files"] == 2
    assert "int a;" in text and "int b;" in text
    counts = skipped(figures)
    assert counts["unreadable"] == 4
    assert counts["not a plain file"] == 1
    assert counts["link inside the project"] == 1
    assert counts["link that leaves the project"] == 1


def test_broken_code_and_include_cycles(tmp_path):
    folder = write_files(
        tmp_path / "p",
        {
            "open.cc": "int f() { if (1) { return 1;\n" + "{" * 2_000,
            "close.cc": "}" * 2_000 + "\nint g() { return 2; }\n",
            "deep.cc": "int h(){\n" + "if(1){\n" * 3_000 + "}\n" * 3_000 + "return 3;}\n",
            "parens.cc": "int k =\n" + "(f\n" * 800 + "1" + ")\n" * 800 + ";\n",
            "cycle_a.h": '#include "cycle_b.h"\nstruct A { struct B* b; };\n',
            "cycle_b.h": '#include "cycle_a.h"\nstruct B { struct A* a; };\n',
            "self.h": '#include "self.h"\nint own;\n',
            "use.cc": '#include "cycle_a.h"\n#include "self.h"\nA a;\n',
            "ifs.cc": "#if 1\n" * 500 + "int l;\n",
            "nested.cc": "#if X\n" * 1_500 + "int n;\n" + "#endif\n" * 1_500,
            "bearable.cc": "#if X\n" * 256 + "int o;\n" + "#endif\n" * 256,
            "endifs.cc": "#endif\n" * 500 + "int m;\n",
            "half.cc": '#define X(a) a \\\n\nconst char* s = "never closed;\n/* nor this',
            "raw.cc": 'auto r = R"x(' + ")" * 2_000,
        },
    )
    figures, text = built(tmp_path, folder)
    assert figures["files"] == 14
    for word in (
        "return 1",
        "return 2",
        "return 3",
        "struct A",
        "struct B",
        "int own",
        "int l",
        "int n",
        "int o",
        "int m",
        "never",
    ):
        assert word in text


def test_huge_files_make_no_documents_and_cost_little(tmp_path):
    folder = write_files(tmp_path / "p", {"a.cc": "int a;\n", "lines.cc": "int x = 1;\n" * 1_000_000})
    with (folder / "huge.cc").open("wb") as file:
        file.truncate(100_000_000)  # zeros
    text = b"int table[] = {" + b"1,\n" * 100_000 + b"};\n"
    (folder / "table.cc").write_bytes(text)
    started = time.perf_counter()
    figures, documents = built(tmp_path, folder)
    assert time.perf_counter() - started < 20
    assert figures["files"] == 1
    assert sum(skipped(figures).values()) == 3
    assert len(documents) < 1_000
