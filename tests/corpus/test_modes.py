"""Every mode gives the same bytes whatever the hash seed, and compiles the example through the command."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cpplm.core.shards import ShardReader
from cpplm.corpus.build import build
from cpplm.corpus.ingest.discovery import Project
from cpplm.corpus.project import BuildPlan
from cpplm.corpus.settings import CorpusSettings, Mode
from tests.corpus.cpp import TINYLIB, rows_of

_SCRIPT = """
import sys
from pathlib import Path
from tests.corpus.test_modes import digests
print(digests(Path(sys.argv[1])))
"""


def digests(folder: Path) -> str:
    """A hash of all rows of a project in the two modes that look further than one unit, at two budgets."""
    rows = [
        row
        for mode in ("inlined", "cross-file")
        for budget in (3_000, 49_152)
        for row in rows_of(Project("p", (folder,)), BuildPlan(budget, mode=mode))
    ]
    return hashlib.sha256(json.dumps(rows, default=repr).encode()).hexdigest()


@pytest.mark.slow
def test_documents_do_not_depend_on_the_hash_seed():
    found = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(TINYLIB)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


@pytest.mark.parametrize(
    ("mode", "kind", "times"),
    [
        ("compilable", "compilable", 1),
        ("cross-file", "compilable", 2),
        ("inlined", "inlined", 1),
        ("file", "file", 1),
    ],
)
def test_the_command_builds_what_the_mode_says(tmp_path, mode: Mode, kind: str, times: int):
    settings = CorpusSettings(out=str(tmp_path / "out"), projects=(TINYLIB,), mode=mode, workers=1)
    figures = build(settings)["projects"]["tinylib"]
    assert set(figures["kinds"]) == {kind}
    texts = [text for split in ("train", "val") for _, text in ShardReader(settings.out).texts(split)]
    assert figures["text_bytes"] == sum(len(text.encode()) for text in texts)
    assert sum(text.count("std::string decorate(const std::string& text) {") for text in texts) == times
