"""`cpplm evaluate tasks`: models of every kind, asked as they were trained, and compared in pairs."""

import dataclasses
import json
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from cpplm.core.errors import UserError
from cpplm.core.statistics import mcnemar_p_value, paired_bootstrap_interval
from cpplm.core.storage import Storage
from cpplm.evaluate.models.chat import chat_template_ids
from cpplm.evaluate.models.code_model import ChatAnswer, CodeModel, Completion
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.evaluate.settings import EvalTarget, EvaluatedModel
from cpplm.evaluate.task_comparison import evaluate_tasks, format_comparison
from cpplm.evaluate.task_settings import TaskEvalSettings, TasksCommand
from cpplm.evaluate.task_suite import answer_tasks, compare, figures_of, grade_answers
from cpplm.tasks.build import build_tasks, open_grader
from cpplm.tasks.item import TaskItem, read_tasks, write_tasks
from cpplm.tasks.settings import TaskBuildSettings
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from tests.commands import cpplm
from tests.post_training.hf_models import write_chat_model


class Parrot(CodeModel):
    """A model that knows some answers by their prompts."""

    name, supports_fim, max_context = "parrot", False, 1000

    def __init__(self, answers: dict[str, str], *, chat: bool) -> None:
        self.answers, self.supports_chat, self.calls = answers, chat, 0
        self.identity = {"answers": sorted(answers.items())}

    def fit(self, request, new_tokens):
        return request

    def generate(self, requests, sampling, *, num_samples=1, stop=None):
        for number, request in enumerate(requests):
            self.calls += 1
            yield number, [Completion(self.answers.get(request.prefix, "?"))]

    def chat(self, conversations, sampling, *, stop=None, boxes=()):
        for number, messages in enumerate(conversations):
            self.calls += 1
            yield number, ChatAnswer(self.answers.get(messages[0]["content"], "?"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny") / "tasks"
    build_tasks(TaskBuildSettings(out=out, kinds=("tiny",), num_train=4, num_val=8))
    return out


@pytest.fixture(scope="module")
def items(tasks: Path) -> list[TaskItem]:
    return read_tasks(tasks, "val")


def test_models_are_asked_as_they_were_trained(tasks: Path, items: list[TaskItem]) -> None:
    settings = TaskEvalSettings(tasks)
    for chat, asked in ((True, "prompt"), (False, "prefix")):
        model = Parrot({getattr(item, asked): item.answer for item in items}, chat=chat)
        graded = grade_answers(
            items, answer_tasks(model, items, settings, {}, None), open_grader(tasks, (), 2)
        )
        assert figures_of(graded)["tiny"]["solved"] == 1


def test_differences_are_paired(tasks: Path, items: list[TaskItem]) -> None:
    grader, settings = open_grader(tasks, (), 2), TaskEvalSettings(tasks)
    known = [{item.prompt: item.answer for item in items[:count]} for count in (6, 2)]
    ours, theirs = (
        grade_answers(items, answer_tasks(Parrot(each, chat=True), items, settings, {}, None), grader)
        for each in known
    )
    difference = compare(ours, theirs)["tiny"]
    assert (difference["difference"], difference["gained"], difference["lost"]) == (0.5, 4, 0)
    assert difference["interval"][0] <= 0.5 <= difference["interval"][1]
    assert compare(ours, ours)["tiny"]["p"] == 1


def test_one_right_sample_of_several_counts_once(tasks: Path, items: list[TaskItem]) -> None:
    grader, settings = open_grader(tasks, (), 2), TaskEvalSettings(tasks)
    samples = []
    for known in (items[:2], items[1:4]):
        model = Parrot({item.prompt: item.answer for item in known}, chat=True)
        answers = answer_tasks(model, items, settings, {}, None)
        samples.append(grade_answers(items, answers, grader))
    figures = figures_of(*samples)["tiny"]
    assert (figures["solved"], figures["pass@2"]) == (2 / 8, 4 / 8)
    with pytest.raises(UserError, match="all samples are the same"):
        TaskEvalSettings(tasks, num_samples=2)


def test_answers_are_kept(tasks: Path, items: list[TaskItem], tmp_path: Path) -> None:
    model = Parrot({}, chat=True)
    for _ in range(2):
        answer_tasks(model, items, TaskEvalSettings(tasks), {}, tmp_path)
    assert model.calls == len(items)


def test_mcnemar() -> None:
    assert mcnemar_p_value(0, 0) == 1
    assert mcnemar_p_value(5, 0) == pytest.approx(2 / 32)
    assert mcnemar_p_value(3, 9) == pytest.approx(0.1460, abs=1e-4)  # binom.test(3, 12) of R


def test_bootstrap_knows_groups() -> None:
    values = [1.0] * 50 + [0.0] * 50
    alone = paired_bootstrap_interval(values, [str(number) for number in range(100)])
    low, high = paired_bootstrap_interval(values, ["a"] * 50 + ["b"] * 50)
    assert 0.39 < alone[0] < 0.42 and 0.58 < alone[1] < 0.61
    assert (low, high) == (0, 1)


def test_a_run_against_a_server_by_the_command(
    tasks: Path, items: list[TaskItem], small_run: TrainSettings, tmp_path: Path, corpus: Path,
    httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    gold = {item.prompt: item.answer for item in items}

    def answer(request: Request) -> Response:
        asked = json.loads(request.data)["messages"][0]["content"]
        message = {"role": "assistant", "content": gold[asked]}
        return Response(json.dumps({"choices": [{"message": message}]}), content_type="application/json")

    httpserver.expect_request("/v1/models").respond_with_json({"data": [{"id": "gold"}]})
    httpserver.expect_request("/v1/chat/completions").respond_with_handler(answer)
    pretrain(dataclasses.replace(small_run, out=tmp_path / "run"))
    done = cpplm(
        "evaluate", "tasks", tmp_path / "run", "--tasks", tasks, "--against", httpserver.url_for("/v1"),
        "--num_items", "3", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert [model["tasks"]["tiny"]["solved"] for model in result["models"]] == [0, 1]
    assert len(json.loads((tmp_path / "run" / "tasks.json").read_text())["answers"]) == 3


def test_a_chat_template_asks_for_the_answer(tasks: Path, items: list[TaskItem], tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    folder = write_chat_model(tmp_path / "tiny", template=template)
    model = HfModel.load(folder, device_type="cpu", precision="fp32")
    assert model.supports_chat
    (ids,) = chat_template_ids(folder, [[{"role": "user", "content": "a + b"}]])
    assert model._tokens.bytes_of(ids) == b"<user>a + b<assistant>"
    answers = answer_tasks(model, items[:2], TaskEvalSettings(tasks), {}, None)
    assert len(answers) == 2


def test_tasks_that_need_tools_are_left_out_beside_servers(
    small_run: TrainSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop").mkdir()
    item = TaskItem("ask", "value", "val", "g", "shop", "MIT", "What?", "5", data={"result": "5"})
    tiny = TaskItem(
        "tiny", "constants", "val", "g", "tiny", "MIT", "Write.", "}", "f {", data={"before": "", "after": ""}
    )
    write_tasks(Storage(tmp_path / "tasks", create=True), [item, tiny], projects={}, headers=[])
    pretrain(dataclasses.replace(small_run, out=tmp_path / "run"))
    command = TasksCommand(
        EvalTarget(EvaluatedModel(run=str(tmp_path / "run"), device_type="cpu")),
        TaskEvalSettings(tmp_path / "tasks"),
    )
    result = evaluate_tasks(command)
    assert result["models"][0]["tasks"].keys() == {"tiny"}
    assert "1 tasks need tools on a project: left out" in capsys.readouterr().err


@pytest.mark.slow
def test_guards_stand_beside_the_tasks(
    tasks: Path, small_run: TrainSettings, corpus: Path, tmp_path: Path
) -> None:
    pretrain(dataclasses.replace(small_run, out=tmp_path / "run", num_iterations=1))
    settings = TaskEvalSettings(tasks, num_items=1, guards=str(corpus))
    target = EvalTarget(EvaluatedModel(run=str(tmp_path / "run"), device_type="cpu"))
    result = evaluate_tasks(TasksCommand(target, settings))
    guards = result["models"][0]["guards"]
    assert guards["bits_per_byte"] > 1
    assert 0 <= guards["fim_exact_match"] <= guards["fim_edit_similarity"] <= 1
    assert "fim_exact_match: A " in format_comparison(result)
