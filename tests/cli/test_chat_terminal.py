"""`cpplm chat` on a terminal: Ctrl-C, history, questions of several lines."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpplm.cli.chat import BLOCK
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import babbler, write_run

pytestmark = pytest.mark.slow
CONTROL = r"\x1b(\[[0-9;?]*[A-Za-z]?)?"  # of a terminal; half of one may be what has come so far


class Typing:
    """A program on a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._terminal, inside = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )  # fmt: skip
        os.close(inside)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """What was printed up to this text."""
        assert self._reads(lambda: text in self.seen, seconds), f"no {text!r} in {self.seen!r}"
        before, _, self.seen = self.seen.partition(text)
        return before

    def wait_for_answer(self) -> None:
        """The first of its text, behind a question of which all is shown."""
        assert self._reads(lambda: re.sub(CONTROL, "", self.seen).strip() != "", 60)

    def give_up_line(self) -> None:
        """Ctrl-C, again where it came before readline waited: a signal is seen with the next key only."""
        for _ in range(12):
            self.type("\x03")
            if self._reads(lambda: "> " in self.seen, 5):
                break
        self.wait_for("> ")

    def _reads(self, found: Callable[[], bool], seconds: float) -> bool:
        """Whether this is seen in time, before the program ends."""
        end = time.monotonic() + seconds
        while not found():
            if not select.select([self._terminal], [], [], max(0, end - time.monotonic()))[0]:
                return False
            try:
                self.seen += os.read(self._terminal, 4096).decode(errors="replace")
            except OSError:  # it has ended
                return False
        return True

    def exit_code(self) -> int:
        """What it ends with; it could not where nobody read what it still prints."""
        self._reads(lambda: False, 60)
        return self.process.wait(timeout=20)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@pytest.fixture
def typing(tokenizer: Tokenizer, tmp_path: Path) -> Iterator[Callable[..., Typing]]:
    """`cpplm chat` with a model that talks for a long time."""
    run = write_run(tmp_path / "run", babbler(tokenizer, context=16_384))
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TERM": "xterm",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "cpplm.cli.main", "chat", "--run", str(run), "--max_new_tokens", "16000"]
    opened: list[Typing] = []

    def start(*more: str) -> Typing:
        opened.append(Typing([*command, "--device_type", "cpu", *more], environment))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_a_terminal_session(typing: Callable[..., Typing], tmp_path: Path) -> None:
    first = typing()
    first.wait_for("> ")
    first.type("tell me\n")
    first.wait_for("tell me")
    first.wait_for_answer()
    first.type("\x03")
    first.wait_for("Stopped.")
    first.wait_for("> ")
    first.type("given up")
    first.wait_for("given up")
    first.give_up_line()
    first.type("clear\n")
    first.wait_for("A new conversation.")
    first.wait_for("> ")
    first.type("quit\n")
    assert first.exit_code() == 0
    history = tmp_path / "state" / "cpplm" / "chat_history"
    assert history.read_text().splitlines() == ["tell me", "clear", "quit"]
    assert (history.stat().st_mode | history.parent.stat().st_mode) & 0o077 == 0

    second = typing()
    second.wait_for("> ")
    second.type("\x1b[A\x1b[A\x1b[A")  # three lines back
    second.wait_for("tell me")
    second.type("\x15\x04")  # rub it out, end of input
    assert second.exit_code() == 0


def test_a_question_of_several_lines_comes_back_as_one(typing: Callable[..., Typing], tmp_path: Path) -> None:
    first = typing()
    first.wait_for("> ")
    for line in (BLOCK, "int f() {", r'  puts("a\n");', "}", BLOCK):
        first.type(f"{line}\n")
    first.wait_for(f"{BLOCK}\r\n")  # the one that closes it; the answer follows
    first.wait_for(f"{BLOCK}\r\n")
    first.wait_for_answer()
    first.type("\x03")
    first.wait_for("Stopped.")
    first.type("quit\n")
    assert first.exit_code() == 0
    history = tmp_path / "state" / "cpplm" / "chat_history"
    assert history.read_bytes() == b'int f() {\r  puts("a\\n");\r}\nquit\n'

    second = typing("--json")
    second.wait_for("> ")
    second.type("\x1b[A\x1b[A")  # two questions back
    second.wait_for("puts")
    second.wait_for("}")
    second.type("\n")
    second.wait_for_answer()
    second.type("\x03")
    second.wait_for("Stopped.")
    second.type("quit\n")
    second.wait_for('{"messages": ')
    messages = json.loads(second.wait_for(', "stage"'))
    assert messages[0]["content"] == 'int f() {\n  puts("a\\n");\n}'


def test_sigterm_ends_the_program(typing: Callable[..., Typing]) -> None:
    chat = typing()
    chat.wait_for("> ")
    chat.type("tell me\n")
    chat.wait_for("tell me")
    chat.wait_for_answer()
    chat.process.send_signal(signal.SIGTERM)
    assert chat.exit_code() == 130
