from pathlib import Path

from tests.commands import cpplm, reported

TINYLIB = Path(__file__).parents[2] / "examples" / "tinylib"


def test_build_then_inspect(tmp_path):
    out = str(tmp_path / "out")
    built, figures = reported(
        "corpus", "build", "--projects", TINYLIB, "--mode", "compilable", "--out", out, "--workers", "1"
    )
    assert figures["functions"] == 37
    assert figures["kinds"] == {"compilable": 6}
    assert "1 project, 9 files" in built
    shown, figures = reported("corpus", "inspect", out, "--num", "2", "--kind", "compilable")
    assert shown.count("=== tinylib | compilable |") == len(figures["shown"]) == 2
    page = tmp_path / "page.html"
    written, figures = reported("corpus", "inspect", out, "--page", page)
    assert "===" not in written and str(page) in written
    assert figures["page"] == str(page)
    assert page.read_text().count('<details class="document"') == 6


def test_json_lines_are_appended(tmp_path):
    out, lines = str(tmp_path / "out"), tmp_path / "more.jsonl"
    lines.write_text('{"text": "int more() { return 1; }"}\n{\n')
    common = ("--out", out, "--workers", "1")
    assert cpplm("corpus", "build", "--projects", str(TINYLIB), *common).returncode == 0
    refused = cpplm("corpus", "build", "--jsonl", str(lines), *common)
    assert refused.returncode == 2
    assert "project more is new" in refused.stderr and "--append" in refused.stderr
    grown, figures = reported("corpus", "build", "--jsonl", lines, "--append", *common)
    assert figures["projects"] == 2
    assert "1 not JSON, such as 'more.jsonl:2'" in grown


def test_bad_input_is_one_line_and_exit_code_2(tmp_path):
    out = str(tmp_path / "out")
    for arguments, message in (
        (["build", "--out", out], "no project was given"),
        (["build", "--out", out, "--projects", str(tmp_path / "no")], "does not exist"),
        (["build", "--out", out, "--jsonl", str(tmp_path / "no.jsonl")], "does not exist"),
        (["build", "--out", out, "--projects", str(TINYLIB), "--append"], "no finished corpus to append to"),
        (
            ["build", "--out", out, "--projects", str(TINYLIB), "--tasks", "2"],
            "Use it with --engine datatrove",
        ),
        (["inspect", out, "--page", "page"], "is no .html file"),
        (["build", "--out", out, "--projects", str(TINYLIB), "--max_tokens", "4096"], "Add --tokenizer"),
        (["inspect", out], "no such folder"),
    ):
        failed = cpplm("corpus", *arguments)
        assert failed.returncode == 2
        assert message in failed.stderr
        assert len(failed.stderr.strip().splitlines()) == 1
        assert not Path(out, "manifest.json").exists()
