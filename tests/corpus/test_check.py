"""Documents that compile and that do not, told apart in the sandbox."""

import math
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.corpus.build import build
from cpplm.corpus.check import CheckSettings, Verdict, check, first_error, summarise
from cpplm.corpus.settings import CorpusSettings

TINYLIB = Path(__file__).parents[2] / "examples" / "tinylib"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    broken = tmp_path_factory.mktemp("broken")
    (broken / "missing.cpp").write_text('#include "nowhere.h"\nint f() { return nothing; }\n')
    (broken / "undeclared.cpp").write_text("int g() { return absent; }\n")
    (broken / "plain.c").write_text("int class(int new) { return new; }\n")  # C, and no C++
    out = str(tmp_path_factory.mktemp("corpus"))
    build(CorpusSettings(out=out, projects=(TINYLIB, broken), workers=1))
    return out


def test_good_and_bad_documents(corpus: str) -> None:
    result = check(CheckSettings(corpus))
    broken = next(name for name in result["by_project"] if name.startswith("broken"))
    assert result["by_project"]["tinylib"]["compile"] > 0  # those that need no header of another unit
    assert result["by_project"][broken]["documents"] == 3
    assert result["by_project"][broken]["compile"] == 1  # the C file
    assert {each["reason"] for each in result["reasons"]} == {
        "a header was not found",
        "... was not declared in this scope",
    }
    assert "g++" in result["compiler"]


def test_the_sample_follows_the_seed(corpus: str) -> None:
    first = check(CheckSettings(corpus, sample=3, seed=1, project="tinylib"))
    assert first["documents"] == 3
    assert first == check(CheckSettings(corpus, sample=3, seed=1, project="tinylib", workers=1))


def test_reads_nothing_outside_the_sandbox(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("int secret;\n")
    project = tmp_path / "spy"
    project.mkdir()
    (project / "spy.cpp").write_text(f'#include "{secret}"\nint f() {{ return secret; }}\n')
    (project / "other.cpp").write_text("int other() { return 1; }\n")
    out = str(tmp_path / "out")
    build(CorpusSettings(out=out, projects=(project,), workers=1))
    reasons = {each["reason"] for each in check(CheckSettings(out))["reasons"]}
    assert reasons == {"a header was not found"}


def test_names_are_taken_out_of_reasons() -> None:
    message = "document.cpp:3:5: error: \u2018foo\u2019 was not declared; did you mean \u2018bar\u2019?\n"
    assert first_error(message) == "... was not declared; did you mean ...?"
    assert (
        first_error("document.cpp:1:10: fatal error: a.h: No such file or directory\n")
        == "a header was not found"
    )
    assert first_error("") == ""


def test_interval_of_wilson() -> None:
    verdicts = [Verdict("id", "p", "file", "" if i < 8 else "why") for i in range(10)]
    low, high = summarise(verdicts)["interval"]
    assert (low, high) == (pytest.approx(0.4901, abs=2e-3), pytest.approx(0.9433, abs=2e-3))
    assert summarise(verdicts[:8])["interval"][1] == pytest.approx(1.0)
    assert math.isclose(summarise(verdicts[8:])["interval"][0], 0.0, abs_tol=1e-9)


def test_bad_settings(corpus: str, tmp_path: Path) -> None:
    for change in ({"sample": 0}, {"workers": -1}):
        with pytest.raises(UserError, match=next(iter(change))):
            CheckSettings(corpus, **change)
    with pytest.raises(UserError, match="no project 'nobody'"):
        check(CheckSettings(corpus, project="nobody"))
    with pytest.raises(UserError, match="no such folder"):
        check(CheckSettings(str(tmp_path / "none")))
