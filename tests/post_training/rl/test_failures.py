"""What goes wrong around a run is refused or survived, and never learned from."""

import dataclasses
import errno
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from cpplm.core.errors import UserError
from cpplm.core.jsonl import JsonlFile, read_jsonl
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.dataloader.loader_state import LoaderState
from cpplm.generate.engine import RequestResult
from cpplm.generate.sequence import CompletionOutput, GenerationRequest, TokenLogprob
from cpplm.post_training.rl import rollouts, run
from cpplm.post_training.rl.batches import RolloutBatches, rollout_figures
from cpplm.post_training.rl.prompts import TaskPrompt
from cpplm.post_training.rl.rollouts import Group, Question, Trajectory
from cpplm.post_training.rl.run import RlTasks, train_by_rewards
from cpplm.post_training.rl.settings import RlSettings
from cpplm.sandbox.compiler import COMPILE_LIMITS
from cpplm.sandbox.sandbox import Sandbox, SandboxError
from cpplm.tasks.build import open_grader
from cpplm.tasks.item import read_tasks, write_tasks
from cpplm.tasks.kind import Answer, Grade
from cpplm.tasks.kinds import KINDS
from cpplm.train.checkpoint.format import open_run
from cpplm.train.distributed import SINGLE_PROCESS
from tests.commands import assert_one_line_error, cpplm
from tests.post_training.rl.test_rollouts import item_of, sampler_of
from tests.train.test_pretrain import assert_same_weights

NOBODY = "http://127.0.0.1:9/v1"
PROMPT = TaskPrompt((2, 70), 3)


def answer(text: str, *, ended: bool = True) -> Trajectory:
    return Trajectory((2, 70, 71, 3), (False, False, True, True), (-0.1, -0.2), Answer(text), ended=ended)


# ---- refused ----------------------------------------------------------------------------------------------


def _held_out(tasks: Path, folder: Path) -> tuple[object, ...]:
    write_tasks(Storage(folder, create=True), read_tasks(tasks, "val"), projects={}, headers=[])
    return (folder,)


def _unsound(tasks: Path, folder: Path) -> tuple[object, ...]:
    wrong = [
        dataclasses.replace(item, split="train", answer="return 12345;\n}")
        for item in read_tasks(tasks, "val")
    ]
    write_tasks(Storage(folder, create=True), wrong, projects={}, headers=[])
    return folder, "--audit_items", 1


def _with_tools(_: Path, folder: Path) -> tuple[object, ...]:
    items = [item_of("ask", prompt="where?", answer="a.h", project="p")]
    write_tasks(Storage(folder, create=True), items, projects={}, headers=[])
    return folder, "--audit_items", 0, "--rollout_urls", NOBODY


def _other_tokenizer(tasks: Path, folder: Path) -> tuple[object, ...]:
    folder.mkdir()
    record = {"key": "a", "reward": 1.0, "ids": [2, 70, 3], "written": [0, 1, 1], "tokenizer": "0" * 64}
    (folder / "rollouts.jsonl").write_text(json.dumps(record) + "\n")
    return tasks, "--train_from", folder / "rollouts.jsonl"


BAD_INPUT = {
    "evaluation items": (_held_out, "no tasks to train on"),
    "an audit that fails": (_unsound, "not sound"),
    "another tokenizer": (_other_tokenizer, "no tokens of the tokenizer of --init_from"),
    "JAX": (lambda tasks, _: (tasks, "--backend", "jax"), "needs the engine of --backend torch"),
    "tools over URLs": (_with_tools, "engines of --rollout_urls call no tools"),
    "no URL": (lambda tasks, _: (tasks, "--rollout_urls", "gpu1"), "'gpu1' is not an HTTP address"),
    "nobody answers": (
        lambda tasks, _: (tasks, "--audit_items", 0, "--rollout_urls", NOBODY),
        f"no engine of --rollout_urls is left: {NOBODY}: the connection failed",
    ),
    "no key": (
        lambda tasks, _: (tasks, "--rollout_urls", NOBODY, "--rollout_key_env", "NO_SUCH_KEY"),
        "NO_SUCH_KEY (--rollout_key_env) is not set",
    ),
    "URLs without a trainer": (
        lambda tasks, _: (tasks, "--rollout_urls", NOBODY, "--method", "rft"),
        "--rollout_urls is for --method rl",
    ),
    "a staleness that cannot be": (
        lambda tasks, _: (tasks, "--sync_every", 8, "--max_staleness", 2), "--sync_every 8 --max_staleness 2"
    ),
}  # fmt: skip


@pytest.mark.usefixtures("few_cheats", "no_pauses")
@pytest.mark.parametrize("case", BAD_INPUT, ids=lambda name: name.replace(" ", "_"))
def test_bad_input_is_one_line_and_nothing_is_trained(
    case: str, tasks: Path, chat_model: Path, tmp_path: Path
) -> None:
    make, message = BAD_INPUT[case]
    refused = cpplm(
        "rl", *make(tasks, tmp_path / "made"), "--init_from", chat_model, "--out", tmp_path / "run",
        "--device_type", "cpu", "--precision", "fp32", "--num_iterations", 1,
    )  # fmt: skip
    if case in ("an audit that fails", "nobody answers"):  # tables and warnings come before the error
        assert refused.returncode == 2
        assert message in refused.stderr
        assert "Traceback" not in refused.stderr
    else:
        assert_one_line_error(refused, message)
    assert not list((tmp_path / "run").glob("checkpoints/step_*"))


# ---- survived ---------------------------------------------------------------------------------------------


def _lose_the_launcher(*_: object, **__: object) -> None:
    raise SandboxError("the launcher was lost")


@pytest.mark.parametrize("kind", ["tiny", "fill"])
@pytest.mark.parametrize("fault", ["dead_judge", "no_number"])
def test_what_is_no_verdict_leaves_the_group(
    fault: str, kind: str, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether programs are run or documents compiled."""
    (item,) = read_tasks(tasks, "train", ["tiny"])[:1]
    if kind == "fill":
        item = item_of("fill", answer="1", data={"before": "int x = ", "after": ";", "language": "c++"})
    group = Group(Question(0, item, PROMPT), [answer("x + 12345;\n}"), answer("y")])
    sampler = sampler_of(open_grader(tasks, (), 1, quiet=True), num_samples=2)
    if fault == "dead_judge":
        monkeypatch.setattr(Sandbox, "run", _lose_the_launcher)
    else:
        grades = [Grade(math.nan, "?"), Grade(math.inf, "?")]
        monkeypatch.setattr(type(KINDS[kind]), "grade", lambda *_: grades)
    sampler.grade(group)
    assert (group.uncertain, group.trajectories, group.is_informative) == (2, [], False)


def test_answers_without_an_end_and_cheats_are_worth_nothing_and_counted(tasks: Path) -> None:
    (item,) = read_tasks(tasks, "train", ["tiny"])[:1]
    texts = {"right": item.answer, "asm": 'asm("");\n}', "empty": "", "overlong": item.answer}
    group = Group(
        Question(0, item, PROMPT), [answer(text, ended=name != "overlong") for name, text in texts.items()]
    )
    sampler_of(open_grader(tasks, (), 1, quiet=True), num_samples=4).grade(group)
    right, *others = group.trajectories
    assert right.reward == 1
    assert [each.reward for each in others] == [0, 0, 0]
    outcomes = rollout_figures([group])["outcomes"]
    assert outcomes["no end"] == 1
    assert sum(outcomes.values()) == len(outcomes) == 4  # each by a name of its own


@pytest.mark.slow
@pytest.mark.parametrize("file", ["rollouts.jsonl", "verdicts", "log"])
def test_a_full_disk_ends_the_run_which_goes_on_later(
    file: str, settings: RlSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the very weights of a run that had room."""
    mine = shutil.copytree(settings.tasks, tmp_path / "mine", ignore=shutil.ignore_patterns("*.jsonl"))
    whole = dataclasses.replace(settings, num_iterations=2, save_every=1)
    died = dataclasses.replace(whole, out=tmp_path / "died", tasks=mine)
    train_by_rewards(whole)
    append, left = JsonlFile.append, 15

    def full(this: JsonlFile, record: object) -> None:
        nonlocal left
        left -= file in this.path.name
        if left < 0:
            raise this._cannot_write(os.strerror(errno.ENOSPC))
        append(this, record)

    left = {"rollouts.jsonl": 15, "verdicts": 3, "log": 4}[file]
    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr(JsonlFile, "append", full)
        train_by_rewards(died)
    train_by_rewards(died)
    assert_same_weights(died.out, whole.out)
    ours, theirs = (list(read_jsonl(each.out / "rollouts.jsonl")) for each in (died, whole))
    assert ours == theirs


# ---- groups, back-pressure, workers -----------------------------------------------------------------------


class ScriptedSampler:
    """Groups with these rewards, question by question."""

    decode_seconds = 0.0

    def __init__(self, rewards: dict[int, tuple[float, float]]) -> None:
        self.rewards, self.asked = rewards, []

    def groups(self, _: object, questions: list[Question]) -> list[Group]:
        self.asked.append([question.index for question in questions])
        return [
            Group(
                question,
                [
                    dataclasses.replace(answer(""), grade=Grade(reward, ""))
                    for reward in self.rewards.get(question.index, (0.0, 0.0))
                ],
            )
            for question in questions
        ]


@pytest.mark.parametrize(
    ("rewards", "asked", "found"),
    [
        ({0: (0, 1), 1: (0, 0.1)}, [[0, 1]], 2),
        ({1: (0, 1), 3: (1, 0)}, [[0, 1], [2], [3]], 2),
        ({2: (0, 1)}, [[0, 1], [2, 3], [4], [5]], 1),
        ({}, [[0, 1], [2, 3], [4, 5], [6, 7]], 0),
    ],
)
def test_groups_of_equal_rewards_are_asked_for_again_three_times(
    rewards: dict[int, tuple[float, float]], asked: list[list[int]], found: int
) -> None:
    sampler = ScriptedSampler(rewards)
    tasks = [(item_of("tiny"), PROMPT)] * 3
    batches = RolloutBatches(tasks, sampler, SINGLE_PROCESS, LoaderState(), num_prompts=2, seq_len=16, seed=0)
    batches.make_engine = lambda: None
    batch = next(batches)
    assert (sampler.asked, batch.groups) == (asked, found)
    assert batch.state.prompts == sum(map(len, asked))


class QuickEngine:
    """Answers at once, and counts."""

    def __init__(self) -> None:
        self.answered = 0

    def complete_many(self, requests: Iterable[GenerationRequest], _: object) -> Iterator[RequestResult]:
        for number, _request in enumerate(requests):
            self.answered += 1
            token = TokenLogprob(3, -0.1, ())
            yield RequestResult(number, (CompletionOutput("", (3,), "end", (token,)),) * 2)


def test_sampling_waits_for_grading_which_goes_on_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sampler, graded, most = QuickEngine(), sampler_of(num_samples=2), 0, 0
    may_grade = threading.Semaphore(0)

    def grade(group: Group) -> None:
        nonlocal graded, most
        assert may_grade.acquire(timeout=30)
        most = max(most, engine.answered - graded)
        graded += 1
        group.trajectories = []

    monkeypatch.setattr(sampler, "grade", grade)
    questions = [Question(index, item_of("tiny"), PROMPT) for index in range(40)]
    worker = threading.Thread(target=sampler.groups, args=(engine, questions))
    worker.start()
    for _ in range(5):
        may_grade.release()
    worker.join(0.5)
    assert worker.is_alive()  # it waits: nobody grades
    assert engine.answered <= 5 + rollouts._WAITING_GROUPS + 1
    may_grade.release(40)
    worker.join(30)
    assert (engine.answered, graded) == (40, 40)
    assert most <= rollouts._WAITING_GROUPS + 1


@pytest.mark.parametrize(("cores", "compilers", "workers"), [(8, 3, 3), (2, 50, 2), (4, 0, 1)])
def test_compilers_are_as_many_as_cores_and_memory_allow(
    cores: int, compilers: int, workers: int, settings: RlSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = int((compilers + 0.5) * COMPILE_LIMITS.memory_bytes)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    monkeypatch.setattr(run, "available_cores", lambda: cores)
    tasks = RlTasks(settings, open_run(Path(settings.init_from)))
    assert tasks.sampler.grader._workers == workers


# ---- kill -9 ----------------------------------------------------------------------------------------------

KILLED = """
import json, os, signal, sys
from cpplm.core.jsonl import JsonlFile
from cpplm.core.settings import from_dict
from cpplm.core.storage import Storage
from cpplm.post_training.rl.run import train_by_rewards
from cpplm.post_training.rl.settings import RlSettings

settings = from_dict(RlSettings, json.loads(sys.argv[1]), where="test")
left = 0

def counted(real):
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return call

for owner, names in ((Storage, ("open_write", "write", "delete", "sync")), (JsonlFile, ("append",))):
    for name in names:
        setattr(owner, name, counted(getattr(owner, name)))
kills = 0
while True:
    child = os.fork()
    if not child:
        left = kills
        train_by_rewards(settings)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    kills += 1
print(kills)
"""


@pytest.mark.slow
def test_a_kill_at_each_write_changes_no_bit(settings: RlSettings, tmp_path: Path) -> None:
    """Each session is killed one write later than the one before, until one comes to the end."""
    mine = shutil.copytree(settings.tasks, tmp_path / "mine", ignore=shutil.ignore_patterns("*.jsonl"))
    whole = dataclasses.replace(settings, num_iterations=2, save_every=1, num_samples=3)
    killed = dataclasses.replace(whole, out=tmp_path / "killed", tasks=mine)
    train_by_rewards(whole)
    result = subprocess.run(
        [sys.executable, "-c", KILLED, json.dumps(to_dict(killed), default=str)],
        capture_output=True, text=True, check=True, timeout=3000, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert int(result.stdout) > 20
    assert_same_weights(killed.out, whole.out)
    ours, theirs = (list(read_jsonl(each.out / "rollouts.jsonl")) for each in (killed, whole))
    assert ours == theirs
