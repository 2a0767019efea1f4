"""A model's completions, stored as they come: an evaluation that was killed goes on where it was.

    FOLDER/completions/HASH.jsonl                        one file per model; HASH is of its identity
        {"model": {...}}                              the identity
        {"key": "...", "samples": ["...", "..."]}     one line per request, handed to the system at once

The key is a hash of the request, whether its suffix is seen, the sampling and the rule that ends a text.
Sample i depends on these alone, so answers to more samples than are wanted serve as well. What failed is not
kept: it is asked again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.jsonl import ResumableJsonl
from cpplm.core.locking import exclusive_lock
from cpplm.core.storage import sha256
from cpplm.evaluate.models.code_model import CodeModel, CodePrompt, Completion
from cpplm.generate.sequence import StopCondition
from cpplm.generate.settings import SamplingSettings

FOLDER = "completions"
MAX_COMPLETION_CHARS = 1 << 17
"""Characters of a sample that are kept, more than are ever judged; the rest is cut."""


@dataclass
class Truncation:
    """The share of the prompts that was cut, as the context is too short."""

    prompts: int = 0
    truncated: int = 0
    """Prompts of which something was left out."""
    characters: int = 0
    left_out: int = 0
    """Characters, of those of all prompts."""

    def add(self, request: CodePrompt, fitted: CodePrompt) -> None:
        """Count a prompt and what is left of it."""
        size, left = (len(each.prefix) + len(each.suffix or "") for each in (request, fitted))
        self.prompts += 1
        self.truncated += left < size
        self.characters += size
        self.left_out += size - left

    def figures(self) -> dict[str, float]:
        """Shares, for `--json`."""
        return {
            "truncated_prompts": self.truncated / max(self.prompts, 1),
            "truncated_text": self.left_out / max(self.characters, 1),
        }

    def lines(self) -> list[str]:
        """For tables: a sentence, or nothing."""
        share = self.figures()["truncated_text"]
        text = (
            f"{self.truncated} of {self.prompts} prompts were cut to fit the context: {share:.1%} of all text"
        )
        return [text] if self.truncated else []


class CompletionCache:
    """Completions by a model, each asked for once.

    `truncation` counts the prompts that were cut to fit, `failed` why there is no sample, and how often.
    """

    def __init__(self, model: CodeModel, file: ResumableJsonl | None = None) -> None:
        """Use the completions in a file; None keeps them as long as this lasts.

        Raises:
            UserError: a record of the file is no answer of a model.
        """
        self._model, self._file = model, file or ResumableJsonl(None, None)
        self._samples: dict[str, list[str]] = {}
        self.truncation, self.failed = Truncation(), Counter[str]()
        for number, record in enumerate(self._file.records, start=2):
            try:
                self._samples[record["key"]] = list(map(str, record["samples"]))
            except (KeyError, TypeError) as error:
                where = f"{self._file.path}:{number}"
                raise UserError(f"{where} is no answer of a model", fix="Remove that line.") from error

    def generate(
        self,
        requests: Sequence[CodePrompt],
        sampling: SamplingSettings,
        *,
        num_samples: int = 1,
        rule: str = "",
        stop: StopCondition | None = None,
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Complete prompts; stored samples come first, the rest as the model writes them.

        Args:
            requests: what is to be written.
            sampling: how.
            num_samples: for each request.
            rule: names what `stop` does, as part of the key; empty without one.
            stop: ends a text that has said all that is wanted.
        """
        fitted = [self._model.fit(request, sampling.max_new_tokens) for request in requests]
        for pair in zip(requests, fitted, strict=True):
            self.truncation.add(*pair)
        keys = [_key(request, sampling, rule, self._model) for request in fitted]
        missing = [number for number, key in enumerate(keys) if len(self._samples.get(key, ())) < num_samples]
        for number in sorted(set(range(len(keys))) - set(missing)):
            yield number, [Completion(text) for text in self._samples[keys[number]][:num_samples]]
        if not missing:
            return
        uncached = [fitted[number] for number in missing]
        for place, samples in self._model.generate(uncached, sampling, num_samples=num_samples, stop=stop):
            shortened = [Completion(sample.text[:MAX_COMPLETION_CHARS], sample.failed) for sample in samples]
            self.failed.update(sample.failed for sample in samples if sample.failed)
            if not any(sample.failed for sample in samples):
                key, texts = keys[missing[place]], [sample.text for sample in shortened]
                self._samples[key] = texts
                self._file.append({"key": key, "samples": texts})
            yield missing[place], shortened


@contextmanager
def open_completion_cache(folder: Path | None, model: CodeModel) -> Iterator[CompletionCache]:
    """The answers of a model in `folder`, for one process at a time; None keeps them as long as this lasts.

    Raises:
        UserError: the file is damaged, or another process writes it.
    """
    if folder is None:
        yield CompletionCache(model)
        return
    path = folder / FOLDER / f"{sha256(_json(model.identity))[:32]}.jsonl"
    header = {"model": model.identity}
    with exclusive_lock(path), ResumableJsonl(path, header, damaged="refuse") as file:
        yield CompletionCache(model, file)


def _key(request: CodePrompt, sampling: SamplingSettings, rule: str, model: CodeModel) -> str:
    what = {**asdict(request), **asdict(sampling), "rule": rule, "supports_fim": model.supports_fim}
    if request.suffix is not None:
        what["fim_order"] = model.fim_order
    if model.valid:
        what["valid"] = model.valid
    return sha256(_json(what))


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
