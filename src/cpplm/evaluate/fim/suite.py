"""Fill-in-the-middle: a model writes what was cut out of code, and we see whether it fits.

Holes come from the solutions of C++ problems, where the tests tell whether what was written works
(`holes.py`), and from held-out code, where only the text and the parser can tell (`held_out.py`).

What a model writes is cut as follows, and in no other way: text that repeats the suffix is a failure.

    single      at the first line break
    all others  not at all, where the model sees the suffix: it ends with its own end token; by a model that
                sees the prefix alone, at the brace that closes the block (of `body`: the function) around
                the hole, since nothing tells it where to end
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from cpplm import __version__
from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.settings import to_dict
from cpplm.core.storage import sha256
from cpplm.core.workers import available_cores, map_in_threads
from cpplm.cpp.syntax import parser_version, syntax_valid
from cpplm.evaluate.completion_cache import Truncation, open_completion_cache
from cpplm.evaluate.fim.held_out import compile_standalone, file_holes
from cpplm.evaluate.fim.holes import FimHole, choose_holes, fingerprint
from cpplm.evaluate.fim.report import NO_ANSWER, FimReport, FimSample, edit_similarity, normalize_layout
from cpplm.evaluate.fim.trivial_holes import find_trivial, hole_program
from cpplm.evaluate.models.code_model import CodeModel, CodePrompt, Completion
from cpplm.evaluate.problems import load_problems
from cpplm.evaluate.settings import FimEvalSettings, HoleKind
from cpplm.evaluate.texts import Text, read_texts
from cpplm.evaluate.texts import fingerprint as texts_fingerprint
from cpplm.generate.project.context import ProjectContext
from cpplm.generate.sequence import StopCondition
from cpplm.judge.executor import MAX_ANSWER_CHARS, Judge
from cpplm.judge.result_cache import Verdict
from cpplm.judge.scoring import COMPILED, function_body, is_empty, open_braces
from cpplm.sandbox.compiler import require_compiler
from cpplm.sandbox.sandbox import Sandbox
from cpplm.tasks.source import STANDALONE_KINDS


@dataclass(frozen=True)
class AnswerTruncation:
    """A rule that ends an answer, besides the model's own end token."""

    rule: str
    stop: StopCondition | None
    cut: Callable[[str], str]


def _before_brace(text: str) -> str:
    body = function_body(text)
    return body.text.removesuffix("}").removesuffix("%>") if body.complete else text


LINE = AnswerTruncation("first line break", lambda text: "\n" in text, lambda text: text.split("\n", 1)[0])
BLOCK = AnswerTruncation("end of the block", lambda text: function_body(text).complete, _before_brace)
WHOLE = AnswerTruncation("", None, lambda text: text)


def truncation_for(kind: HoleKind, supports_fim: bool) -> AnswerTruncation:
    """The rule of the table above."""
    if kind == "single":
        return LINE
    return WHOLE if supports_fim else BLOCK


def input_hashes(settings: FimEvalSettings) -> dict[str, str]:
    """Hashes of what is cut, which decide with settings and model what comes out; UserError without any."""
    problems = repr(load_problems(settings.problems)) if settings.problems else ""
    files = texts_fingerprint(read_texts(settings.files)) if settings.files else ""
    return {"problems": sha256(problems.encode()), "files": files}


def run_fim(model: CodeModel, settings: FimEvalSettings, *, folder: Path | None) -> FimReport:
    """Have a model fill holes, and judge what it wrote.

    Args:
        model: whose answers are asked.
        settings: what is asked and how.
        folder: local; answers and verdicts are kept in it as they come, and used again. None keeps nothing.

    Raises:
        UserError: no sandbox or compiler, or there is nothing to cut; found before anything is written.
    """
    if settings.valid and not model.watches_syntax:
        raise UserError("--valid watches the tokens of our own engine", fix="Measure a RUN.")
    model.fim_order, model.valid = settings.fim_order, settings.valid
    versions = {"cpplm": __version__, "parser": parser_version()}
    sandbox = None
    if settings.problems or settings.compile_files:
        sandbox = Sandbox.probe(unsafe=settings.unsafe)
        versions |= {"compiler": require_compiler(sandbox), "sandbox": sandbox.name}
    holes, texts, judge = list[FimHole](), dict[str, Text](), None
    if settings.problems and sandbox:
        judge = Judge(sandbox, workers=settings.workers, cache_dir=folder)
        problems = load_problems(settings.problems)
        holes += choose_holes(
            problems, settings.holes_per_problem, settings.hole_seed, partial(find_trivial, judge=judge)
        )
    if settings.files:
        more, texts = file_holes(
            settings.files, settings.holes_per_kind, settings.hole_seed,
            settings.prefix_chars, settings.suffix_chars,
        )  # fmt: skip
        holes += more
    holes = [hole for hole in holes if not settings.kinds or hole.kind in settings.kinds]
    if not holes:
        where = " and ".join(filter(None, (settings.problems, settings.files)))
        raise UserError(f"nothing to cut in {where}", fix="Name problems with solutions, or more files.")
    requests = _requests(model, holes, texts, settings)
    answers, truncation = fill_holes(model, holes, settings, folder, requests)
    fitted = [model.fit(request, settings.max_new_tokens) for request in requests]
    bits = model.score_middles(fitted, [hole.middle for hole in holes])
    pairs = [(hole, answer) for hole, group in zip(holes, answers, strict=True) for answer in group]
    judged = _unanswered(pairs)
    if judge:
        judged |= _test(pairs, judge)
    if settings.compile_files and sandbox:
        judged |= _compile(pairs, texts, sandbox, settings.workers)
    config = {
        "settings": to_dict(settings) | {"workers": 0},
        "model": model.identity,
        "name": model.name,
        "supports_fim": model.supports_fim,
        "versions": versions,
    }
    samples = _samples(pairs, judged, dict(zip(holes, bits, strict=True)))
    return FimReport(samples, fingerprint(holes), config, truncation)


def _requests(
    model: CodeModel, holes: Sequence[FimHole], texts: dict[str, Text], settings: FimEvalSettings
) -> list[CodePrompt]:
    """The prompts of the holes, those of files with text of their project in front where that is asked for.

    Raises:
        UserError: the files are in no folder, or the model's tokens cannot be counted.
    """
    requests = [hole.request for hole in holes]
    if not settings.project_context:
        return requests
    projects: dict[Path, ProjectContext] = {}
    for number, hole in enumerate(holes):
        if hole.group in texts:
            path = PurePosixPath(texts[hole.group].path)
            if not path.name:
                raise UserError(f"--project_context: {settings.files} is no folder of C++ projects")
            root = Path(settings.files).expanduser() / (path.parts[0] if len(path.parts) > 1 else "")
            if root not in projects:
                projects[root] = ProjectContext(root, model.token_ends)
            name = path.relative_to(path.parts[0]).as_posix() if len(path.parts) > 1 else path.name
            source = projects[root].source(name, hole.before, hole.after)
            requests[number] = model.fit(hole.request, settings.max_new_tokens, source)
    return requests


def fill_holes(
    model: CodeModel,
    holes: Sequence[FimHole],
    settings: FimEvalSettings,
    folder: Path | None,
    requests: Sequence[CodePrompt],
) -> tuple[list[list[Completion]], Truncation]:
    """The model's answers to each hole, cut, and how much of the prompts was cut.

    Answers that are in `folder` already are taken from there.
    """
    filled: list[list[Completion]] = [[] for _ in holes]
    by_cut: dict[AnswerTruncation, list[int]] = {}
    for number, hole in enumerate(holes):
        by_cut.setdefault(truncation_for(hole.kind, model.supports_fim), []).append(number)
    with (
        open_completion_cache(folder, model) as cache,
        progress_bar(len(holes), "filling holes", "hole") as bar,
    ):
        for cut, numbers in by_cut.items():
            generated = cache.generate(
                [requests[number] for number in numbers],
                settings.sampling,
                num_samples=settings.num_samples,
                rule=cut.rule,
                stop=cut.stop,
            )
            for place, samples in generated:
                filled[numbers[place]] = [Completion(cut.cut(each.text), each.failed) for each in samples]
                bar.update()
    return filled, cache.truncation


Pairs = Sequence[tuple[FimHole, Completion]]


@dataclass(frozen=True)
class _JudgedAnswer:
    """The judgment on one answer; None where nothing was compiled, or run."""

    outcome: str = ""
    message: str = ""
    compiles: bool | None = None
    passes: bool | None = None


def _unanswered(pairs: Pairs) -> dict[int, _JudgedAnswer]:
    """Holes without an answer: failures, as far as anything is tested; by their places."""
    return {
        place: _JudgedAnswer(NO_ANSWER, answer.failed, *((False, False) if hole.tests else (None, None)))
        for place, (hole, answer) in enumerate(pairs)
        if answer.failed
    }


def _missing(hole: FimHole, answer: Completion) -> bool:
    """True for an empty answer where something stood: it never counts as compiled, valid or right."""
    return is_empty(answer.text) and not is_empty(hole.middle)


def leaves_function(hole: FimHole, written: str) -> bool:
    """True if an answer closes the function that the hole is in; what follows could then change the tests."""
    depth = open_braces(hole.before)
    return function_body("{" * (depth - 1) + written).complete


def _test(pairs: Pairs, judge: Judge) -> dict[int, _JudgedAnswer]:
    """Compile and run the answers to holes with tests; by their places."""
    judged, places = dict[int, _JudgedAnswer](), []
    for place, (hole, answer) in enumerate(pairs):
        if not hole.tests or answer.failed:
            continue
        if leaves_function(hole, answer.text[:MAX_ANSWER_CHARS]):
            judged[place] = _JudgedAnswer("forbidden", "closes the function that it stands in", False, False)
        else:
            places.append(place)
    programs = [hole_program(pairs[place][0], pairs[place][1].text) for place in places]
    for number, verdict in judge.judge(programs):
        place = places[number]
        judged[place] = _of_verdict(verdict.as_empty() if _missing(*pairs[place]) else verdict)
    return judged


def _of_verdict(verdict: Verdict) -> _JudgedAnswer:
    if verdict.outcome == "not judged":  # this machine lacks something
        return _JudgedAnswer(verdict.outcome, verdict.message)
    return _JudgedAnswer(
        verdict.outcome, verdict.message, verdict.outcome in COMPILED, verdict.outcome == "pass"
    )


def _compile(
    pairs: Pairs, texts: dict[str, Text], sandbox: Sandbox, workers: int
) -> dict[int, _JudgedAnswer]:
    """Compile, with the answers in them, the texts that compile on their own; by the places of the pairs."""

    def compiled(jobs: Sequence[str], what: str) -> list[str]:
        run = partial(compile_standalone, sandbox=sandbox)
        return map_in_threads(run, jobs, workers=workers or available_cores(), what=what, unit="text")

    candidates = [group for group, text in texts.items() if text.kind in STANDALONE_KINDS]
    alone = compiled([texts[group].text for group in candidates], "compiling originals")
    sound = {group for group, outcome in zip(candidates, alone, strict=True) if outcome == "compiles"}
    places = [place for place, (hole, each) in enumerate(pairs) if hole.group in sound and not each.failed]
    outcomes = compiled([pairs[place][0].filled(pairs[place][1].text) for place in places], "compiling")
    return {
        place: _JudgedAnswer("empty", "", False, None) if _missing(*pairs[place])
        else _JudgedAnswer(outcome, "", outcome == "compiles", None)
        for place, outcome in zip(places, outcomes, strict=True)
    }  # fmt: skip


def _samples(
    pairs: Pairs, judged: dict[int, _JudgedAnswer], bits: dict[FimHole, float | None]
) -> tuple[FimSample, ...]:
    readable: dict[str, bool] = {}
    samples = []
    for place, (hole, answer) in enumerate(pairs):
        if hole.group not in readable:
            readable[hole.group] = syntax_valid(hole.filled(hole.middle))
        answered = not answer.failed
        written = answered and not _missing(hole, answer)
        valid = written and syntax_valid(hole.filled(answer.text)) if readable[hole.group] else None
        samples.append(
            FimSample(
                hole=hole.name,
                kind=hole.kind,
                source="problems" if hole.tests else "files",
                group=hole.group,
                prefix=hole.prefix,
                suffix=hole.suffix,
                expected=hole.middle,
                completion=answer.text,
                exact_match=answered and normalize_layout(answer.text) == normalize_layout(hole.middle),
                edit_similarity=edit_similarity(answer.text, hole.middle) if answered else 0.0,
                syntax_valid=valid,
                bits=bits[hole],
                **asdict(judged.get(place, _JudgedAnswer())),
            )
        )
    return tuple(samples)
