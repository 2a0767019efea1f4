"""Chains of reasons why a line stands in a document."""

import pytest

from cpplm.core.errors import UserError
from cpplm.corpus.build import build
from cpplm.corpus.reports.explain import ExplainSettings, explain, format_explanation
from tests.corpus.cpp import TINYLIB, write_files
from tests.corpus.settings import compilable

FILES = {
    "src/hull.h": "#pragma once\nstruct Plank {\n  int length;\n};\nstruct Hull {\n  Plank planks[2];\n};\n",
    "src/crane.cc": '#include "hull.h"\nint beam(const Hull& hull) {\n  return hull.planks[0].length;\n}\n',
}


def test_each_borrowed_line_has_its_chain_of_reasons(tmp_path):
    out = str(tmp_path / "out")
    build(compilable(out=out, projects=(write_files(tmp_path / "ships", FILES), TINYLIB), workers=1))
    result = explain(ExplainSettings(out, "hull.h:3"))
    by_file = {document["file"]: document["chain"] for document in result["documents"]}
    assert [source["reason"] for source in by_file["src/hull.h"]] == [""]
    assert [source["reason"] for source in by_file["src/crane.cc"]] == [
        "Plank in src/hull.h:7", "Hull in src/crane.cc:4", ""
    ]  # fmt: skip
    assert "src/hull.h:2-4  Plank in src/hull.h:7" in format_explanation(result)
    with pytest.raises(UserError, match=r"no document of .* has lines of absent\.cc"):
        explain(ExplainSettings(out, "absent.cc:1"))
    with pytest.raises(UserError, match=r"--line hull\.h is no line of a file"):
        explain(ExplainSettings(out, "hull.h"))
