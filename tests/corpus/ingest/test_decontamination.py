import json
import re

import pytest

from cpplm.core.errors import UserError
from cpplm.corpus.ingest.decontamination import ProblemMatch, contaminated_files, find_matches, load_problems
from cpplm.corpus.ingest.ngram_hash import hash_words, split_words

PROMPT = """#include <vector>

// Tells how many of the given heights a walker sees who looks from the left over all of them.
int visible_from_left(const std::vector<int>& heights) {
"""
SOLUTION = """    int highest = 0, seen = 0;
    for (int height : heights) {
        if (height > highest) { ++seen; highest = height; }
    }
    return seen;
}
"""
PROBLEM = {"name": "walker", "prompt": PROMPT, "canonical_solution": SOLUTION, "tests": "int main() {}"}


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def matches(problems, text: str) -> list[ProblemMatch]:
    words = split_words(text.encode())
    return find_matches(problems, words, hash_words(words))


@pytest.fixture
def problems(tmp_path):
    return load_problems([write(tmp_path / "mine.jsonl", PROBLEM)])


@pytest.mark.parametrize(
    "text",
    [
        PROMPT + SOLUTION,
        SOLUTION,
        re.sub(r"\s+", "\n", SOLUTION),
        SOLUTION.replace("{", "\n{\n").replace(";", " ;"),
        "int other();\n" + PROMPT.replace("// ", "/* ").replace("them.", "them. */") + "}\n",
    ],
)
def test_a_copy_is_found_however_it_is_laid_out(problems, text):
    found = matches(problems, text)
    assert found
    assert {match.problem for match in found} == {"mine.jsonl: walker"}
    assert len(found[0].words.split()) >= 10
    assert found[0].words.split()[0] in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#include <vector>\nint main() {}\n",
        SOLUTION[:60],
        SOLUTION.replace("highest", "top"),
        "int visible_from_left(const std::vector<int>& heights);\n",
    ],
)
def test_other_code_is_clean(problems, text):
    assert matches(problems, text) == []


def test_the_problems_that_come_with_cpplm_are_always_there():
    builtin = load_problems([])
    assert len(set(builtin.values())) >= 20
    text = "int count = 0;\n for (double value : values) {\n if (value >= low) {\n ++count;\n"
    prompt = "Returns how many values lie in the half-open band: low <= value < high. int count_in_band(const"
    assert not matches(builtin, text)
    assert matches(builtin, prompt)[0].problem == "cpp_small.jsonl: count_in_band"


TABLE = ", ".join(str(i) for i in range(40))
LOOP = "for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) for (int k = 0; k < n; k++) a[i][j] += 1;"


@pytest.mark.parametrize(
    "boilerplate",
    ["\n".join(f"#include <{name}>" for name in list("abcdefghijklmnop")), f"int t[] = {{{TABLE}}};", LOOP],
)
def test_boilerplate_proves_nothing(tmp_path, boilerplate):
    problems = load_problems([write(tmp_path / "p.jsonl", {"prompt": boilerplate})])
    assert matches(problems, boilerplate) == []


def test_what_several_problems_share_is_a_template(tmp_path):
    shared = "int main int argc char argv set up logger read flags open window run loop close all"
    rows = [{"name": f"p{i}", "prompt": f"{shared} task {i}"} for i in range(3)]
    assert matches(load_problems([write(tmp_path / "three.jsonl", *rows)]), shared) == []
    assert matches(load_problems([write(tmp_path / "one.jsonl", rows[0])]), shared)
    both = [
        write(tmp_path / "a.jsonl", rows[0]),
        write(tmp_path / "b.jsonl", rows[0]),
        tmp_path / "one.jsonl",
    ]
    assert matches(load_problems(both), shared), "the same problem in several files is no template"


def test_a_run_in_many_files_is_habit():
    common, rare = ProblemMatch(1, "p", "a"), ProblemMatch(2, "p", "b")
    assert contaminated_files([[common]] * 10) == dict.fromkeys(range(10), common)
    assert contaminated_files([[common]] * 11) == {}
    assert contaminated_files([[common]] * 11 + [[], [common, rare]]) == {12: rare}


def test_fields_of_other_formats_and_lists(tmp_path):
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron"
    for row in ({"task_id": "X/1", "test": words}, {"id": 7, "test": words}, {"tests": [words, 3]}):
        problems = load_problems([write(tmp_path / "p.jsonl", row)])
        name = next((str(row[key]) for key in ("task_id", "id") if key in row), "line 1")
        assert matches(problems, words)[0].problem == f"p.jsonl: {name}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "bad.jsonl:1: not JSON"),
        (b"[1]", "bad.jsonl:1: not a JSON object"),
        (b'{"prompt": "x y"}\n\n{"question": "q"}', "bad.jsonl:3 has no text of a problem"),
        (b"\xff", "cannot read --decontaminate"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_problems([tmp_path / "bad.jsonl"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="cannot read --decontaminate"):
        load_problems([tmp_path / "no.jsonl"])
