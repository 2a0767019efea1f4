"""What is sampled is what is trained on: tokens, probabilities, ends, results of tools."""

import copy
import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from cpplm.generate.engine import Engine
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.post_training.rl.batches import RolloutBatch, pack_groups
from cpplm.post_training.rl.policy import decoding_engine
from cpplm.post_training.rl.prompts import TaskPrompt, gold_ids, task_prompt
from cpplm.post_training.rl.rollouts import Group, Question, RolloutSampler
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import Grade
from cpplm.tokenizer.conversations import render_conversation
from cpplm.tokenizer.special_tokens import BOS, EOS, IGNORE_INDEX
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import HITS, PROJECT, talker
from tests.model.features import DECODED, DECODED_MIXED, MIXED, random_model

CONTEXT = 96


def item_of(kind: str, **values: Any) -> TaskItem:
    empty = dict.fromkeys(("level", "group", "project", "license", "prompt", "answer"), "")
    return TaskItem(**{"kind": kind, "split": "train", **empty, **values})


def sampler_of(grader: Grader | None = None, boxes: dict | None = None, num_samples: int = 4, **more):
    settings = {"num_samples": num_samples, "max_new_tokens": 12, "seed": 0, "rows": 16, **more}
    return RolloutSampler(grader, boxes or {}, **settings)


def answered(engine: Engine, sampler: RolloutSampler, questions: list[Question]) -> list[Group]:
    groups = [Group(question) for question in questions]
    list(sampler.answer(engine, groups))
    for group in groups:
        group.trajectories = [
            dataclasses.replace(each, grade=Grade(number % 2, ""))
            for number, each in enumerate(group.trajectories)
        ]
    return groups


def trainer_logprobs(model: Transformer, rows: RolloutBatch) -> torch.Tensor:
    with torch.no_grad():
        return -model.loss(rows.inputs, rows.targets, "none", rows.documents)


@pytest.mark.parametrize(
    "name",
    [*DECODED_MIXED, *(pytest.param(name, marks=pytest.mark.slow) for name in DECODED if name not in MIXED)],
)
def test_engine_and_trainer_agree(name: str, tokenizer: Tokenizer) -> None:
    """In every feature, for answers that share rows, before and after an update of the weights."""
    config = dataclasses.replace(
        (DECODED | DECODED_MIXED)[name],
        vocab_size=tokenizer.vocab_size,
        max_seq_len=CONTEXT,
        short_window="half",
    )
    model, chance = random_model(config), random.Random(name)
    prompts = [
        TaskPrompt((BOS, *(chance.randrange(64, config.vocab_size) for _ in range(length))), EOS)
        for length in (3, 17, 40)
    ]
    for step in range(2):
        engine = decoding_engine(model, tokenizer)
        questions = [Question(step, item_of("tiny"), prompt) for prompt in prompts]
        groups = answered(engine, sampler_of(), questions)
        rows = pack_groups(groups, CONTEXT, "rloo")
        written = rows.targets != IGNORE_INDEX
        assert written.sum() == sum(len(each.logprobs) for group in groups for each in group.trajectories)
        difference = (trainer_logprobs(model, rows) - rows.logprobs)[written].abs().max()
        assert float(difference) < 1e-4
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.02)


def test_any_special_token_ends_an_answer_and_has_its_probability(tokenizer: Tokenizer) -> None:
    """Nothing is forbidden while sampling: a token that is not written would make the others likelier."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, model_dim=32, num_heads=2, num_kv_heads=2, head_dim=16,
        max_seq_len=CONTEXT,
    )  # fmt: skip
    model = random_model(config)
    with torch.no_grad():
        model.lm_head.weight[64:] *= 0.01  # special tokens are likely
    engine, prompt = decoding_engine(model, tokenizer), TaskPrompt((BOS, 70), EOS)
    sampler = sampler_of(num_samples=60)
    (group,) = answered(engine, sampler, [Question(0, item_of("tiny"), prompt)])
    ends = [each.own_ids[-1] for each in group.trajectories if each.own_ids[-1] < 64]
    assert len(set(ends)) > 5
    for each in group.trajectories:
        assert each.ended == (each.own_ids[-1] == EOS)
        assert all(id_ >= 64 for id_ in each.own_ids[:-1])
    (again,) = answered(engine, sampler, [Question(0, item_of("tiny"), prompt)])
    assert [each.ids for each in again.trajectories] == [each.ids for each in group.trajectories]
    (other,) = answered(engine, sampler, [Question(1, item_of("tiny"), prompt)])
    assert [each.ids for each in other.trajectories] != [each.ids for each in group.trajectories]


def test_results_of_tools_are_not_learned(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    model = copy.deepcopy(talker(tokenizer).model)
    item = item_of("ask", prompt="where?", answer="shapes.h", project="shapes")
    prompt = task_prompt(item, tokenizer, chat=True, fim=False)
    box = ToolBox(tmp_path, runs_programs=False)
    sampler = sampler_of(boxes={"shapes": box}, num_samples=8, max_new_tokens=60)
    for _ in range(2):  # before and after an update
        engine = decoding_engine(model, tokenizer)
        (group,) = answered(engine, sampler, [Question(0, item, prompt)])
        _assert_results_are_context(group, tokenizer)
        rows = pack_groups([group], 256, "rloo")
        written = rows.targets != IGNORE_INDEX
        assert float((trainer_logprobs(model, rows) - rows.logprobs)[written].abs().max()) < 1e-4
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.001)


def _assert_results_are_context(group: Group, tokenizer: Tokenizer) -> None:
    each = next(each for each in group.trajectories if each.answer.tool_results == (HITS,) and each.ended)
    assert each.answer.text == "shapes.h"
    result = tokenizer.encode(HITS)
    start = next(at for at in range(len(each.ids)) if list(each.ids[at : at + len(result)]) == result)
    assert not any(each.written[start - 1 : start + len(result) + 1])  # the marks around it neither
    assert sum(each.written) == len(each.logprobs)


def test_gold_answers_are_rows_in_the_form_of_the_prompt(tokenizer: Tokenizer) -> None:
    chat = item_of("fix", prompt="Mend it.", answer="int x;", prefix="a", suffix="b")
    marked = gold_ids(chat, tokenizer, chat=True, fim=True)
    rendered = render_conversation(
        tokenizer,
        {
            "messages": [
                {"role": "user", "content": "Mend it."},
                {"role": "assistant", "content": [{"type": "text", "text": "int x;"}]},
            ]
        },
    )
    assert [max(id_, ~id_) for id_ in marked] == rendered.ids
    assert [int(id_ >= 0) for id_ in marked] == rendered.mask
    prompt = task_prompt(chat, tokenizer, chat=True, fim=True)
    assert list(prompt.ids) == rendered.ids[: len(prompt.ids)]
    assert rendered.ids[-1] == prompt.end_id

    hole = gold_ids(chat, tokenizer, chat=False, fim=True)
    assert hole[-1] == EOS
    assert tokenizer.decode([id_ for id_ in hole[:-1] if id_ >= 0]) == "int x;"
    assert gold_ids(chat, tokenizer, chat=False, fim=False) == []  # such a model cannot be asked
