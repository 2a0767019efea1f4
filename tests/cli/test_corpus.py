import json
import subprocess
import sys
from pathlib import Path

TINYLIB = Path(__file__).parents[2] / "examples" / "tinylib"


def cpplm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cpplm.cli.main", "corpus", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_build_then_inspect(tmp_path):
    out = str(tmp_path / "out")
    built = cpplm("build", "--projects", str(TINYLIB), "--out", out, "--workers", "1", "--json")
    assert built.returncode == 0, built.stderr
    figures = json.loads(built.stdout.splitlines()[-1])
    assert figures["functions"] == 37
    assert figures["kinds"] == {"compilable": 6}
    assert "1 projects, 9 files" in built.stdout
    shown = cpplm("inspect", out, "--num", "2", "--kind", "compilable", "--json")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("=== tinylib | compilable |") == 2
    assert len(json.loads(shown.stdout.splitlines()[-1])["shown"]) == 2


def test_bad_input_is_one_line_and_exit_code_2(tmp_path):
    out = str(tmp_path / "out")
    for arguments, message in (
        (["build", "--out", out], "no project was given"),
        (["build", "--out", out, "--projects", str(tmp_path / "no")], "does not exist"),
        (["build", "--out", out, "--projects", str(TINYLIB), "--max_tokens", "4096"], "Add --tokenizer"),
        (["inspect", out], "no such folder"),
    ):
        failed = cpplm(*arguments)
        assert failed.returncode == 2
        assert message in failed.stderr
        assert len(failed.stderr.strip().splitlines()) == 1
        assert not Path(out, "manifest.json").exists()
