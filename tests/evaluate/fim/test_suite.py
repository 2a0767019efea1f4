"""Models fill holes and are judged: right answers get everything, empty ones nothing, a kill loses none."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.fim import suite as fim
from cpplm.evaluate.fim.holes import FimHole, problem_holes
from cpplm.evaluate.fim.report import FimReport, FimSample, edit_similarity
from cpplm.evaluate.fim.suite import (
    BLOCK,
    LINE,
    WHOLE,
    _missing,
    input_hashes,
    leaves_function,
    run_fim,
    truncation_for,
)
from cpplm.evaluate.models.code_model import CodePrompt, Completion
from cpplm.evaluate.problems import load_problems
from cpplm.evaluate.settings import FimEvalSettings
from cpplm.sandbox.sandbox import Sandbox
from tests.evaluate.scripted import Scripted, write_problems


@pytest.fixture(scope="module")
def problem_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the small problems: enough to see every outcome, few enough to be quick."""
    return write_problems(tmp_path_factory.mktemp("problems") / "two.jsonl", load_problems("small")[:2])


@pytest.fixture(scope="module")
def verdict_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests: what one of them compiled, the others need not."""
    return tmp_path_factory.mktemp("fim")


@pytest.fixture(scope="module")
def solutions(problem_file: Path) -> dict[CodePrompt, str]:
    problems = load_problems(problem_file)
    holes = [hole for problem in problems for group in problem_holes(problem).values() for hole in group]
    return {hole.request: hole.middle for hole in holes}


def settings(problem_file: Path, **values: Any) -> FimEvalSettings:
    return FimEvalSettings(**{"problems": str(problem_file), "holes_per_problem": 1, **values})


def value(report: FimReport, score: str, source: str = "problems", kind: str = "all") -> float:
    found: float = report.figures()[source][kind][score]["value"]
    return found


def test_right_answers_pass(problem_file: Path, verdict_dir: Path, solutions: dict[CodePrompt, str]) -> None:
    report = run_fim(Scripted(solutions.__getitem__, "right"), settings(problem_file), folder=verdict_dir)
    assert [value(report, score) for score in ("exact_match", "edit_similarity", "syntax_valid")] == [1] * 3
    assert (value(report, "compile_rate"), value(report, "pass_rate")) == (1, 1)
    assert len(report.samples) == 6
    figures = report.figures()
    assert figures["outcomes"] == {"pass": 6}
    assert set(figures["problems"]) == {"single", "multi", "body", "all"}
    assert figures["config"]["model"] == {"name": "right"}
    assert {"cpplm", "parser", "compiler", "sandbox"} == set(figures["config"]["versions"])
    assert json.loads(json.dumps(figures)) == figures
    assert json.loads(json.dumps(report.details()))[0]["hole"] == report.samples[0].hole


@pytest.mark.parametrize("nothing", ["", "/* a */ ;"])
def test_nothing_written_earns_nothing(problem_file: Path, verdict_dir: Path, nothing: str) -> None:
    report = run_fim(Scripted(lambda _: nothing, "empty"), settings(problem_file), folder=verdict_dir)
    assert {value(report, name) for name in ("pass_rate", "exact_match", "compile_rate", "syntax_valid")} == {
        0
    }
    assert set(report.figures()["outcomes"]) == {"empty"}


def test_answers_of_every_kind(
    problem_file: Path, verdict_dir: Path, solutions: dict[CodePrompt, str]
) -> None:
    """Another right answer, nonsense, a repeated suffix, binary, a cheat, none at all: each is what it is."""
    kinds = iter(["other", "nonsense", "suffix", "binary", "cheat", "none"])  # the first two are single lines
    given: dict[str, str] = {}

    def answer(request: CodePrompt) -> str:
        kind = next(kinds)
        given[request.prefix + str(request.suffix)] = kind
        right = solutions[request]
        return {
            "other": right.replace("  ", " ") + " // as good\nand more",
            "nonsense": "this is no C++",
            "suffix": right + str(request.suffix),
            "binary": "\x00\udcff",
            "cheat": "return {}; } } }\n#define assert(x)\nint other() { { { return 0;",
            "none": "FAILED: the prompt is too long",
        }[kind]

    report = run_fim(Scripted(answer, "kinds"), settings(problem_file), folder=verdict_dir)
    found = {given[sample.prefix + sample.suffix]: sample for sample in report.samples}
    assert {kind: sample.outcome for kind, sample in found.items()} == {
        "other": "pass",
        "nonsense": "compile error",
        "suffix": "forbidden",
        "binary": "binary",
        "cheat": "forbidden",
        "none": "no answer",
    }
    assert [kind for kind, sample in found.items() if sample.passes] == ["other"]
    assert [kind for kind, sample in found.items() if sample.compiles] == ["other"]
    assert not any(sample.exact_match for sample in report.samples)
    assert 0.3 < found["other"].edit_similarity < 1
    assert {kind for kind, sample in found.items() if sample.syntax_valid} == {"other"}
    assert "error" in found["nonsense"].message
    assert found["none"].message == "FAILED: the prompt is too long"
    assert (found["none"].syntax_valid, found["none"].edit_similarity) == (False, 0)
    assert value(report, "pass_rate") == pytest.approx(1 / 6)


@pytest.mark.slow
def test_answers_are_kept(problem_file: Path, tmp_path: Path, solutions: dict[CodePrompt, str]) -> None:
    class StopError(Exception):
        pass

    def slow(request: CodePrompt) -> str:
        if len(model.asked) == 4:
            raise StopError
        return solutions[request]

    model = Scripted(slow)
    with pytest.raises(StopError):
        run_fim(model, settings(problem_file), folder=tmp_path)
    again = Scripted(solutions.__getitem__)
    report = run_fim(again, settings(problem_file), folder=tmp_path)
    assert len(again.asked) == 3  # three of six were there
    assert value(report, "pass_rate") == 1


def test_inputs_tell_what_is_cut(problem_file: Path, tmp_path: Path) -> None:
    code = tmp_path / "a.cpp"
    code.write_text("int x;\n")
    chosen = settings(problem_file, files=str(tmp_path))
    first = input_hashes(chosen)
    assert input_hashes(chosen) == first
    code.write_text("int y;\n")
    assert input_hashes(chosen)["files"] != first["files"]
    assert input_hashes(FimEvalSettings(problems="small"))["problems"] != first["problems"]


def test_files_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, so nothing is needed to compile it."""

    def probe(**_: bool) -> Sandbox:
        raise AssertionError("not needed")

    monkeypatch.setattr(Sandbox, "probe", probe)
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.cpp").write_text(
        "int f(int x) {\n    if (x > 100) {\n        x = f(x - 1, x);\n    }\n    return x;\n}\n"
    )
    (code / "b.cpp").write_text(
        "int g( {\n    int first_line = 0;\n    int second_line = 0;\n"
    )  # not valid itself
    chosen = FimEvalSettings(problems="", files=str(code), holes_per_kind=4)
    report = run_fim(Scripted(lambda _: ";"), chosen, folder=tmp_path)
    figures = report.figures()
    assert set(figures) >= {"files"}
    assert "problems" not in figures
    assert "compile_rate" not in figures["files"]["all"]
    assert figures["outcomes"] == {}
    valid = figures["files"]["all"]["syntax_valid"]
    assert 0 < valid["n"] < figures["files"]["all"]["exact_match"]["n"]
    assert figures["config"]["versions"].keys() == {"cpplm", "parser"}
    chosen = FimEvalSettings(problems="", files=str(code), kinds=("single", "block"))
    figures = run_fim(Scripted(lambda _: ";"), chosen, folder=None).figures()
    assert figures["files"].keys() == {"all", "single", "block"}


def test_text_of_the_project_stands_before_a_hole(tmp_path: Path) -> None:
    """The one of each file's own project, and never what stood in the hole."""
    for project, constant in (("one", "ONE"), ("two", "TWO")):
        (tmp_path / project).mkdir()
        text = f"int {project}(int x) {{\n    int y = x + 1;\n    return y * y;\n}}\n"
        (tmp_path / project / "a.cpp").write_text(text)
        other = text.replace(project, "g").replace("return y * y", f"return {constant}")
        (tmp_path / project / "b.cpp").write_text(other)
    model = Scripted(lambda _: ";")
    chosen = FimEvalSettings(problems="", files=str(tmp_path), holes_per_kind=9, project_context=True)
    report = run_fim(model, chosen, folder=None)
    found = [
        each.prefix for each in model.asked if "return ONE" in each.prefix or "return TWO" in each.prefix
    ]
    assert any("return ONE" in each for each in found)
    assert any("return TWO" in each for each in found)
    assert not any("ONE" in each and "TWO" in each for each in found)
    assert report.figures()["files"]["all"]["bits_per_byte"]["value"] == 8.0
    assert "8.000 ±0.000" in report.table()
    with pytest.raises(UserError, match="without --files"):
        FimEvalSettings(project_context=True)


def test_other_models_watch_no_syntax(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int f(int x) {\n    return x;\n}\n")
    with pytest.raises(UserError, match="--valid watches the tokens of our own engine"):
        run_fim(
            Scripted(lambda _: ";"),
            FimEvalSettings(problems="", files=str(tmp_path), valid="cpp"),
            folder=None,
        )


def test_files_that_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "int f(int x) {\n    int y = x + 1;\n    return y;\n}\n"
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.cpp").write_text(text)
    (code / "b.cpp").write_text(text.replace("int y", "Unknown y"))
    monkeypatch.setattr(fim, "STANDALONE_KINDS", ("source",))  # what a corpus says of its documents
    chosen = FimEvalSettings(problems="", files=str(code), holes_per_kind=2, compile_files=True)

    def answer(request: CodePrompt) -> str:
        whole = [one for one in (text, text.replace("int y", "Unknown y")) if one.startswith(request.prefix)]
        ends = [one for one in whole if one.endswith(request.suffix or "")]
        return ends[0][len(request.prefix) : len(ends[0]) - len(request.suffix or "")]

    report = run_fim(Scripted(answer), chosen, folder=tmp_path)
    judged = [sample for sample in report.samples if sample.compiles is not None]
    assert 0 < len(judged) < len(report.samples)
    assert len({sample.group for sample in judged}) == 1  # the other does not compile by itself
    assert all(sample.outcome == "compiles" for sample in judged)
    wrong = run_fim(Scripted(lambda _: "undeclared;", "wrong"), chosen, folder=tmp_path)
    assert {sample.outcome for sample in wrong.samples} == {"compile error", ""}
    empty = run_fim(Scripted(lambda _: ";", "empty"), chosen, folder=tmp_path)
    assert {(sample.outcome, sample.compiles) for sample in empty.samples} == {("empty", False), ("", None)}


def test_a_comment_may_be_the_answer() -> None:
    """Where only a comment was cut out, an empty answer is judged like any other."""
    for middle, missing in (("    // sums up", False), ("    return 1;", True)):
        assert _missing(dataclasses.replace(HOLE, middle=middle), Completion(" // adds")) == missing
        assert not _missing(dataclasses.replace(HOLE, middle=middle), Completion("return 2;"))


# ---- cutting ----------------------------------------------------------------------------------------------


def test_where_answers_end() -> None:
    assert truncation_for("single", True) == truncation_for("single", False) == LINE
    assert truncation_for("body", True) == WHOLE
    assert truncation_for("body", False) == truncation_for("multi", False) == BLOCK
    assert LINE.cut("a;\nb;") == "a;"
    assert LINE.cut("\na;") == ""
    assert LINE.stop is not None
    assert not LINE.stop("a;")
    assert LINE.stop("a;\n")
    assert BLOCK.cut('if (x) { "}"; }\nreturn; }\nint more() {') == 'if (x) { "}"; }\nreturn; '
    assert BLOCK.cut("return;") == "return;"
    assert BLOCK.stop is not None
    assert BLOCK.stop("return; }")
    assert not BLOCK.stop("if (x) { }")
    assert WHOLE.cut("a;\n}\nint main() {}") == "a;\n}\nint main() {}"
    assert len({cut.rule for cut in (LINE, BLOCK, WHOLE)}) == 3


def test_a_model_that_sees_no_suffix_is_cut_at_the_brace(
    problem_file: Path, verdict_dir: Path, solutions: dict[CodePrompt, str]
) -> None:
    model = Scripted(lambda request: solutions[request] + "\n}\nint more() {", "prefix", supports_fim=False)
    report = run_fim(model, settings(problem_file), folder=verdict_dir)
    bodies = [sample for sample in report.samples if sample.kind == "body"]
    assert all(sample.passes and sample.exact_match for sample in bodies)
    assert report.config["supports_fim"] is False


HOLE = FimHole("a/multi/1-2", "multi", "a", "int f() {\n    if (x) {\n", "", "\n    }\n}\n", "", "")


@pytest.mark.parametrize(
    ("written", "leaves"),
    [
        ("y();", False),
        ("y(); } else {", False),
        ("y(); } }", True),
        ('y("}}");', False),
        ("y(); } } int operator==(A, B) { if (true) {", True),
    ],
)
def test_answers_stay_in_their_function(written: str, leaves: bool) -> None:
    assert leaves_function(HOLE, written) is leaves


# ---- scores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "similarity"),
    [
        ("", "", 1.0),
        ("abc", "", 0.0),
        ("kitten", "sitting", 1 - 3 / 7),
        ("a; \n", "a;", 1.0),
        ("ab", "ba", 0.0),
    ],
)
def test_edit_similarity(one: str, two: str, similarity: float) -> None:
    assert edit_similarity(one, two) == pytest.approx(similarity)
    assert edit_similarity(two, one) == pytest.approx(similarity)


def sample(hole: str, group: str, passes: bool | None, **values: Any) -> FimSample:
    base = FimSample(
        hole=hole, kind="single", source="problems", group=group, prefix="p" * 5000, suffix="s" * 5000,
        expected="", completion="", exact_match=False, edit_similarity=0.5, syntax_valid=None,
        compiles=passes, passes=passes, outcome="pass" if passes else "", message="",
    )  # fmt: skip
    return dataclasses.replace(base, **values)


def test_figures_are_means_over_holes() -> None:
    """Of hole a two of three samples pass, of hole b none of one; c was not judged."""
    samples = [sample("a", "1", passes) for passes in (True, True, False)]
    samples += [sample("b", "2", False), sample("c", "2", None)]
    figures = FimReport(tuple(samples), "", {}).figures()
    assert (figures["holes"], figures["samples"]) == (3, 5)
    score = figures["problems"]["all"]["pass_rate"]
    assert (score["value"], score["n"]) == (pytest.approx(1 / 3), 2)
    assert score["error"] == pytest.approx(1 / 3)  # of 2/3 and 0
    assert figures["problems"]["all"]["exact_match"]["n"] == 3
    assert "syntax_valid" not in figures["problems"]["all"]


def test_the_table_and_the_details_are_small() -> None:
    report = FimReport((sample("a", "1", True), sample("b", "2", False, kind="body")), "", {})
    lines = report.table().splitlines()
    assert lines[1].split() == ["problems", "single", "1", "0.0", "50.0", "100.0", "100.0"]
    errors = ["0.0", "±0.0", "50.0", "±0.0", "50.0", "±50.0", "50.0", "±50.0"]
    assert lines[3].split() == ["problems", "all", "2", *errors]
    assert lines[4] == "outcomes: 1 pass"
    assert all(len(detail["prefix"]) + len(detail["suffix"]) < 2000 for detail in report.details())
