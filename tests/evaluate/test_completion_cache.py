"""Answers are kept as they come, asked for once, and survive a kill."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.completion_cache import MAX_COMPLETION_CHARS, open_completion_cache
from cpplm.evaluate.models.code_model import CodePrompt, Completion
from cpplm.generate.settings import SamplingSettings
from tests.evaluate.scripted import Scripted

GREEDY = SamplingSettings(temperature=0, top_k=0)
ODD = "\x00\udcff\ufffd\u2028\r\n\\"  # what a model may write, and JSON Lines have to carry


class Echo(Scripted):
    """Writes its prompt, and the number of the sample."""

    def __init__(self, version: int = 1) -> None:
        super().__init__(
            lambda asked: "FAILED" if asked.prefix == "long" else [f"{asked.prefix} {n}" for n in range(9)]
        )
        self.identity = {"version": version}


def write(folder: Path | None, model: Echo, prefixes: Sequence[str], **options: Any) -> list[list[str]]:
    sampling = options.pop("sampling", GREEDY)
    requests = [CodePrompt(prefix, "suffix") for prefix in prefixes]
    with open_completion_cache(folder, model) as answers:
        found = dict(answers.generate(requests, sampling, **options))
    return [[sample.text for sample in found[number]] for number in range(len(prefixes))]


def test_an_answer_is_asked_for_once(tmp_path: Path) -> None:
    model = Echo()
    assert write(tmp_path, model, ["a", ODD]) == [["a 0"], [f"{ODD} 0"]]
    again = Echo()
    assert write(tmp_path, again, [ODD, "b", "a"]) == [[f"{ODD} 0"], ["b 0"], ["a 0"]]
    assert [request.prefix for request in again.asked] == ["b"]


def test_another_question_is_another_answer(tmp_path: Path) -> None:
    write(tmp_path, Echo(), ["a"])
    for model, options in (
        (Echo(version=2), {}),
        (Echo(), {"sampling": SamplingSettings(temperature=0, top_k=0, seed=1)}),
        (Echo(), {"rule": "line", "stop": lambda text: "\n" in text}),
    ):
        write(tmp_path, model, ["a"], **options)
        assert len(model.asked) == 1
    with open_completion_cache(tmp_path, model := Echo()) as answers:
        list(answers.generate([CodePrompt("a")], GREEDY))  # without the suffix
    assert len(model.asked) == 1
    blind = Echo()
    blind.supports_fim = False
    write(tmp_path, blind, ["a"])
    assert len(blind.asked) == 1


def test_more_samples_replace_fewer_and_serve_for_them(tmp_path: Path) -> None:
    one, three, two = Echo(), Echo(), Echo()
    write(tmp_path, one, ["a"])
    assert write(tmp_path, three, ["a"], num_samples=3) == [["a 0", "a 1", "a 2"]]
    assert len(three.asked) == 1
    assert write(tmp_path, two, ["a"], num_samples=2) == [["a 0", "a 1"]]
    assert two.asked == []


def test_failures_are_asked_again(tmp_path: Path) -> None:
    write(tmp_path, Echo(), ["long", "a"])
    again = Echo()
    with open_completion_cache(tmp_path, again) as answers:
        found = dict(answers.generate([CodePrompt("long", "suffix"), CodePrompt("a", "suffix")], GREEDY))
    assert [request.prefix for request in again.asked] == ["long"]
    assert found[0] == [Completion("", "FAILED")]


def test_gigantic_answers_are_cut(tmp_path: Path) -> None:
    for _ in range(2):
        ((text,),) = write(tmp_path, Echo(), ["x" * 10 * MAX_COMPLETION_CHARS])
        assert text == "x" * MAX_COMPLETION_CHARS
    assert (
        sum(path.stat().st_size for path in (tmp_path / "completions").iterdir()) < 2 * MAX_COMPLETION_CHARS
    )


def test_what_is_cut_of_a_prompt_is_counted_and_no_other_question(tmp_path: Path) -> None:
    model = Echo()
    with open_completion_cache(tmp_path, model) as answers:
        list(
            answers.generate(
                [CodePrompt("a"), CodePrompt("b"), CodePrompt("far a"), CodePrompt("c", "d")], GREEDY
            )
        )
        assert answers.truncation.figures() == {"truncated_prompts": 1 / 4, "truncated_text": 4 / 9}
        assert (
            "1 of 4 prompts were cut to fit the context: 44.4% of all text" in answers.truncation.lines()[0]
        )
        assert [request.prefix for request in model.asked].count("far a") == 0
        asked = len(model.asked)
        assert dict(answers.generate([CodePrompt("far b")], GREEDY)) == {0: [Completion("b 0")]}
        assert len(model.asked) == asked


def test_a_torn_line_is_dropped_and_a_damaged_one_named(tmp_path: Path) -> None:
    write(tmp_path, Echo(), ["a", "b"])
    (path,) = (tmp_path / "completions").iterdir()
    assert json.loads(path.read_text().splitlines()[0]) == {"model": {"version": 1}}
    whole = path.read_bytes()
    for cut in (0, 1, len(whole) - 20, len(whole)):  # killed while it wrote
        path.write_bytes(whole[:cut])
        assert write(tmp_path, Echo(), ["a", "b"]) == [["a 0"], ["b 0"]]
        again = Echo()
        write(tmp_path, again, ["a", "b"])
        assert again.asked == []
    lines = whole.splitlines(keepends=True)
    for damage in (b"[1]\n", b"{}\n", b"nonsense\n", b'{"key": "k", "samples": 3}\n'):
        path.write_bytes(lines[0] + damage + lines[1])
        with pytest.raises(UserError, match=r"jsonl:2 is no"):
            write(tmp_path, Echo(), ["a"])


def test_what_was_written_before_an_interrupt_is_there(tmp_path: Path) -> None:
    with open_completion_cache(tmp_path, Echo()) as answers:
        written = answers.generate([CodePrompt(prefix, "suffix") for prefix in "abcdefghij"], GREEDY)
        for _ in range(3):
            next(written)
        (path,) = (tmp_path / "completions").iterdir()
        copy = path.read_bytes()  # what a process that is killed now leaves
    path.write_bytes(copy)
    model = Echo()
    write(tmp_path, model, list("abcdefghij"))
    assert len(model.asked) == 7
