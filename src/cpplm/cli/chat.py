"""`cpplm chat`."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpplm.cli.report import Report, escape_control, sanitize
from cpplm.core.progress import log_info
from cpplm.generate.conversation import Conversation
from cpplm.generate.engine import Engine
from cpplm.generate.load import load_engine
from cpplm.generate.sequence import CompletionOutput
from cpplm.generate.settings import ChatSettings, SchedulerLimits
from cpplm.generate.tools.loop import Finished, TextDelta, ToolLoopEvent, ToolResult, generate_with_tools
from cpplm.generate.tools.tool_call_format import ToolCall
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.sandbox.sandbox import Sandbox

try:
    import readline
except ImportError:  # Windows: typing works, without history
    readline = None  # type: ignore[assignment]

BLOCK = '"""'
"""A line that begins and ends a text of several lines."""
_WELCOME = f"quit or Ctrl-D: end   clear: begin anew   Ctrl-C: stop an answer   {BLOCK}: several lines"
_KEPT_QUESTIONS = 1000
_LINE_BREAK = "\r"  # within a question, in the file with one question per line: a terminal gives none
_LIMITS = SchedulerLimits(max_batch=1)


def chat(settings: ChatSettings) -> Report:
    """Answer one question, or talk until the user has enough."""
    sandbox = Sandbox.probe(unsafe=True) if settings.unsafe else None
    box = ToolBox(settings.tools, settings.limits, sandbox=sandbox)
    engine, checkpoint = load_engine(settings.model)
    if checkpoint.stage == "base":
        log_info(
            "this is a base model: it saw no conversation, and goes on writing code instead of answering"
        )
    elif settings.prompt is None:
        log_info(f"{checkpoint.stage} model of step {checkpoint.step:,}")
    session = ChatSession(engine, box, Conversation(engine, settings.sampling, settings.system))
    figures: dict[str, Any] = {"step": checkpoint.step, "stage": checkpoint.stage}
    if settings.prompt is None:
        with _only_ctrl_c_interrupts():
            session.talk(Terminal())
    else:
        completion = session.answer(settings.prompt)
        figures |= {"answer": completion.text, "finish_reason": completion.finish_reason}
    return Report("", figures | {"messages": session.conversation.messages})


class ChatSession:
    """A conversation that is printed as it goes."""

    def __init__(self, engine: Engine, box: ToolBox, conversation: Conversation) -> None:
        self._engine, self._box, self.conversation = engine, box, conversation
        self._scheduler = engine.scheduler(_LIMITS)
        self._begun = False  # whether the cursor stands behind something

    def talk(self, terminal: Terminal) -> None:
        """Questions and answers until the user leaves."""
        self._aside(_WELCOME)
        while (text := terminal.read()) is not None:
            command = text.strip().lower()
            if command in {"quit", "exit"}:
                return
            if command == "clear":
                self.conversation.clear()
                self._aside("A new conversation.")
            elif command and terminal.interactive:
                self._answer_unless_stopped(text)
            elif command:
                self.answer(text)

    def answer(self, text: str) -> CompletionOutput:
        """Print the answer piece by piece.

        Raises:
            UserError: the model gives no numbers.
        """
        completion: CompletionOutput | None = None
        for event in generate_with_tools(
            self._scheduler, self.conversation.add_turn(text), self._box.fresh()
        ):
            self.conversation.add_event(event)
            self._show(event)
            completion = event.completion if isinstance(event, Finished) else None
        assert completion is not None  # noqa: S101  (it is the last that happens)
        return completion

    def _answer_unless_stopped(self, text: str) -> None:
        before = len(self.conversation.messages)
        try:
            self.answer(text)
        except KeyboardInterrupt:
            self._scheduler = self._engine.scheduler(
                _LIMITS
            )  # the old one was stopped in the middle of a step
            if len(self.conversation.messages) > before and not self.conversation.messages[-1]["content"]:
                self.conversation.undo()
            self._new_line()
            self._aside("Stopped.")

    def _show(self, event: ToolLoopEvent) -> None:
        match event:
            case TextDelta(text):
                print(sanitize(text), end="", flush=True)
                self._begun = not text.endswith("\n")
            case ToolCall() as call:
                self._aside(f"[{call.name or 'not a call'}] {call.text.strip()}")
            case ToolResult(_, result):
                self._aside(result)
            case Finished(completion):
                self._new_line()
                if completion.finish_reason == "length":
                    self._aside("Cut off: --max_new_tokens or the model's context is used up.")

    def _aside(self, text: str) -> None:
        """A line that is no part of the answer: faint on a terminal, otherwise on stderr."""
        if sys.stdout.isatty():
            self._new_line()
            print(sanitize(text, "2"), flush=True)
        else:
            print(escape_control(text), file=sys.stderr, flush=True)

    def _new_line(self) -> None:
        if self._begun:
            print(flush=True)
            self._begun = False


class Terminal:
    """Source of questions: a terminal with history, or what is piped in, one question per line."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a byte that is no text is no reason to end
        self._history = history_file()
        if self.interactive and readline is not None:
            readline.set_auto_history(False)  # a question of several lines is one entry: `_remember`
            readline.clear_history()
            with contextlib.suppress(OSError):  # there is none yet
                text = self._history.read_bytes().decode(errors="surrogateescape")
                for question in filter(None, text.split("\n")):
                    readline.add_history(question.replace(_LINE_BREAK, "\n"))

    def read(self) -> str | None:
        """The next question; None when there is none."""
        while True:
            try:
                text = self._line("> ")
                if text is not None and text.strip() == BLOCK:
                    text = self._block()
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                print()  # the line is given up
                continue
            self._remember(text)
            return text

    def _block(self) -> str:
        lines = []
        while (line := self._line("  ")) is not None and line.strip() != BLOCK:
            lines.append(line)
        return "\n".join(lines)

    def _line(self, prompt: str) -> str | None:
        if not self.interactive:
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            return input(prompt)
        except EOFError:
            print()
            return None

    def _remember(self, text: str | None) -> None:
        """Keep it in the history, and that in its file, now: a window that is closed kills the program."""
        if not self.interactive or readline is None:
            return
        count = readline.get_current_history_length()
        if text and text.strip() and text != readline.get_history_item(count):
            readline.add_history(text)
            count += 1
        first = max(0, count - _KEPT_QUESTIONS)
        questions = [readline.get_history_item(index + 1) or "" for index in range(first, count)]
        content = "".join(question.replace("\n", _LINE_BREAK) + "\n" for question in questions)
        new = self._history.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # it is a convenience
            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.touch(mode=0o600)
            new.write_bytes(content.encode(errors="surrogateescape"))
            new.replace(self._history)


def history_file() -> Path:
    """File of the questions asked before, by the XDG Base Directory Specification."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "cpplm" / "chat_history"


@contextlib.contextmanager
def _only_ctrl_c_interrupts() -> Iterator[None]:
    """Elsewhere SIGTERM is taken for Ctrl-C; here the latter only stops an answer."""

    def leave(*_: object) -> None:
        raise SystemExit(130)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
