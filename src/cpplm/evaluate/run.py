"""Evaluate a model and keep the results.

Of a run of ours they lie in its folder, of another model where --out says: `evaluation.json` holds each
figure with what it was measured with. Asking again for the same model and the same settings answers from it.
What is measured piece by piece is kept piece by piece beside it, so that a crash loses none of it:

    bpb_documents.jsonl   bits and bytes of each document
    completions/          what the model wrote (`completion_cache.py`)
    verdicts.jsonl        what became of each program (`judge/result_cache.py`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.jsonl import ResumableJsonl
from cpplm.core.progress import log_info
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage, is_bucket, sha256
from cpplm.cpp.syntax import syntax_valid
from cpplm.evaluate.bits_per_byte import measure_texts, resolve_context
from cpplm.evaluate.completion_cache import open_completion_cache
from cpplm.evaluate.fim.suite import input_hashes, run_fim
from cpplm.evaluate.functional_correctness import evaluate_problems
from cpplm.evaluate.likelihood import measure_likelihood
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.models.code_model import CodeModel
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.evaluate.models.url_model import UrlModel
from cpplm.evaluate.problems import Problem, load_problems
from cpplm.evaluate.settings import (
    BpbSettings,
    CppEvalSettings,
    EvalTarget,
    EvaluatedModel,
    FimEvalSettings,
    LikelihoodSettings,
)
from cpplm.evaluate.texts import fingerprint, read_texts
from cpplm.generate.settings import ModelSource
from cpplm.judge.scoring import SCORING_VERSION, CppReport

FILE = "evaluation.json"
DOCUMENTS = "bpb_documents.jsonl"
_PROBE = "evaluation.probe"  # written and deleted


class Evaluation:
    """One model under evaluation, with the results that are already there."""

    def __init__(self, target: EvalTarget) -> None:
        """Load the model.

        Raises:
            UserError: there is none, or the folder for the results cannot be used.
        """
        self.model: CodeModel = load_model(target.model)
        where = target.out or target.model.run
        self._storage = Storage(where, create=bool(target.out)) if where else None
        if self._storage is None:
            log_info("no --out: the results are printed and not kept")

    @property
    def about(self) -> dict[str, Any]:
        """The model's name and step, for `--json`."""
        step = {"step": self.model.step} if isinstance(self.model, CheckpointModel) else {}
        return {"model": self.model.name, **step}

    def cached(
        self, name: str, settings: dict[str, Any], measure: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """The stored result of an equal measurement, or a new one, stored.

        Raises:
            UserError: it could not be stored; found before anything is measured.
        """
        storage = self._storage
        inputs = {**self.model.identity, **settings}
        old = self._stored().get(name)
        if old is not None and old["inputs"] == inputs:
            return old
        if storage is not None:
            _require_writable(storage)
        begin = time.perf_counter()
        result = measure(inputs) | {
            **self.about,
            "inputs": inputs,
            "seconds": round(time.perf_counter() - begin, 2),
        }
        if storage is not None:
            storage.write_json(FILE, {**self._stored(), name: result})  # others may have written meanwhile
        return result

    def _stored(self) -> dict[str, Any]:
        storage = self._storage
        return storage.read_json(FILE) if storage is not None and storage.exists(FILE) else {}

    @property
    def folder(self) -> Path | None:
        """The local folder for pieces of results; None in a bucket, to which nothing can be appended."""
        local = self._storage is not None and not is_bucket(self._storage.location)
        return Path(self._storage.location) if self._storage and local else None

    def bits_per_byte(self, settings: BpbSettings) -> dict[str, Any]:
        """Bits per byte of texts.

        Raises:
            UserError: no texts there, or the model cannot score.
        """
        texts = read_texts(settings.data_dir, settings.text_column, settings.eval_bytes)
        context = resolve_context(settings, self.model)

        def measure(inputs: dict[str, Any]) -> dict[str, Any]:
            with ResumableJsonl(self.folder and self.folder / DOCUMENTS, inputs) as store:
                return measure_texts(
                    self.model, texts, context=context, context_bytes=settings.context_bytes, store=store
                )

        what = {"texts": fingerprint(texts), "context": context, "context_bytes": settings.context_bytes}
        return self.cached("bpb", what, measure)

    def likelihood(self, settings: LikelihoodSettings) -> dict[str, Any]:
        """The likelihood of the solutions of C++ problems.

        Raises:
            UserError: a malformed problem file, or the model cannot score.
        """
        problems = load_problems(settings.problems)
        what = {"problems": sha256(repr(problems).encode())}
        return self.cached("likelihood", what, lambda _: measure_likelihood(self.model, problems))

    def cpp(self, settings: CppEvalSettings) -> dict[str, Any]:
        """Compile rate and pass rate on C++ problems.

        Raises:
            UserError: no sandbox or compiler here, or a malformed problem file.
        """
        problems = load_problems(settings.problems)

        def measure(_: dict[str, Any]) -> dict[str, Any]:
            with open_completion_cache(self.folder, self.model) as cache:
                report = evaluate_problems(cache, settings, problems=problems, cache_dir=self.folder)
            failed = {"failed_samples": dict(cache.failed)} if cache.failed else {}
            valid = _valid_syntax(problems, report)
            lines = [report.table(), f"valid syntax: {valid:.1%}", *cache.truncation.lines()]
            return {
                **report.figures(),
                **failed,
                **cache.truncation.figures(),
                "syntax_valid": valid,
                "table": "\n".join(lines),
                "details": report.details(),
            }

        what = to_dict(settings) | {
            "workers": 0, "problems": sha256(repr(problems).encode()), "scoring": SCORING_VERSION,
        }  # fmt: skip
        # Several sets of problems keep their results side by side.
        small = settings.problems == CppEvalSettings.problems
        return self.cached("cpp" if small else f"cpp_{Path(settings.problems).stem}", what, measure)

    def fim(self, settings: FimEvalSettings) -> dict[str, Any]:
        """Holes filled, and what became of them.

        Raises:
            UserError: no sandbox or compiler here, or there is nothing to cut.
        """

        def measure(_: dict[str, Any]) -> dict[str, Any]:
            report = run_fim(self.model, settings, folder=self.folder)
            return {**report.figures(), "table": report.table(), "details": report.details()}

        what = to_dict(settings) | {
            "workers": 0, "inputs": input_hashes(settings), "scoring": SCORING_VERSION,
        }  # fmt: skip
        return self.cached("fim", what, measure)


def load_model(named: EvaluatedModel) -> CodeModel:
    """The model that the command line names, whatever kind it is of.

    Raises:
        UserError: there is none, it cannot be loaded, or the server does not answer.
    """
    if named.url:
        return UrlModel.connect(
            named.url, named.model_name, api_key_env=named.api_key_env, supports_fim=named.supports_fim,
            timeout=named.timeout, at_once=named.eval_batch_size,
        )  # fmt: skip
    if named.hf_dir is not None:
        return HfModel.load(
            named.hf_dir, device_type=named.device_type, precision=named.precision, rows=named.eval_batch_size
        )
    source = ModelSource(named.run, named.step, named.device_type, named.precision)
    return CheckpointModel.load(source, rows=named.eval_batch_size)


def _require_writable(storage: Storage) -> None:
    try:
        storage.write(_PROBE, b"")
        storage.delete([_PROBE])
    except UserError as error:
        raise UserError(
            f"the results cannot be kept: {error}", fix="Name a folder that can be written: --out FOLDER."
        ) from error


def _valid_syntax(problems: Sequence[Problem], report: CppReport) -> float:
    """Share of the samples that the parser can read behind their prompts, empty ones never."""
    prompts = {problem.name: problem.prompt for problem in problems}
    return fmean(
        sample.outcome != "empty" and syntax_valid(prompts[sample.problem] + sample.body)
        for sample in report.samples
    )
