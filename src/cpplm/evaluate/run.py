"""Evaluate a trained run: bits per byte and C++ problems, kept in the run folder.

`evaluation.json` holds each figure with what it was measured with. Asking again for the same checkpoint and
the same settings answers from it; the programs that a model writes are not compiled twice.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from cpplm.batches.loader import validation_batches
from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.settings import to_dict
from cpplm.core.shards import ShardReader
from cpplm.core.storage import Storage, sha256
from cpplm.evaluate.cpp import CppEvalSettings, Generate, evaluate_problems
from cpplm.evaluate.problems import load_problems
from cpplm.generate.engine import Engine
from cpplm.generate.load import ModelSource, load_engine
from cpplm.generate.sampling import SamplingSettings
from cpplm.train.validation import validate

FILE = "evaluation.json"


@dataclass(frozen=True)
class BpbSettings:
    """What bits per byte are measured on."""

    data_dir: str
    """Corpus whose validation documents are read: a folder or bucket URL."""
    eval_tokens: int = -1
    """Read at most this many tokens (-1 = all)."""
    eval_batch_size: int = 8
    """Rows of the model's context length per forward pass."""

    def __post_init__(self) -> None:
        if self.eval_tokens == 0 or self.eval_tokens < -1:
            raise UserError(f"--eval_tokens {self.eval_tokens}", fix="Use a positive number, or -1 for all.")
        if self.eval_batch_size < 1:
            raise UserError(f"--eval_batch_size {self.eval_batch_size} must be at least 1")


@dataclass(frozen=True)
class BpbCommand:
    """Settings of `cpplm evaluate bpb`."""

    model: ModelSource
    bpb: BpbSettings


@dataclass(frozen=True)
class CppCommand:
    """Settings of `cpplm evaluate cpp`."""

    model: ModelSource
    cpp: CppEvalSettings = field(default_factory=CppEvalSettings)


@dataclass(frozen=True)
class EvaluateCommand:
    """Settings of `cpplm evaluate`."""

    model: ModelSource
    bpb: BpbSettings
    cpp: CppEvalSettings = field(default_factory=CppEvalSettings)


class Evaluation:
    """One model under evaluation, with the results that are already there."""

    def __init__(self, source: ModelSource) -> None:
        self.engine, checkpoint = load_engine(source)
        self.step = checkpoint.step
        self._model_hash = checkpoint.files["model.safetensors"]["sha256"]
        self._storage = Storage(source.run)

    def _once(self, name: str, settings: dict[str, Any], measure: Any) -> dict[str, Any]:
        """The stored result of an equal measurement, or a new one, stored."""
        results = self._storage.read_json(FILE) if self._storage.exists(FILE) else {}
        with_what = {"model": self._model_hash, "precision": str(self.engine.model.compute_dtype), **settings}
        old = results.get(name)
        if old is not None and old["measured_with"] == with_what:
            return old
        begin = time.perf_counter()
        result: dict[str, Any] = measure()
        result |= {
            "step": self.step,
            "measured_with": with_what,
            "seconds": round(time.perf_counter() - begin, 2),
        }
        self._storage.write_json(FILE, {**results, name: result})
        return result

    def bits_per_byte(self, settings: BpbSettings) -> dict[str, Any]:
        """Bits per byte of the validation documents.

        Raises:
            UserError: no corpus there.
        """
        reader = ShardReader(settings.data_dir)

        def measure() -> dict[str, Any]:
            model, tokenizer = self.engine.model, self.engine.tokenizer
            seq_len, rows = model.config.max_seq_len, settings.eval_batch_size
            batches = validation_batches(
                reader,
                tokenizer,
                batch_size=rows,
                seq_len=seq_len,
                max_tokens=None if settings.eval_tokens < 0 else settings.eval_tokens,
            )
            with progress_bar(None, "bits per byte", "token", unit_scale=True) as bar:

                def counted() -> Any:
                    for batch in batches:
                        yield batch
                        bar.update(rows * seq_len)

                return asdict(validate(model, counted(), torch.from_numpy(tokenizer.token_bytes)))

        what = {"corpus": reader.fingerprint(), "eval_tokens": settings.eval_tokens}
        return self._once("bpb", what, measure)

    def cpp(self, settings: CppEvalSettings) -> dict[str, Any]:
        """Compile rate and pass rate on C++ problems.

        Raises:
            UserError: no sandbox or compiler here, or a malformed problem file.
        """

        def measure() -> dict[str, Any]:
            report = evaluate_problems(completer(self.engine), settings, problems=problems)
            return {**report.figures(), "table": report.table(), "details": report.details()}

        problems = load_problems(settings.problems)
        what = to_dict(settings) | {"workers": 0, "problems": sha256(repr(problems).encode())}
        return self._once("cpp", what, measure)


def completer(engine: Engine) -> Generate:
    """The engine as the function that `evaluate_problems` calls."""

    def complete(
        prompts: list[str],
        *,
        num_samples: int,
        temperature: float,
        top_k: int,
        max_new_tokens: int,
        seed: int,
    ) -> list[list[str]]:
        sampling = SamplingSettings(max_new_tokens, temperature, top_k, seed)
        results = []
        with progress_bar(len(prompts), "completing problems", "problem") as bar:
            for prompt in prompts:
                fits = len(engine.tokenizer.encode(prompt)) + 1 < engine.model.config.max_seq_len
                # A prompt longer than the context gets an empty answer: a failure, not a crash.
                completions = engine.complete(prompt, sampling, num_samples) if fits else []
                results.append([completion.text for completion in completions] or [""] * num_samples)
                bar.update(1)
        return results

    return complete
