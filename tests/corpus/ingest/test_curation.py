from concurrent.futures import ThreadPoolExecutor

import pytest

from cpplm.corpus.ingest.curation import CurationRules, ScannedProject, curate
from cpplm.corpus.ingest.decontamination import load_problems
from cpplm.corpus.ingest.discovery import Project, find_files, read_source
from tests.corpus.cpp import write_files

RULES = CurationRules(load_problems([]))


def code(seed: int, lines: int = 40) -> str:
    return "".join(
        f"int name_{seed}_{i}(int value_{i}) {{ return value_{i} * {seed + i}; }}\n" for i in range(lines)
    )


PROBLEM = """// Returns how many values lie in the half-open band: low <= value < high.
int count_in_band(const std::vector<double>& values, double low, double high);
"""
FOLDERS = {
    "one": {
        "a.cc": code(1),
        "b.cc": "// A license\r\n" + code(2).replace("\n", "\r\n"),
        "mail.cc": code(3) + "// ann@corp.com\n// bob@corp.com\n",
        "made.cc": "// @generated\n" + code(4),
    },
    "two": {
        "b.cc": "// A license\n" + code(2),
        "near.cc": "// Another license\n" + code(1).replace("* 21;", "* 9;"),
        "made.cc": code(4),
        "asked.cc": PROBLEM + code(5),
        "asked_too.cc": PROBLEM + code(5),
        "own.cc": code(6),
    },
}


def found(tmp_path, order=("one", "two")) -> list[ScannedProject]:
    for name, files in FOLDERS.items():
        write_files(tmp_path / name, files)
    projects = [Project(name, (tmp_path / name,)) for name in order]
    return [ScannedProject(project, *find_files(project)) for project in projects]


def documents(projects: list[ScannedProject]) -> dict[str, list[str]]:
    return {p.project.name: sorted(f.name for f in p.files if f.makes_documents) for p in projects}


def test_copies_and_problems_make_no_documents_and_are_named(tmp_path):
    projects = found(tmp_path)
    curate(projects, RULES)
    assert documents(projects) == {"one": ["a.cc", "b.cc", "mail.cc"], "two": ["made.cc", "own.cc"]}
    one, two = (project.skips.to_dict() for project in projects)
    assert one.keys() == {"generated"}
    assert {reason: entry["files"] for reason, entry in two.items()} == {
        "copy of another file": 1, "nearly a copy of another file": 1, "holds an evaluation problem": 2,
    }  # fmt: skip
    assert two["copy of another file"]["examples"] == ["b.cc (as one: b.cc)"]
    assert two["nearly a copy of another file"]["examples"] == ["near.cc (like one: a.cc)"]
    example = two["holds an evaluation problem"]["examples"][0]
    assert example.startswith("asked.cc (cpp_small.jsonl: count_in_band: Returns how many values")
    assert two["copy of another file"]["bytes"] == len(FOLDERS["two"]["b.cc"])


def test_the_order_of_projects_decides_who_stays(tmp_path):
    projects = found(tmp_path, order=("two", "one"))
    curate(projects, RULES)
    assert documents(projects) == {"two": ["b.cc", "made.cc", "near.cc", "own.cc"], "one": ["mail.cc"]}


def test_files_are_preferred_by_name_not_by_folder(tmp_path):
    write_files(tmp_path, {"z.cc": code(1), "a/x.cc": code(1)})
    project = Project("p", (tmp_path,))
    item = ScannedProject(project, *find_files(project))
    assert [file.name for file in item.files] == ["z.cc", "a/x.cc"]
    curate([item], RULES)
    assert documents([item]) == {"p": ["a/x.cc"]}


def test_redaction_is_counted_and_only_files_with_findings_are_redacted_again(tmp_path):
    projects = found(tmp_path)
    curate(projects, RULES)
    lines = code(3).count("\n")
    assert projects[0].redactions.to_dict() == {
        "e-mail address": {
            "files": 2, "bytes": 0, "examples": [f"mail.cc:{lines + 1}", f"mail.cc:{lines + 2}"],
        }
    }  # fmt: skip
    flagged = {file.name: file for project in projects for file in project.files if file.redact}
    assert flagged.keys() == {"mail.cc"}
    assert b"corp.com" not in read_source(flagged["mail.cc"])


def test_personal_data_can_be_kept(tmp_path):
    projects = found(tmp_path)
    curate(projects, RULES._replace(redact=False))
    assert projects[0].redactions.to_dict() == {}
    assert any(b"ann@corp.com" in read_source(file) for file in projects[0].files)


@pytest.mark.parametrize("batch", [1, 10_000_000])
def test_how_the_reading_is_spread_does_not_matter(tmp_path, monkeypatch, batch):
    expected = found(tmp_path)
    curate(expected, RULES)
    monkeypatch.setattr("cpplm.corpus.ingest.curation._BATCH_BYTES", batch)
    projects = found(tmp_path)
    with ThreadPoolExecutor(3) as pool:
        curate(projects, RULES, run=pool.map)
    assert projects == expected
