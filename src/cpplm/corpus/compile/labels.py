"""The compile label: whether each document compiles, as the process that built it finds out.

Labels depend on the compiler and on the headers that it finds, so the build records both. A document that
takes the compiler longer than its limits (`COMPILE_LIMITS`) does not compile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.corpus.compile.compiler import CompileResult, compile_document, require_standards
from cpplm.corpus.settings import CorpusSettings
from cpplm.cpp.parser import Language
from cpplm.sandbox.backends import SandboxBackend
from cpplm.sandbox.compiler import check_mounts
from cpplm.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class CompileLabeler:
    """Compiles and labels documents; sent to workers, each of which makes a sandbox for itself."""

    backend: SandboxBackend
    compiler_version: str
    headers: tuple[Path, ...]  # folders of third-party headers

    def compiler(self) -> Callable[[str, Language], CompileResult]:
        """A function that compiles a text; for one process."""
        sandbox = Sandbox(self.backend)
        return lambda text, language: compile_document(text, language, sandbox, self.headers)


def plan_labeler(settings: CorpusSettings) -> CompileLabeler | None:
    """The labeler that the settings ask for, tried out; None without labels.

    Raises:
        UserError: no sandbox, no compiler, or a folder of headers that cannot be read in the sandbox.
    """
    if not settings.label:
        return None
    headers = tuple(folder.expanduser().resolve() for folder in settings.headers)
    for folder in headers:
        if not folder.is_dir():
            raise UserError(f"--headers {folder} is no folder", fix="Name the folder to search for headers.")
    sandbox = Sandbox.probe(unsafe=settings.unsafe)
    compiler = require_standards(sandbox)
    check_mounts(sandbox, headers)
    return CompileLabeler(sandbox.backend, compiler, headers)
