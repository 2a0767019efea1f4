"""A project at a cursor: text for the prompt, lines that may be the answer, n-grams beside the model.

The text stands in front of the file that a model fills in, within a share of the prompt: the lines behind the
longest match of the lines above the cursor, anywhere in the project.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from cpplm.generate.ngram_mixture import NgramMixture
from cpplm.generate.project.files import ProjectFiles
from cpplm.generate.project.line_retrieval import RetrievedLines, retrieve_lines
from cpplm.generate.project.project_ngrams import Encode, ProjectNgrams
from cpplm.generate.project.similar import find_similar
from cpplm.generate.settings import ProjectSettings
from cpplm.generate.truncation import TokenEnds, token_ends, truncate
from cpplm.tokenizer.tokenizer import Tokenizer

ContextSource = Callable[[int, int], str]
"""Gives text of at most so many tokens for a prompt whose prefix has so many bytes in view."""
_SHARE = 2  # of a prompt's room the context gets one part in so many at most


class ProjectContext:
    """A project in memory that gives each cursor its context; for threads, one at a time."""

    def __init__(
        self, folder: Path, ends: TokenEnds, min_probability: float = 1.0, encode: Encode | None = None
    ) -> None:
        """Read the project.

        Args:
            folder: of the project.
            ends: of the model's tokenizer.
            min_probability: with which lines of the project need no model; 1 = none are looked for.
            encode: of the tokenizer; without, no n-grams are looked for.

        Raises:
            UserError: no C++ there.
        """
        self._files = ProjectFiles(folder)
        self._ends, self.min_probability = ends, min_probability
        self._lock = threading.Lock()
        self._tokens = ProjectNgrams(encode, self._files.files) if encode is not None else None

    def source(self, file: str, prefix: str, suffix: str) -> ContextSource:
        """The context of a cursor.

        Args:
            file: with the cursor, by its path or its name in the project; "" to recognize it by its lines.
            prefix: the file in front of the cursor, or the end of that.
            suffix: behind it.

        Raises:
            UserError: the file is outside the project.
        """
        name, prefix = self._locate(file, prefix, suffix)

        def text(budget: int, visible: int) -> str:
            with self._lock:
                found = find_similar(self._files.files, name, prefix, suffix, visible)
            return self._cut(found, budget)

        return text

    def lines(self, file: str, prefix: str, suffix: str) -> RetrievedLines | None:
        """The likeliest lines at a cursor as the project has them elsewhere; arguments as of `source`."""
        if self.min_probability >= 1:
            return None
        name, prefix = self._locate(file, prefix, suffix)
        with self._lock:
            return retrieve_lines(self._files.files, name, prefix, suffix)

    def ngrams(self, file: str, prefix: str, suffix: str) -> NgramMixture | None:
        """The n-grams of the project and of the text around a cursor; arguments as of `source`."""
        if self._tokens is None:
            return None
        name, prefix = self._locate(file, prefix, suffix)
        return self._tokens.mixture(self._files.files, name, prefix, suffix)

    def _locate(self, file: str, prefix: str, suffix: str) -> tuple[str, str]:
        """The name of the file with a cursor, and all that is in front of it."""
        with self._lock:
            self._files.refresh()
            name = self._files.name_of(file) if file else self._files.recognize(prefix, suffix)
            return name, self._files.whole_prefix(name, prefix)

    def _cut(self, text: str, tokens: int) -> str:
        """The whole lines that so many tokens hold."""
        ends = self._ends(text)
        if len(ends) <= tokens:
            return text
        kept = text.encode()[: ends[tokens - 1] if tokens > 0 else 0].decode(errors="ignore")
        return kept[: kept.rfind("\n") + 1]


def project_context(tokenizer: Tokenizer, settings: ProjectSettings) -> ProjectContext | None:
    """The project that settings name, for a model with this tokenizer; None where they name none.

    Raises:
        UserError: no C++ there.
    """
    if settings.project is None:
        return None
    encode = tokenizer.encode if settings.project_ngrams == "on" else None
    return ProjectContext(settings.project, token_ends(tokenizer), settings.project_lines, encode)


def truncate_with_context(
    prefix: str,
    suffix: str,
    room: int,
    ends: TokenEnds,
    source: ContextSource | None = None,
    extras: Sequence[str] = (),
) -> tuple[list[str], bytes, bytes]:
    """`truncate`, and what stands in front of the prefix, in half of the room at most.

    First come pieces of other files, the newest of them; how many fit does not depend on what is near, so
    that they stay the same while somebody types. What they leave of it is for the context of a project.

    Args:
        prefix, suffix, room, ends: see `truncate`.
        source: of the project's text.
        extras: pieces of other files, the oldest first.
    """
    budget = left = max(0, room) // _SHARE
    front: list[str] = []
    for extra in reversed(extras):
        size = len(ends(f"{extra}\n"))
        if size > left:
            break
        front.insert(0, f"{extra}\n")
        left -= size
    if source is not None and left > 0:
        context = source(left, len(truncate(prefix, suffix, room - budget, ends)[0]))
        front.append(context)
        left -= len(ends(context))
    return front, *truncate(prefix, suffix, room - (budget - left), ends)
