"""Completion as an editor's user meets it: which lines of unknown projects are written exactly right?

    python benchmarks/completion.py RUN [RUN...] --files FOLDER --corpus CORPUS [--holes 300] [--seeds 0 1 2]

FOLDER holds projects that no model was trained on, one in each sub-folder. Single lines and runs of lines are
cut out of their files; each contender sees the text before a hole (4,000 characters), what sees a suffix also
the text behind it (2,000), and what reads projects the other files.

    file, project  the line behind the longest match of the lines above, earlier in the file, or in any file
                   of the project as well
    ngram-8        token by token what followed the longest match of up to 8 tokens in file and project
    5-gram         greedy: the most frequent continuation of the last 4 tokens in CORPUS's training documents,
                   of fewer where those never stood there (stupid backoff, Brants et al. 2007)
    lines          what `cpplm.generate.project.line_retrieval` finds in the project
    RUN            greedy: with the suffix where the run was trained to fill in; `plain` without it
    RUN +project   with text of the project in front, too (docs/fill-in-the-middle.md)
    RUN +ngrams    and with what follows the last tokens elsewhere in the project
    RUN +lines     as `serve --project`: lines of the project where they are right with probability 0.2 or
                   more, or what the model writes is not twice as likely; else as RUN +ngrams

`answered at 0.2` is the share of single lines for which `lines` has one of that probability or more, `right
at 0.2` how many of these are exactly right. `--fit` prints the weights of `lines`, by the likelihood of what
belongs into the holes of --files, instead.

`exact` is equality up to white space at the ends of lines; `words exact` the same for lines of three words or
more; `keys` the share of typed characters saved by accepting, at one key each, exact suggestions alone.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from completion_baselines import (
    MATCHED_TOKENS,
    NEW_TOKENS,
    ORDER,
    BackoffModel,
    HeldOut,
    LineCopy,
    TokenCopy,
)
from measuring import command_line, progress, publish, refusals

from cpplm.evaluate.fim.held_out import file_holes
from cpplm.evaluate.fim.holes import FimHole
from cpplm.evaluate.fim.report import edit_similarity, normalize_layout
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.models.code_model import CodePrompt
from cpplm.evaluate.texts import Text, read_texts
from cpplm.generate.ngram_mixture import NgramMixture
from cpplm.generate.project.context import ProjectContext, project_context
from cpplm.generate.project.files import ProjectFile
from cpplm.generate.project.line_retrieval import RetrievedLines, retrieve_candidates, retrieve_lines
from cpplm.generate.settings import (
    DEFAULT_PROJECT_LINES,
    ModelSource,
    ProjectSettings,
    SamplingSettings,
    SchedulerLimits,
)
from cpplm.serve.api.infill import InfillStop

VISIBLE = (4000, 2000)
LATENCY_TOKENS, LATENCY_HOLES, ROWS = 16, 60, 16
RUN_TOKENS = 96  # of runs of lines
_WORDS = re.compile(r"[^\W\d]\w*")
Contender = Callable[[FimHole], str]
Row = tuple[str, dict[str, Any]]
Answer = tuple[str, list[tuple[str, float]]]


class ProjectLines:
    """The likeliest line of the project, with its probability."""

    def __init__(self, held_out: HeldOut) -> None:
        self._held_out = held_out
        self._files: dict[str, dict[str, ProjectFile]] = {}

    def arguments(self, hole: FimHole) -> tuple[dict[str, ProjectFile], str, str, str]:
        """Arguments of `retrieve_lines`."""
        own = self._held_out.texts[hole.group]
        if own.project not in self._files:
            texts = self._held_out.by_project[own.project]
            self._files = {
                own.project: {text.path: ProjectFile(Path(text.path), (0, 0), text.text) for text in texts}
            }
        return self._files[own.project], own.path, hole.before, hole.after

    def retrieve(self, hole: FimHole) -> RetrievedLines:
        """The line; empty where there is none."""
        return retrieve_lines(*self.arguments(hole)) or RetrievedLines("", 0.0)

    def __call__(self, hole: FimHole) -> str:
        return self.retrieve(hole).text

    def by_probability(self) -> dict[str, float]:
        """Share of single lines with an answer of a probability or more, and how many of these are right."""
        singles = [hole for hole in self._held_out.holes if hole.kind == "single"]
        found = [self.retrieve(hole) for hole in singles]
        figures = {}
        for least in (0.1, 0.2, 0.5):
            exact = [
                normalize_layout(lines.text) == normalize_layout(hole.middle)
                for hole, lines in zip(singles, found, strict=True) if lines.probability >= least
            ]  # fmt: skip
            figures[f"answered at {least}"] = round(len(exact) / len(singles), 4)
            figures[f"right at {least}"] = round(float(np.mean(exact)), 4) if exact else 0.0
        return figures


def fit_weights(held_out: HeldOut) -> list[float]:
    """Weights of the features of candidates, by maximum likelihood with a small penalty."""
    lines, rows = ProjectLines(held_out), list[tuple[int, tuple[float, ...], bool]]()
    for number, hole in enumerate(held_out.holes):
        for candidate in retrieve_candidates(*lines.arguments(hole)):
            is_right = normalize_layout(candidate.text) == normalize_layout(hole.middle)
            rows.append((number, candidate.features, is_right))
    holes = torch.tensor([row[0] for row in rows])
    features = torch.tensor([row[1] for row in rows], dtype=torch.float64)
    right = torch.tensor([row[2] for row in rows], dtype=torch.float64)
    weights = torch.zeros(features.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores = features @ weights
        total = torch.ones(len(held_out.holes), dtype=torch.float64).index_add(0, holes, scores.exp())
        value = total.log().sum() - (right * scores).sum() + weights.square().sum() / 2
        value.backward()
        return value

    optimizer.step(loss)
    return [round(weight, 2) for weight in weights.tolist()]


def generate(
    model: CheckpointModel,
    requests: Sequence[CodePrompt],
    holes: Sequence[FimHole],
    ngrams: Sequence[NgramMixture | None],
) -> list[Answer]:
    """Greedy answers, single lines ended at their line break, others where `/infill` ends them, each with its
    tokens' log-probabilities."""
    answers: list[Answer] = [("", [])] * len(requests)
    decode = model.engine.tokenizer.decode
    stops = [InfillStop(0, 0, hole.after) for hole in holes]
    prompts = (
        model.engine.request(
            request.prefix, request.suffix if model.supports_fim else None, spm=model.fim_order == "spm",
            settings=SamplingSettings(max_new_tokens=new_tokens(hole), temperature=0.0),
            stop=(lambda text: "\n" in text) if hole.kind == "single" else stop, logprobs=0, ngrams=each,
        )
        for request, hole, stop, each in zip(requests, holes, stops, ngrams, strict=True)
    )  # fmt: skip
    for answer in model.engine.complete_many(prompts, SchedulerLimits(max_batch=ROWS)):
        for completion in answer.completions:
            written = [(decode([token.token]), token.logprob) for token in completion.logprobs]
            answers[answer.number] = stops[answer.number].cut(completion.text, ended=True), written
    return answers


def new_tokens(hole: FimHole) -> int:
    """Tokens to write at most."""
    return NEW_TOKENS if hole.kind == "single" else RUN_TOKENS


def score(held_out: HeldOut, answers: Sequence[str], bits: Sequence[float | None]) -> dict[str, Any]:
    """The figures of one contender."""
    figures: dict[str, Any] = {}
    rows = list(zip(held_out.holes, answers, bits, strict=True))
    for kind in ("single", "multi"):
        own = [(hole, first_line(text) if kind == "single" else text, each) for hole, text, each in rows
               if hole.kind == kind]  # fmt: skip
        exact = [normalize_layout(text) == normalize_layout(hole.middle) for hole, text, _ in own]
        figures[f"{kind} exact"] = np.mean(exact)
        figures[f"{kind} similar"] = np.mean([edit_similarity(text, hole.middle) for hole, text, _ in own])
        if all(each is not None for *_, each in own):
            figures[f"{kind} bits"] = sum(each for *_, each in own) / sum(
                len(hole.middle.encode()) for hole, *_ in own
            )
        if kind == "single":
            words = [len(_WORDS.findall(hole.middle)) >= 3 for hole, *_ in own]
            figures["words exact"] = np.mean([hit for hit, long in zip(exact, words, strict=True) if long])
            lengths = [len(hole.middle.strip()) for hole, *_ in own]
            saved = sum(max(0, length - 1) for length, hit in zip(lengths, exact, strict=True) if hit)
            figures["keys"] = saved / sum(lengths)
    return {name: round(float(value), 4) for name, value in figures.items()}


def first_line(text: str) -> str:
    """Text up to its first line break."""
    return text.split("\n", 1)[0]


def latency(model: CheckpointModel, holes: Sequence[FimHole]) -> dict[str, float]:
    """Seconds of a request of `LATENCY_TOKENS` tokens, one at a time: the median, and that of 95 %."""
    sampling = SamplingSettings(max_new_tokens=LATENCY_TOKENS, temperature=0.0)
    seconds = []
    for hole in holes[:LATENCY_HOLES]:
        begin = time.perf_counter()
        list(model.generate([model.fit(hole.request, LATENCY_TOKENS)], sampling))
        seconds.append(time.perf_counter() - begin)
    return {
        "latency": round(statistics.median(seconds), 4),
        "latency 95 %": round(statistics.quantiles(seconds, n=20)[-1], 4),
    }


def of_model(run: str, held_out: HeldOut, folder: Path, lines: ProjectLines) -> Iterator[Row]:
    """The figures of a run in each way that it can be asked."""
    model = CheckpointModel.load(ModelSource(run), rows=ROWS)
    holes = held_out.holes
    list(model.generate([model.fit(holes[0].request, 8)], SamplingSettings(max_new_tokens=8)))  # warm
    trained = model.supports_fim
    nothing = [None] * len(holes)
    for way, supports_fim in {"plain": False, "": True, "+project": True}.items():
        if supports_fim > trained:
            continue
        model.supports_fim = supports_fim
        requests = [hole.request for hole in holes]
        if way == "+project":
            requests = [with_project(model, hole, held_out, folder) for hole in holes]
        fitted = [model.fit(request, new_tokens(hole)) for request, hole in zip(requests, holes, strict=True)]
        bits = nothing
        if supports_fim:
            bits = list(model.score_middles(fitted, [hole.middle for hole in holes]))
        answers = generate(model, fitted, holes, nothing)
        yield (
            f"{run} {way}".strip(),
            score(held_out, [text for text, _ in answers], bits) | (latency(model, holes) if not way else {}),
        )
        if way == "+project":
            ngrams = [ngrams_at(model, hole, held_out, folder) for hole in holes]
            answers = generate(model, fitted, holes, ngrams)
            yield f"{run} +ngrams", score(held_out, [text for text, _ in answers], nothing)
            both = likelier(answers, [lines.retrieve(hole) for hole in holes])
            yield f"{run} +lines", score(held_out, both, nothing)
    model.supports_fim = trained


def likelier(answers: Sequence[Answer], retrieved: Sequence[RetrievedLines]) -> list[str]:
    """What `serve --project` shows: lines of the project, or what the model writes where it is likelier."""
    return [
        lines.text
        if lines.text and (lines.probability >= DEFAULT_PROJECT_LINES or lines.is_preferred(written))
        else text
        for lines, (text, written) in zip(retrieved, answers, strict=True)
    ]


_PROJECTS: dict[Path, ProjectContext] = {}


def project_at(
    model: CheckpointModel, hole: FimHole, held_out: HeldOut, folder: Path
) -> tuple[ProjectContext, tuple[str, str, str]]:
    """The project of a hole, and the hole's arguments for what it gives."""
    project, *rest = PurePosixPath(held_out.texts[hole.group].path).parts
    if folder / project not in _PROJECTS:
        settings = ProjectSettings(folder / project)
        _PROJECTS[folder / project] = project_context(model.engine.tokenizer, settings)
    return _PROJECTS[folder / project], ("/".join(rest), hole.before, hole.after)


def with_project(model: CheckpointModel, hole: FimHole, held_out: HeldOut, folder: Path) -> CodePrompt:
    """The prompt of a hole with text of its project in front."""
    project, cursor = project_at(model, hole, held_out, folder)
    return model.fit(hole.request, new_tokens(hole), project.source(*cursor))


def ngrams_at(model: CheckpointModel, hole: FimHole, held_out: HeldOut, folder: Path) -> NgramMixture | None:
    """The n-grams of a hole's project."""
    project, cursor = project_at(model, hole, held_out, folder)
    return project.ngrams(*cursor)


def cut_holes(folder: Path, per_kind: int, seed: int) -> HeldOut:
    """Single lines and runs of lines of the files of a folder."""
    holes, texts = file_holes(str(folder), per_kind, seed, *VISIBLE)
    by_project: dict[str, list[Text]] = {}
    for text in read_texts(str(folder)):
        by_project.setdefault(text.project, []).append(text)
    chosen = [hole for hole in holes if hole.kind in ("single", "multi")]
    return HeldOut(sorted(chosen, key=lambda hole: hole.group), texts, by_project)


def mean_of(figures: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The mean over seeds of each figure."""
    several = list(figures)
    return {name: round(float(np.mean([each[name] for each in several])), 4) for name in several[0]}


def main() -> None:
    """Measure every contender on the same holes."""
    parser = command_line(__doc__, holes=300, seeds=[0, 1, 2])
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, help="of the n-gram model; without, it does not take part")
    options = parser.parse_args()
    if options.fit:
        held_out = cut_holes(options.files, options.holes, options.seeds[0])
        publish("completion", {"weights": fit_weights(held_out)})
        return
    tokenizer = CheckpointModel.load(ModelSource(options.runs[0])).engine.tokenizer if options.runs else None
    backoff = BackoffModel(options.corpus, tokenizer) if options.corpus and tokenizer else None
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in options.seeds:
        held_out = cut_holes(options.files, options.holes, seed)
        nothing, lines = [None] * len(held_out.holes), ProjectLines(held_out)
        contenders: dict[str, Contender] = {
            "file": LineCopy(held_out, project=False),
            "project": LineCopy(held_out, project=True),
            "lines": lines,
        }
        if tokenizer:
            contenders[f"ngram-{MATCHED_TOKENS}"] = TokenCopy(held_out, tokenizer)
        if backoff:
            contenders[f"{ORDER}-gram"] = backoff
        for name, contender in contenders.items():
            contender(held_out.holes[0])  # reads the project
            begin = time.perf_counter()
            answers = [contender(hole) for hole in held_out.holes]
            seconds = {"seconds": round((time.perf_counter() - begin) / len(answers), 4)}
            more = lines.by_probability() if name == "lines" else {}
            found.setdefault(name, []).append(score(held_out, answers, nothing) | more | seconds)
            progress(f"seed {seed} {name}: {found[name][-1]}")
        for run in options.runs:
            for name, figures in of_model(run, held_out, options.files, lines):
                found.setdefault(name, []).append(figures)
                progress(f"seed {seed} {name}: {figures}")
    means = {name: mean_of(figures) for name, figures in found.items()}
    for name, figures in means.items():
        progress(f"{name}: {figures}")
    publish("completion", {"holes": options.holes, "seeds": options.seeds, "means": means, "by_seed": found})


if __name__ == "__main__":
    with refusals("completion"):
        main()
