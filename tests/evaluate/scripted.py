"""A model that answers from a function, and remembers what it was asked; files of problems."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpplm.core.errors import UserError
from cpplm.evaluate.models.code_model import CodePrompt, Completion
from cpplm.evaluate.problems import Problem
from cpplm.generate.project.context import ContextSource
from cpplm.generate.settings import SamplingSettings

Answer = Callable[[CodePrompt], str | list[str]]


class Scripted:
    """Gives the same answer to each sample, or one to each; an answer that begins with FAILED is none."""

    max_context = 10**6

    def __init__(self, answer: Answer, name: str = "scripted", supports_fim: bool = True) -> None:
        self.name, self.identity, self.supports_fim = name, {"name": name}, supports_fim
        self.fim_order, self.valid, self.watches_syntax = "spm", "", False
        self.answer = answer
        self.asked: list[CodePrompt] = []
        self.sampling: SamplingSettings | None = None

    def fit(self, request: CodePrompt, new_tokens: int, source: ContextSource | None = None) -> CodePrompt:
        """Leave out what is marked as far away."""
        context = "" if source is None else source(1000, len(request.prefix))
        return CodePrompt(context + request.prefix.removeprefix("far "), request.suffix)

    def token_ends(self, text: str) -> NDArray[np.int64]:
        return np.arange(1, len(text.encode()) + 1)

    def score_middles(self, requests: Sequence[CodePrompt], middles: Sequence[str]) -> Iterator[float]:
        return (8.0 * len(each) for each in middles)

    def generate(
        self, requests: Sequence[CodePrompt], sampling: SamplingSettings, *, num_samples: int = 1, **_: Any
    ) -> Iterator[tuple[int, list[Completion]]]:
        self.sampling = sampling
        for number in reversed(range(len(requests))):  # any order is allowed
            self.asked.append(requests[number])
            answer = self.answer(requests[number])
            texts = [answer] * num_samples if isinstance(answer, str) else answer[:num_samples]
            yield number, [Completion(*("", t) if t.startswith("FAILED") else (t,)) for t in texts]

    def score(self, texts: Sequence[str], **_: Any) -> Iterator[Any]:
        raise UserError("cannot say")


def write_problems(path: Path, problems: Sequence[Problem]) -> Path:
    path.write_text("".join(json.dumps(asdict(problem)) + "\n" for problem in problems))
    return path
