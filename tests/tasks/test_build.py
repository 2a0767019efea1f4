"""Tasks from projects: all kinds, the same for any number of workers, validation apart, sound by audit."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import SPLITS
from cpplm.judge.scoring import function_body
from cpplm.tasks.audit import audit
from cpplm.tasks.build import build_tasks, open_grader
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import first_of_each_kind, read_tasks
from cpplm.tasks.kind import Answer, Grade
from cpplm.tasks.kinds import KINDS
from tests.tasks.conftest import settings

OF_CODE = ("fix", "denoise", "fill", "doc", "ask", "commit")


def test_every_kind_has_tasks_in_both_splits(tasks: Path) -> None:
    for split in SPLITS:
        assert {item.kind for item in read_tasks(tasks, split)} == KINDS.keys() - {"own"}


def test_validation_is_of_other_projects(tasks: Path) -> None:
    train, val = ({i.project for i in read_tasks(tasks, split, OF_CODE)} for split in SPLITS)
    assert train and val and not train & val
    train, val = ({item.key for item in read_tasks(tasks, split)} for split in SPLITS)
    assert not train & val


@pytest.mark.slow
def test_equal_for_any_number_of_workers(tasks: Path, corpus: Path, projects: Path, tmp_path: Path) -> None:
    build_tasks(settings(corpus, projects, tmp_path / "again", workers=1))
    for split in SPLITS:
        assert (tmp_path / "again" / f"{split}.parquet").read_bytes() == (
            tasks / f"{split}.parquet"
        ).read_bytes()


def test_a_build_goes_on_from_what_was_compiled(tasks: Path, corpus: Path, projects: Path) -> None:
    cached = tasks / "cache" / "diagnostics.jsonl"
    before = cached.read_text()
    (tasks / "_COMPLETE").unlink()
    build_tasks(settings(corpus, projects, tasks))
    assert cached.read_text() == before


def test_other_settings_are_refused(tasks: Path, corpus: Path, projects: Path) -> None:
    with pytest.raises(UserError, match="Name another --out"):
        build_tasks(settings(corpus, projects, tasks, seed=5))


def test_audit_finds_nothing(tasks: Path, grader: Grader) -> None:
    report = audit(first_of_each_kind(read_tasks(tasks, "val"), 1), grader)
    assert report.faults == []
    assert all(len(cheats) >= 17 for cheats in report.worst.values())


def test_audit_finds_a_grader_that_is_too_kind(
    tasks: Path, grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpplm.tasks.fix._look", lambda item, answer: Grade(1.0, "kind"))
    items = read_tasks(tasks, "val", ["fix"])[:1]
    report = audit(items, grader)
    assert any("is worth 1.0" in fault for fault in report.faults)


def test_an_altered_task_is_refused(tasks: Path, tmp_path: Path) -> None:
    for file in ("val.parquet", "manifest.json", "_COMPLETE"):
        (tmp_path / file).write_bytes((tasks / file).read_bytes())
    table = pq.read_table(tmp_path / "val.parquet")
    pq.write_table(table.set_column(table.schema.get_field_index("answer"), "answer", [["x"] * len(table)]),
                   tmp_path / "val.parquet")  # fmt: skip
    with pytest.raises(UserError, match="altered"):
        read_tasks(tmp_path, "val")


def test_no_tasks_without_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished tasks"):
        read_tasks(tmp_path, "val")


# ---- what answers are worth -------------------------------------------------------------------------------


def grades(tasks: Path, grader: Grader, kind: str, *answers: str) -> list[float]:
    item = read_tasks(tasks, "train", [kind])[0]
    texts = [text.format(gold=item.answer) if "{gold}" in text else text for text in answers]
    pairs = [(item, Answer(KINDS[kind].cut(text))) for text in texts]
    return [grade.reward for grade in KINDS[kind].grade(pairs, grader)]


def test_fix_wants_the_words_of_the_line(tasks: Path, grader: Grader) -> None:
    other = "x = unrelated(5, 6) + other->thing[7];"
    assert grades(tasks, grader, "fix", "{gold}", "\n  {gold}\nmore", "", other) == [1, 1, 0, 0]


def test_denoise_wants_the_line_itself_and_has_more_than_fix(tasks: Path, grader: Grader) -> None:
    assert grades(tasks, grader, "denoise", "{gold}", "", "int unrelated = 5;") == [1, 0, 0]
    items = read_tasks(tasks, "train", ["denoise"])
    assert len({item.answer for item in items}) == len(items)
    assert not any("error:" in item.prompt.rsplit("Line ", 1)[1] for item in items)


def test_fix_takes_other_punctuation_that_compiles(tasks: Path, grader: Grader) -> None:
    items = [i for i in read_tasks(tasks, "train", ["fix"]) if i.answer.endswith(";")]
    found = KINDS["fix"].grade([(item, Answer(item.answer + ";")) for item in items], grader)
    assert any(grade.solved and not grade.exact for grade in found)


def test_fix_shows_the_compilers_message(tasks: Path) -> None:
    for item in read_tasks(tasks, "train", ["fix"]):
        assert "error: " in item.prompt
        assert item.data["broken"] in item.prompt
        assert item.data["before"] + item.answer + item.data["after"] != item.prompt


def test_bodies_are_tested(tasks: Path, grader: Grader) -> None:
    assert grades(tasks, grader, "tiny", "{gold}", "return 1;\n}", "}", "return") == [1, 0.1, 0, 0]


@pytest.mark.slow
def test_own_has_tests_that_catch_mutants_and_cheats(corpus: Path, projects: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    build_tasks(settings(corpus, projects, tasks, kinds=("own",)))
    assert audit(read_tasks(tasks, "val"), open_grader(tasks, (), 2)).faults == []
    assert grades(tasks, open_grader(tasks, (), 2), "own", "{gold}", "return 1;\n}", "}") == [1, 0.1, 0]
    items = read_tasks(tasks, "train", ["own"])
    assert {item.level for item in items} == {"body", "second half", "last statement"}
    assert all(function_body(item.answer).complete for item in items)


def test_ask_wants_what_was_read(tasks: Path, grader: Grader) -> None:
    item = read_tasks(tasks, "val", ["ask"])[0]
    result = item.data["result"]
    answers = [(item.answer, (result,)), (item.answer, ()), (item.answer, ("other",)), ("x.h:1", (result,)),
               (item.answer, ("error: no such tool",))]  # fmt: skip
    found = KINDS["ask"].grade([(item, Answer(*each)) for each in answers], grader)
    assert [grade.reward for grade in found] == [1, 0, 0.1, 0.1, 0]


def test_commit_is_the_change(tasks: Path, grader: Grader) -> None:
    item = read_tasks(tasks, "train", ["commit"])[0]
    assert "weigh" in item.prompt
    assert item.data["before"] != KINDS["commit"].cut(item.answer)
    assert grades(tasks, grader, "commit", "{gold}", item.data["before"], "x") == [1, 0, 0.1]


def test_turns_call_tools_for_real(tasks: Path) -> None:
    for item in read_tasks(tasks, "val", ["ask"]):
        roles = [message["role"] for message in item.messages]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert json.loads(item.messages[1]["tool_calls"][0]["function"]["arguments"])
        assert item.messages[2]["content"] == item.data["result"]
