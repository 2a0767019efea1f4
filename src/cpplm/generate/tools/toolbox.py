"""The tools that a model may call while it writes one answer, with limits on how often and how long.

box = ToolBox(Path("my_project"))
for request in requests:
    tools = box.fresh()
    tools.call(parse_call("query_tool", 'search("draw(")'))

calculator   (1,200 + 34) * 5
search       search("text"), search("regular expression", true), search("text", false, "src")
read_file    read_file("src/shapes.h"), read_file("src/shapes.h", 10, 40)
compile      compile(R"(source)")
run          run(R"(source)", "standard input")
test         test(R"(source)", "assert(area(2, 3) == 6); ...")
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cpplm.generate.settings import ToolLimits
from cpplm.generate.tools.calculator import CalculatorError, calculate
from cpplm.generate.tools.programs import Programs
from cpplm.generate.tools.project_files import ProjectFiles, RefusedError
from cpplm.generate.tools.tool_call_format import CALCULATOR, ToolCall
from cpplm.sandbox.sandbox import Sandbox, SandboxError

DEFAULT_LIMITS = ToolLimits()


@dataclass(frozen=True)
class _ServerTool:
    """A tool and the form of its calls."""

    usage: str
    types: tuple[type, ...]
    """Types of its arguments."""
    needed: int
    """Arguments without which it cannot do anything."""
    run: Callable[..., str]
    """Told until when it may take (by `time.monotonic`), then the arguments."""


class ToolBox:
    """Tools on one project, for one answer; `fresh` gives the next one."""

    def __init__(
        self,
        root: Path | None = None,
        limits: ToolLimits = DEFAULT_LIMITS,
        *,
        sandbox: Sandbox | None = None,
        runs_programs: bool = True,
    ) -> None:
        """Look at the folder and at the sandbox.

        Args:
            root: of the project; without one there is nothing but the calculator.
            limits: of one answer.
            sandbox: where programs run; by default the strongest that works here.
            runs_programs: False leaves only what searches, reads and calculates.

        Raises:
            UserError: no such folder, no sandbox or no compiler in it, or it cannot read the folder.
        """
        self._limits = limits
        self._tools = {
            CALCULATOR: _ServerTool("calculator(1 + 2)", (str,), 1, lambda _, text: calculate(text))
        }
        if root is not None:
            files = ProjectFiles(root)
            self._tools |= _file_tools(files)
            if runs_programs:
                self._tools |= _program_tools(Programs(sandbox or Sandbox.probe(), files.root))
        self._left = limits.tool_calls
        self._seconds = limits.tool_seconds

    def fresh(self) -> ToolBox:
        """Return the same tools, of which none was called yet; takes no time."""
        box = ToolBox(None, self._limits)
        box._tools = self._tools
        return box

    def call(self, call: ToolCall) -> str:
        """The result, for the model to read. Whatever was wrong with its call, the text says so."""
        if self._left == 0:
            return self._cut(f"error: {self._limits.tool_calls} calls are all that an answer may have")
        if self._seconds <= 0:
            return "error: the time for tools is used up"
        self._left -= 1
        begin = time.monotonic()
        try:
            return self._cut(self._call(call, begin + self._seconds))
        except (CalculatorError, RefusedError) as error:
            return self._cut(f"error: {error}")
        except (SandboxError, OSError) as error:
            return self._cut(f"error: the tool failed: {error}")
        finally:
            self._seconds -= time.monotonic() - begin

    def _call(self, call: ToolCall, deadline: float) -> str:
        """Run the tool.

        Raises:
            RefusedError: there is none of that name, or not with these arguments.
        """
        if call.problem:
            raise RefusedError(call.problem)
        tool = self._tools.get(call.name)
        if tool is None:
            raise RefusedError(f"there is no tool {call.name[:50]!r}, only {', '.join(self._tools)}")
        arguments = call.arguments
        fits = tool.needed <= len(arguments) <= len(tool.types)
        if not fits or any(
            type(value) is not kind for value, kind in zip(arguments, tool.types, strict=False)
        ):
            raise RefusedError(f"call it like this: {tool.usage}")
        return tool.run(deadline, *arguments)

    def _cut(self, text: str) -> str:
        """The beginning of a long result."""
        limit = self._limits.tool_characters
        return text if len(text) <= limit else f"{text[:limit]}\n[{len(text) - limit:,} more characters]"


def _file_tools(files: ProjectFiles) -> dict[str, _ServerTool]:
    return {
        "search": _ServerTool(
            'search("text"), search("RE2", true, "folder")', (str, bool, str), 1, files.search
        ),
        "read_file": _ServerTool(
            'read_file("folder/file.h", 1, 40)',
            (str, int, int),
            1,
            lambda _, *arguments: files.read(*arguments),
        ),
    }


def _program_tools(programs: Programs) -> dict[str, _ServerTool]:
    return {
        "compile": _ServerTool('compile(R"(source)")', (str,), 1, programs.compile),
        "run": _ServerTool('run(R"(source)", "input")', (str, str), 1, programs.run),
        "test": _ServerTool('test(R"(source)", "assert(a); assert(b);")', (str, str), 2, programs.test),
    }
