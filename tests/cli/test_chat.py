"""`cpplm chat`: one question or many, tools, Ctrl-C."""

import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cpplm.cli import chat as chat_module
from cpplm.cli.chat import BLOCK, ChatSession, history_file
from cpplm.cli.main import dispatch
from cpplm.core.errors import UserError
from cpplm.core.settings import from_command_line
from cpplm.generate.conversation import Conversation
from cpplm.generate.settings import ChatSettings, ModelSource, SamplingSettings
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import LEARNED, project, talker, write_run

Chat = Callable[..., tuple[str, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def run(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "talker", talker(tokenizer), {"stage": "sft"})


@pytest.fixture(scope="module", name="project")
def _project() -> Iterator[Path]:
    with project() as folder:
        yield folder


@pytest.fixture
def chat(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Chat:
    """`cpplm chat` with what is piped in: what it prints on stdout and stderr, and its figures."""

    def call(*arguments: str | Path, stdin: str = "") -> tuple[str, str, dict[str, Any]]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        source = ("--run", run, "--precision", "fp32", "--device_type", "cpu", "-t", "0")
        dispatch(["chat", *map(str, (*source, *arguments)), "--json"])
        out, err = capsys.readouterr()
        text, _, last = out.removesuffix("\n").rpartition("\n")
        return text, err, json.loads(last)

    return call


def answers(figures: dict[str, Any]) -> list[Any]:
    return [message["content"] for message in figures["messages"] if message["role"] == "assistant"]


# ---- one question -----------------------------------------------------------------------------------------


def test_one_question_one_answer(chat: Chat) -> None:
    text, err, figures = chat("-p", "hello")
    assert (text, err) == ("int é;", "")
    assert (figures["step"], figures["answer"], figures["finish_reason"]) == (1, "int é;\n", "end")
    assert answers(figures) == [LEARNED["hello"]]


@pytest.mark.parametrize("settings", [{}, {"stage": "base"}])
def test_a_base_model_says_so(
    chat: Chat, tokenizer: Tokenizer, tmp_path: Path, settings: dict[str, Any]
) -> None:
    base = write_run(tmp_path / "base", talker(tokenizer), settings)
    text, err, figures = chat("-p", "hello", "--run", base)
    assert text == "int é;"
    assert err.startswith("this is a base model: it saw no conversation")
    assert err.count("\n") == 1
    assert figures["stage"] == "base"


def test_the_calculator_is_always_there(chat: Chat) -> None:
    text, err, figures = chat("-p", "12*34?")
    assert text == "It is 408."
    assert err == "[calculator] 12*34\n408\n"
    assert answers(figures) == [LEARNED["12*34?"]]


def test_tools_work_on_the_project(chat: Chat, project: Path) -> None:
    text, err, figures = chat("-p", "where?", "--tools", project)
    assert text == "shapes.h"
    assert err.startswith('[search] search("area")\nshapes.h:1: int area(')
    assert answers(figures) == [LEARNED["where?"]]
    _, err, _ = chat("-p", "where?")
    assert "error: there is no tool 'search', only calculator" in err
    _, err, _ = chat("-p", "where?", "--tools", project, "--tool_calls", "0")
    assert "error: 0 calls" in err


def test_an_answer_that_is_cut_off_says_so(chat: Chat) -> None:
    text, err, figures = chat("-p", "12*34?", "--max_new_tokens", "3")
    assert figures["finish_reason"] == "length"
    assert "It is".startswith(text[:5])
    assert "Cut off: --max_new_tokens" in err


def test_what_the_system_says_stands_before(chat: Chat) -> None:
    _, _, figures = chat("-p", "hello", "--system", "Be brief.")
    assert figures["messages"][:2] == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"},
    ]  # fmt: skip


# ---- many questions ---------------------------------------------------------------------------------------


def test_questions_are_asked_until_the_user_leaves(chat: Chat) -> None:
    for leaving in ("quit\n", "EXIT \n", ""):
        text, _, figures = chat(
            stdin=f"hello\n\n  \nclear\n12*34?\n{leaving}" + ("hello\n" if leaving else "")
        )
        assert text == "int é;\nIt is 408."
        assert answers(figures) == [LEARNED["12*34?"]]  # the rest was cleared


def test_a_question_knows_those_before_it(chat: Chat) -> None:
    _, _, figures = chat("--max_new_tokens", "4", stdin="hello\nhello\n")
    assert [message["role"] for message in figures["messages"]] == ["user", "assistant"] * 2


def test_several_lines_are_one_question(chat: Chat) -> None:
    stdin = f"{BLOCK}\nint main() {{\n\n}}\n{BLOCK}\nquit\n"
    _, _, figures = chat("--max_new_tokens", "2", stdin=stdin)
    assert figures["messages"][0]["content"] == "int main() {\n\n}"
    _, _, figures = chat("--max_new_tokens", "2", stdin=f"{BLOCK}\nnever closed")
    assert figures["messages"][0]["content"] == "never closed"


class Questions:
    """What a user types."""

    interactive = True

    def __init__(self, *texts: str) -> None:
        self._texts: Iterator[str] = iter(texts)

    def read(self) -> str | None:
        return next(self._texts, None)


def interrupt_while_printing(monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    """SIGINT, as Ctrl-C gives it, when so many pieces were printed; once."""
    real, left = chat_module.sanitize, [when]

    def shown(text: str, style: str = "") -> str:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return real(text, style)

    monkeypatch.setattr(chat_module, "sanitize", shown)


def test_ctrl_c_stops_the_answer_and_not_the_program(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = talker(tokenizer)
    conversation = Conversation(engine, SamplingSettings(max_new_tokens=40, temperature=0))
    session = ChatSession(engine, ToolBox(), conversation)
    interrupt_while_printing(monkeypatch, 2)
    session.talk(Questions("12*34?", "clear", "12*34?"))  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    assert "Stopped." in err
    stopped, _, rest = out.partition("\n")
    assert "It is ".startswith(stopped)
    assert stopped
    assert rest == "It is 408.\n"
    assert conversation.messages[-1]["content"] == LEARNED["12*34?"]


def test_what_was_said_before_ctrl_c_stays_said(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = talker(tokenizer)
    conversation = Conversation(engine, SamplingSettings(max_new_tokens=40, temperature=0))
    session = ChatSession(engine, ToolBox(), conversation)
    interrupt_while_printing(monkeypatch, 1)
    session.talk(Questions("12*34?"))  # type: ignore[arg-type]
    (said,) = conversation.messages[-1]["content"]
    assert "It is ".startswith(said["text"])
    monkeypatch.setattr(chat_module, "generate_with_tools", interrupted)
    session.talk(Questions("hello"))  # type: ignore[arg-type]
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]  # nothing was said


def interrupted(*_: object) -> Iterator[Any]:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
    yield


# ---- flags ------------------------------------------------------------------------------------------------


def test_short_flags_are_those_of_nanochat() -> None:
    def parse(*arguments: str) -> ChatSettings:
        return from_command_line(ChatSettings, list(arguments), program="cpplm chat", description="")

    long = parse("--run", "r", "--step", "3", "--prompt", "x", "--temperature", "0.5", "--top_k", "7")
    assert parse("-g", "r", "-s", "3", "-p", "x", "-t", "0.5", "-k", "7") == long
    assert parse("-i", "r", "-s3", "-px", "-t0.5", "-k7") == long
    assert (long.model.run, long.model.step, long.sampling.top_k) == ("r", 3, 7)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"prompt": " "}, "--prompt is empty"), ({"unsafe": True}, "Add --tools")],
)
def test_contradictions_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ChatSettings(model=ModelSource("r"), **values)  # type: ignore[arg-type]


def test_a_folder_that_is_not_there_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        dispatch(["chat", "--run", "no/such/run", "--tools", str(tmp_path / "none")])


# ---- history ----------------------------------------------------------------------------------------------


def test_history_is_kept_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "cpplm" / "chat_history"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert history_file() == Path("/home/somebody/.local/state/cpplm/chat_history")
