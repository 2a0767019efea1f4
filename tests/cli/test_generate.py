"""`cpplm generate`: completions and holes, streamed or several, from flags or standard input."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cpplm.cli.generate import CURSOR
from cpplm.cli.main import dispatch
from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.project.line_retrieval import RetrievedLines
from cpplm.generate.settings import GenerateSettings, ModelSource, SamplingSettings
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import babbler, write_run

MODEL = ModelSource(run="runs/any")
Command = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    return babbler(tokenizer, context=64)


@pytest.fixture(scope="module")
def run(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", engine, {"fim": {"fim_rate": 0.5}})


@pytest.fixture
def command(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`cpplm generate` with flags, and with text on standard input: what it prints, and its figures."""

    def call(*arguments: str, stdin: str | None = None) -> tuple[str, dict[str, Any]]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin or ""))
        source = ("--run", str(run), "--precision", "fp32", "--device_type", "cpu", "--max_new_tokens", "12")
        dispatch(["generate", *source, *arguments, "--json"])
        text, _, last = capsys.readouterr().out.removesuffix("\n").rpartition("\n")
        return text + "\n", json.loads(last)

    return call


def expected(engine: Engine, prefix: str, suffix: str | None = None, **more: Any) -> list[str]:
    spm = bool(more.pop("spm", True))
    count = more.pop("num_samples", 1)
    settings = SamplingSettings(**{"max_new_tokens": 12, **more})
    request = engine.request(prefix, suffix, settings=settings, num_samples=count, spm=spm)
    (answer,) = engine.complete_many([request])
    return [completion.text for completion in answer.completions]


def test_a_prompt_and_its_completion_are_printed(engine: Engine, command: Command) -> None:
    text, figures = command("-p", "int é = ", "--seed", "1")
    (completion,) = expected(engine, "int é = ", seed=1)
    assert text == f"int é = {completion}\n"
    assert figures == {
        "step": 1,
        "prompt": "int é = ",
        "completions": [completion],
        "finish_reasons": ["length"],
    }
    assert command(stdin="int é = ")[0] == f"int é = {expected(engine, 'int é = ')[0]}\n"


def test_every_way_of_sampling_is_a_flag(engine: Engine, command: Command) -> None:
    flags = "-t 1.1 -k 30 --top_p 0.9 --min_p 0.01 --repetition_penalty 1.3 --seed 7 --max_new_tokens 9 "
    flags += "--frequency_penalty 0.5 --presence_penalty -0.5 --logit_bias 100 -3 101 4.5"
    settings = {
        "temperature": 1.1, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3, "seed": 7,
        "max_new_tokens": 9, "stop": ("xyz", ";"), "frequency_penalty": 0.5, "presence_penalty": -0.5,
        "logit_bias": ((100, -3.0), (101, 4.5)),
    }  # fmt: skip
    assert command("--prompt", "int", *flags.split(), "--stop", "xyz", ";")[1]["completions"] == expected(
        engine, "int", **settings
    )


def test_several_samples(engine: Engine, command: Command) -> None:
    text, figures = command("--prompt", "int", "--num_samples", "3")
    samples = expected(engine, "int", num_samples=3)
    assert figures["completions"] == samples
    assert text == "".join(f"--- sample {n} (length) ---\nint{each}\n" for n, each in enumerate(samples, 1))


@pytest.mark.parametrize("spm", [False, True])
def test_a_hole_is_filled(engine: Engine, command: Command, spm: bool) -> None:
    more = ["--fim_order", "spm" if spm else "psm"]
    text, figures = command("--fim", "--prompt", "int f() {", "--suffix", "}\n", *more)
    (middle,) = expected(engine, "int f() {", "}\n", spm=spm)
    assert text == f"int f() {{{middle}}}\n"
    assert figures["completions"] == [middle]
    assert figures["suffix"] == "}\n"
    assert command("--fim", *more, stdin=f"int f() {{{CURSOR}}}\n") == (text, figures)


def test_a_project_stands_before_the_hole(engine: Engine, command: Command, tmp_path: Path) -> None:
    (tmp_path / "other.cpp").write_text("int a;\nint b;\n")
    hole = f"int a;\n{CURSOR}\n"
    given = ("--fim", "--project", str(tmp_path), "--project_lines", "1", "--file", "a.cpp")
    _, figures = command(*given, "--project_ngrams", "off", stdin=hole)
    assert figures["completions"] == expected(engine, "int a;\nint b;\n\nint a;\n", "\n")
    _, figures = command(*given, stdin=hole)
    assert figures["completions"] != expected(engine, "int a;\nint b;\n\nint a;\n", "\n")
    with pytest.raises(UserError, match="no effect without --project"):
        command("--fim", "--project_ngrams", "off", stdin=hole)
    with pytest.raises(UserError, match="is not in the project"):
        command("--fim", "--project", str(tmp_path), "--file", "../a.cpp", stdin=hole)


def test_lines_of_the_project_are_printed_instead(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "open(a, b);\nif (c) {\nbegin(1.5);\none(2);\n}\nclose(d);\n"
    (tmp_path / "other.cpp").write_text(text)
    hole = ("--fim", "--project", str(tmp_path), "--file", "a.cpp", "--project_lines")
    printed, figures = command(*hole, "0.01", stdin=text.replace("one(2);", CURSOR))
    assert printed == text
    assert (figures["completions"], figures["finish_reasons"]) == (["one(2);"], ["project"])
    assert 0.01 < figures["probability"] < 1
    assert command(*hole, "0.999", stdin=text.replace("one(2);", CURSOR)) == (printed, figures)
    written = command(*hole, "1", stdin=text.replace("one(2);", CURSOR))
    assert written[0] != text
    with monkeypatch.context() as patch:  # the model's answer is likelier
        patch.setattr("cpplm.generate.project.context.retrieve_lines", lambda *_: RetrievedLines("", 1e-300))
        assert command(*hole, "0.999", stdin=text.replace("one(2);", CURSOR)) == written
    for share, message in (("0", "is no probability"), ("1.5", "is no probability")):
        with pytest.raises(UserError, match=message):
            command(*hole, share, stdin=CURSOR)
    with pytest.raises(UserError, match="no effect without --project"):
        command("--fim", "--project_lines", "0.5", stdin=CURSOR)


def test_several_holes_and_empty_sides(engine: Engine, command: Command) -> None:
    text, figures = command("--fim", "--num_samples", "2", stdin=f"{CURSOR}}};")
    samples = expected(engine, "", "};", num_samples=2)
    assert figures["completions"] == samples
    assert text == "".join(f"--- sample {n} (length) ---\n{each}}};\n" for n, each in enumerate(samples, 1))
    assert command("--fim", stdin=f"int{CURSOR}")[1]["completions"] == expected(engine, "int", "")


@pytest.mark.parametrize("samples", [1, 2])
def test_drafts_do_not_change_the_text(command: Command, samples: int) -> None:
    prompt = ("--prompt", "int a; int b; int a;", "--num_samples", str(samples))
    arguments = (*prompt, "--max_new_tokens", "30", "-t", "0.2")
    text, figures = command(*arguments)
    drafted_text, drafted = command(*arguments, "--draft", "lookup", "--draft_tokens", "3")
    assert drafted_text == text
    assert drafted.pop("drafted") >= drafted.pop("accepted")
    assert drafted == figures


def test_heads_that_are_not_there_cannot_draft(command: Command) -> None:
    with pytest.raises(UserError, match="no head that could draft"):
        command("--prompt", "int", "--draft", "heads")


def test_a_model_that_never_filled_in_is_named(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "plain", engine)
    dispatch(["generate", "--run", str(run), "--fim", "-p", "a", "--suffix", "b", "--max_new_tokens", "2"])
    assert "not trained to fill in" in capsys.readouterr().err


def test_a_prompt_that_is_refused_is_not_printed(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="context 64"):
        command("--prompt", "int x; " * 40)
    assert capsys.readouterr().out == ""


def test_a_terminal_is_not_obeyed_to_what_a_model_writes(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt with an escape sequence stands here for a model that writes one."""
    prompt = "int\x1b]0;title\x07 x;\r\n"
    for terminal, printed in ((False, prompt), (True, "int␛]0;title␇ x;␍\n")):
        monkeypatch.setattr("sys.stdout.isatty", lambda value=terminal: value)
        dispatch(["generate", "--run", str(run), "--prompt", prompt, "--max_new_tokens", "1", "-t", "0"])
        assert capsys.readouterr().out.startswith(printed)


def test_examples(command: Command, engine: Engine) -> None:
    text, figures = command("--examples")
    assert len(figures["samples"]) == text.count("--- length ---") > 0


# ---- wrong use --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stdin", "arguments", "message"),
    [
        ("", [], "empty"), ("int", ["--fim"], "0 times"), (f"a{CURSOR}b{CURSOR}", ["--fim"], "2 times"),
    ],
)  # fmt: skip
def test_what_is_piped_in_is_checked(
    stdin: str, arguments: list[str], message: str, command: Command
) -> None:
    with pytest.raises(UserError, match=message):
        command(*arguments, stdin=stdin)


def test_bytes_that_are_no_text(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"int \xff"), encoding="utf-8"))
    with pytest.raises(UserError, match="no text"):
        dispatch(["generate", "--run", str(run)])


def test_a_terminal_is_not_waited_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    with pytest.raises(UserError, match="--prompt TEXT or --examples"):
        dispatch(["generate", "--run", str(run)])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"examples": True, "prompt": "x"}, "--examples and --prompt"),
        ({"examples": True, "num_samples": 2}, "--num_samples"),
        ({"examples": True, "fim": True}, "plain completions"),
        ({"examples": True, "draft": "lookup"}, "plain completions"),
        ({"save": True}, "Add --examples"),
        ({"prompt": "x", "num_samples": 0}, "--num_samples 0"),
        ({"prompt": "x", "suffix": "y"}, "Add --fim"),
        ({"prompt": "x", "fim_order": "psm"}, "Add --fim"),
        ({"prompt": "x", "fim": True}, "--prompt and --suffix together"),
        ({"suffix": "x", "fim": True}, "--prompt and --suffix together"),
        ({"prompt": "x", "draft": "lookup", "draft_tokens": 0}, "--draft_tokens 0"),
        ({"prompt": "x", "draft_tokens": 3}, "Add --draft lookup"),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        GenerateSettings(model=MODEL, **values)  # type: ignore[arg-type]


def test_a_form(command: Command, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"enum": [12, 345]}')
    (tmp_path / "gbnf").write_text("root ::= [0-9]+ ';'")
    text, figures = command("-p", "int x = ", "--schema", str(tmp_path / "schema.json"), "--draft", "lookup")
    assert text in {"int x = 12\n", "int x = 345\n"}
    assert figures["finish_reasons"] == ["stop"]
    _, figures = command(
        "-p", "int x = ", "--regex", "[0-9]{2}", "--fim", "--suffix", ";", "--num_samples", "3"
    )
    assert all(10 <= int(completion) <= 99 for completion in figures["completions"])
    _, figures = command("-p", "int x = (2", "--valid", "cpp", "--logit_bias", str(64 + ord("]")), "100")
    assert "]" not in figures["completions"][0]
    for flags, message in {
        ("--regex", "(("): "the regular expression is not understood: unclosed group",
        ("--grammar", str(tmp_path / "gbnf")): "the grammar is not understood",
        ("--schema", str(tmp_path / "none")): "cannot read",
        ("--schema", "x", "--regex", "x"): "exclude each other",
    }.items():
        with pytest.raises(UserError, match=re.escape(message)):
            command("-p", "int x = ", *flags)
