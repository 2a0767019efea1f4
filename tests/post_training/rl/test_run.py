"""Runs of `cpplm rl`: what they learn, that they go on exactly, and what they refuse."""

import dataclasses
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.core.jsonl import read_jsonl
from cpplm.core.storage import Storage
from cpplm.post_training.rl.log import EntropyWatch
from cpplm.post_training.rl.prompts import TaskPrompt
from cpplm.post_training.rl.rft import rejection_sampling, sample_rollouts, train_on_rollouts
from cpplm.post_training.rl.rollouts import Group, Question, Trajectory
from cpplm.post_training.rl.run import train_by_rewards
from cpplm.post_training.rl.settings import ObjectiveSettings, RlSettings
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune
from cpplm.tasks.build import open_grader
from cpplm.tasks.item import TaskItem, read_tasks, write_tasks
from cpplm.tasks.kind import Answer
from cpplm.train.checkpoint.format import open_run
from cpplm.train.report.html import write_page
from tests.commands import assert_one_line_error, cpplm, reported, start_cpplm
from tests.post_training.conftest import write
from tests.post_training.rl.test_rollouts import item_of, sampler_of
from tests.system.test_kill import assert_same, finish
from tests.train.records import records
from tests.train.test_pretrain import StopAt, assert_same_weights, weights


def losses(run: Path) -> list[tuple[float, float]]:
    return [(record["loss"], record["gradient_norm"]) for record in records(run, "step")]


@pytest.mark.usefixtures("few_cheats")
def test_a_run_and_what_it_leaves(settings: RlSettings) -> None:
    arguments = (
        "rl", settings.tasks, "--init_from", settings.init_from, "--out", settings.out, "--num_prompts", 2,
        "--num_samples", 6, "--num_iterations", 2, "--lr_scale", 0.2, "--audit_items", 1, "--eval_every", 2,
    )  # fmt: skip
    _, figures = reported(*arguments)
    assert figures["step"] == 2
    checkpoint = open_run(settings.out)
    assert (checkpoint.stage, checkpoint.parent["stage"], checkpoint.supports_chat) == ("rl", "sft", True)
    steps = records(settings.out, "rollouts")
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert {"entropy", "importance_weight", "truncated", "mismatch", "distinct", "length", "no_verdict",
                "decode_seconds", "grade_seconds", "learn_seconds", "staleness"} <= set(step)  # fmt: skip
        assert 0 < step["distinct"] <= 1 < step["length"]
        assert 0 < step["reward"] < 1
        assert step["entropy"] > 0
        assert step["mismatch"] < 1e-3
        assert step["importance_weight"] == pytest.approx(1, abs=0.05)
        assert {each["which"] for each in step["examples"]} == {"best", "worst", "strangest"}
    answers = list(read_jsonl(settings.out / "rollouts.jsonl"))
    assert len(answers) == sum(step["answers"] for step in steps)
    assert len(records(settings.out, "validation")) == 2
    assert {"data", "forward", "backward", "optimizer"} <= set(records(settings.out, "memory")[1]["phases"])
    page = write_page(settings.out).read_text()
    assert "Best, worst and strangest answers" in page
    assert page.count("<td>strangest</td>") == 2
    assert answers[0]["key"][:12] in page
    assert all(f"<td>{outcome}</td>" in page for step in steps for outcome in step["outcomes"])
    refused = cpplm(*arguments[:-2], "--num_prompts", 3)
    assert_one_line_error(refused, "num_prompts was 2, is 3")


@pytest.mark.slow
def test_a_bandit_is_solved(base: Path, tmp_path: Path) -> None:
    """A model that says either of two things at random learns the right one; with shuffled rewards not."""
    questions = [f"Mend line {number}." for number in range(8)]
    talk = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]}
        for text in questions
        for answer in ("int a;", "int b;")
    ]
    sft = SftSettings(
        data=(write(tmp_path / "talk.jsonl", *talk),), init_from=str(base), out=tmp_path / "sft",
        num_iterations=40, eval_every=-1, no_compile=True, lr_scale=0.5, device_batch_size=4,
        total_batch_size=512, max_seq_len=128, device_type="cpu", precision="fp32",
    )  # fmt: skip
    fine_tune(sft)
    items = [
        item_of("denoise", prompt=text, answer="int a;", data={"broken": "int c;"}) for text in questions
    ]
    write_tasks(Storage(tmp_path / "tasks", create=True), items, projects={}, headers=[])
    settings = RlSettings(
        tasks=tmp_path / "tasks", init_from=str(sft.out), out=tmp_path / "rl", num_prompts=8, num_samples=8,
        max_new_tokens=12, num_iterations=14, lr_scale=0.4, audit_items=0, device_type="cpu",
        precision="fp32",
    )  # fmt: skip
    train_by_rewards(settings)
    solved = [step["solved"] for step in records(settings.out, "rollouts")]
    assert 0.25 < solved[0] < 0.75
    assert sum(solved[-3:]) / 3 > 0.8
    control = dataclasses.replace(settings, out=tmp_path / "control", shuffle_rewards=True)
    train_by_rewards(control)
    assert records(control.out, "rollouts")[-1]["solved"] < 0.8


def test_a_collapse_of_entropy_is_said_and_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a run that goes on; a step that is poor by chance does nothing."""
    watch = EntropyWatch(0.1, [1.0, 1.2, 0.8, 1.0, 1.0])
    for entropy in (0.9, 0.02, 1.0, 0.9, 0.8):
        watch.add(entropy)
    assert capsys.readouterr().err == ""
    for entropy in (0.1, 0.1, 0.1, 0.1):
        watch.add(entropy)
    assert "has fallen to" in capsys.readouterr().err
    with pytest.raises(UserError, match="nearly always the same"):
        for _ in range(6):
            watch.add(0.05)


def test_resume_is_exact(settings: RlSettings, tmp_path: Path) -> None:
    """Of a run that died twice, whose parent is gone by then."""
    parent = shutil.copytree(settings.init_from, tmp_path / "parent")
    whole = dataclasses.replace(
        settings, init_from=str(parent), objective=ObjectiveSettings(anchor_weight=0.1), save_every=1,
        num_iterations=3,
    )  # fmt: skip
    died = dataclasses.replace(whole, out=tmp_path / "died")
    train_by_rewards(whole)
    for step in (1, 2):
        with pytest.raises(ConnectionAbortedError):
            train_by_rewards(died, [StopAt(step, die=True)])
    shutil.rmtree(parent)
    train_by_rewards(died)
    assert_same_weights(died.out, whole.out)
    assert losses(died.out) == losses(whole.out)
    ours, theirs = (list(read_jsonl(each.out / "rollouts.jsonl")) for each in (died, whole))
    assert ours == theirs
    loader = [open_run(each.out).json("state.json")["loader"] for each in (died, whole)]
    assert loader[0] == loader[1]
    assert loader[0]["prompts"] >= 6


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", ["tokens", "constant"])
def test_two_ranks_are_one(settings: RlSettings, normalizer: str, tmp_path: Path) -> None:
    for ranks in (1, 2):
        finish(
            start_cpplm(
                "rl", settings.tasks, "--init_from", settings.init_from, "--out", tmp_path / str(ranks),
                "--num_prompts", 4, "--num_samples", 6, "--num_iterations", 3, "--audit_items", 0,
                "--device_type", "cpu", "--precision", "fp32", "--anchor_weight", 0.1,
                "--normalizer", normalizer, ranks=ranks,
            )
        )  # fmt: skip
    one, two = losses(tmp_path / "1"), losses(tmp_path / "2")
    assert two == [pytest.approx(each, rel=1e-4) for each in one]
    answers = list(read_jsonl(tmp_path / "1" / "rollouts.jsonl"))
    shared = [
        record
        for name in ("rollouts.jsonl", "rollouts_1.jsonl")
        for record in read_jsonl(tmp_path / "2" / name)
    ]
    assert sorted(each["text"] for each in shared) == sorted(each["text"] for each in answers)


@pytest.mark.slow
def test_killed_runs_end_with_the_same_weights(settings: RlSettings, tmp_path: Path) -> None:
    def start(out: Path) -> subprocess.Popen[str]:
        return start_cpplm(
            "rl", settings.tasks, "--init_from", settings.init_from, "--out", out, "--num_prompts", 2,
            "--num_samples", 6, "--num_iterations", 50, "--save_every", 1, "--audit_items", 0,
            "--device_type", "cpu", "--lr_scale", 0.2,
        )  # fmt: skip

    finish(start(tmp_path / "alone"))
    chance, killed = random.Random(0), 0
    for _ in range(8):
        process = start(tmp_path / "killed")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(chance.uniform(2, 5))
        process.kill()
        process.communicate()
        killed += 1
    finish(start(tmp_path / "killed"))
    assert killed == 8
    assert_same(tmp_path / "alone", tmp_path / "killed")
    ours, theirs = (list(read_jsonl(tmp_path / name / "rollouts.jsonl")) for name in ("killed", "alone"))
    assert ours == theirs


def test_without_an_informative_group_nothing_changes(settings: RlSettings, base: Path) -> None:
    """A model that is never right: no step of the optimizer, whatever its moments are."""
    never = dataclasses.replace(
        settings, init_from=str(base), num_iterations=1, max_seq_len=160, num_samples=2
    )
    train_by_rewards(never)
    (step,) = records(never.out, "rollouts")
    assert step["uninformative_groups"] == step["groups"] == 4 * never.num_prompts  # three times more
    assert step["tokens"] == 0
    for name, tensor in weights(base).items():
        assert torch.equal(tensor, weights(never.out)[name])


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", ["tokens", "constant"])
def test_passes_make_no_difference(settings: RlSettings, normalizer: str, tmp_path: Path) -> None:
    one_step = dataclasses.replace(
        settings, num_iterations=1, objective=ObjectiveSettings(normalizer=normalizer, kl=0.1)
    )
    norms = []
    for rows in (1, 3, 16):
        run = dataclasses.replace(one_step, out=tmp_path / str(rows), device_batch_size=rows)
        train_by_rewards(run)
        norms.append(losses(run.out)[0])
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert norms[2] == pytest.approx(norms[0], rel=1e-5)


def test_one_update_is_the_same_for_both_objectives(settings: RlSettings, tmp_path: Path) -> None:
    for objective in ("reinforce", "ppo"):
        run = dataclasses.replace(
            settings, out=tmp_path / objective, num_iterations=1,
            objective=ObjectiveSettings(objective=objective),
        )  # fmt: skip
        train_by_rewards(run)
    assert losses(tmp_path / "ppo") == [
        pytest.approx(each, rel=1e-4) for each in losses(tmp_path / "reinforce")
    ]


@pytest.mark.slow
def test_several_updates_with_everything_on(settings: RlSettings) -> None:
    objective = ObjectiveSettings(
        objective="gspo", advantage="grpo", kl=0.05, anchor_weight=0.1, updates_per_rollout=2
    )
    train_by_rewards(dataclasses.replace(settings, objective=objective))
    kl = [step["kl"] for step in records(settings.out, "rollouts")]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[-1] > 1e-6


def test_rejection_sampling(settings: RlSettings, tmp_path: Path) -> None:
    """Both halves, the first of which was interrupted, are the method as a whole."""
    rft = dataclasses.replace(settings, method="rft", num_iterations=3, no_compile=True)
    rejection_sampling(rft)
    halves = dataclasses.replace(rft, out=tmp_path / "halves")
    sample_rollouts(dataclasses.replace(halves, num_iterations=1), minutes=-1)
    figures = sample_rollouts(halves, minutes=-1)
    assert figures == {"tasks": 6, "answers": 36, "solved": figures["solved"]}
    ours, theirs = (list(read_jsonl(each / "rollouts.jsonl")) for each in (halves.out, rft.out))
    for one, other in zip(ours, theirs, strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}
    learned = list(read_jsonl(rft.out / "right.jsonl"))
    right = {(each["key"], tuple(each["ids"])) for each in theirs if each["reward"] == 1}
    assert 0 < len(learned) <= len(right)
    assert all(sum(row["group"] == key for row in learned) <= 4 for key in {row["group"] for row in learned})
    train_on_rollouts(dataclasses.replace(halves, out=tmp_path / "learned"), (halves.out / "rollouts.jsonl",))
    assert_same_weights(tmp_path / "learned", rft.out)
    assert open_run(rft.out).stage == "rl"


def test_no_right_answer_is_said(settings: RlSettings, base: Path) -> None:
    with pytest.raises(UserError, match=r"no answer in .* is right"):
        rejection_sampling(
            dataclasses.replace(settings, init_from=str(base), num_iterations=1, max_seq_len=160)
        )


def test_verdicts_that_are_not_certain_leave_the_group(tasks: Path) -> None:
    """A header that this machine lacks says nothing about an answer."""
    (item,) = read_tasks(tasks, "train", ["tiny"])[:1]
    lacking = dataclasses.replace(
        item, data={**item.data, "before": "#include <no_such_header.h>\n" + item.data["before"]}
    )
    grader = open_grader(tasks, (), 1, quiet=True)
    prompt = TaskPrompt((2, 70), 3)
    for task, uncertain in ((item, 0), (lacking, 2)):
        group = Group(Question(0, task, prompt))
        sampler = sampler_of(grader, num_samples=2)
        group.trajectories = [_right(task)] * 2
        sampler.grade(group)
        assert (group.uncertain, len(group.trajectories)) == (uncertain, 2 - uncertain)
        assert not group.is_informative


def _right(item: TaskItem) -> Trajectory:
    return Trajectory(
        (2, 70, 71, 3), (False, False, True, True), (-0.1, -0.2), Answer(item.answer), ended=True
    )
