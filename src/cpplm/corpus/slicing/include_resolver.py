"""The files of a project that its includes lead to, and the headers that only its build writes."""

from __future__ import annotations

import functools
import itertools
import posixpath
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from pathlib import PurePosixPath

from cpplm.corpus.include_index import FEWEST_HEADERS, IncludeIndex, library_includes
from cpplm.corpus.ingest.discovery import TEMPLATE_ENDINGS, SourceFile, is_template
from cpplm.corpus.slicing import build_headers
from cpplm.corpus.slicing.build_headers import include_target
from cpplm.cpp.file_suffixes import is_source

# Of fewer sources it says nothing what most of them include first.
_FEW_SOURCES = 3
# What may stand at the end of a template's name instead of `.h`.
_TEMPLATE_ENDINGS = (".in.h", *(f".h{ending}" for ending in TEMPLATE_ENDINGS))


class IncludeResolver:
    """Resolves the includes of one project, each in each file once."""

    def __init__(
        self,
        files: Mapping[str, SourceFile],
        arguments: Mapping[str, Sequence[str]],
        defaults: build_headers.BuildDefaults,
        *,
        closed: bool,
    ) -> None:
        """Of no file anything is read.

        Args:
            files: by their names.
            arguments: of each file those of its includes, as they stand there (`"a.h"`, `<b/c.h>`).
            defaults: what build files say.
            closed: includes lead to files of the project; else none does.
        """
        self.closed = closed
        self._files = files
        self.arguments = arguments
        self._defaults = defaults
        self._index = IncludeIndex(files)
        self._folders = build_headers.include_folders(files)
        self._is_kernel = any(name.endswith("linux/init.h") for name in files)
        self._resolved: dict[tuple[str, str], str | None] = {}

    def resolve(self, name: str, argument: str) -> str | None:
        """The file of the project that an include (`"a.h"`, `<b/c.h>`) in the file `name` leads to."""
        key = (name, argument)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(name, argument)
        return self._resolved[key]

    def _resolve(self, name: str, argument: str) -> str | None:
        if not self.closed or self._is_of_kernel(argument):
            return None
        found = self._answer(name, argument) or self._installed(include_target(argument))
        if found is not None and is_template(found):
            return self._built(include_target(argument), found) or found
        return found

    def is_there(self, name: str, argument: str) -> bool:
        """True if an include leads to a file of the project where it lies, installed or not."""
        if not self.closed or argument[:1] not in ('"', "<") or self._is_of_kernel(argument):
            return False
        return self._answer(name, argument) is not None

    def _is_of_kernel(self, argument: str) -> bool:
        """True for the kernel's headers: the system's include theirs, not a project's copies."""
        if self._is_kernel or not argument.startswith(("<linux/", "<asm/")):
            return False
        return include_target(argument) not in build_headers.KERNEL_HEADERS

    def _installed(self, target: str) -> str | None:
        """The file behind an include of a header as it is installed."""
        folder, _, base = target.rpartition("/")
        folders = self._installed_folders.get(folder)
        # Gnulib's `math.in.h` precedes the system's.
        endings = _TEMPLATE_ENDINGS[base in build_headers.PUBLIC_HEADERS :]
        return self._index.installed(base, endings, folders) if folders else None

    @functools.cached_property
    def _installed_folders(self) -> dict[str, Counter[str]]:
        targets = (
            include_target(argument)
            for name, arguments in self.arguments.items()
            for argument in arguments
            if not self._is_of_kernel(argument) and self._answer(name, argument) is None
        )
        lacking = (target for target in targets if target not in build_headers.PUBLIC_HEADERS)
        return self._index.installed_folders(lacking, _TEMPLATE_ENDINGS)

    def _answer(self, name: str, argument: str) -> str | None:
        """The file, or the template of it, that an include leads to by its place or the end of its path."""
        target = include_target(argument)
        templates = [target + ending for ending in TEMPLATE_ENDINGS]
        if target not in build_headers.PUBLIC_HEADERS:  # of gnulib; its `math.in.h` precedes the system's
            templates.append(target.removesuffix(".h") + ".in.h")
        found = self._index.beside(name, target) if argument[0] == '"' else None
        template = self._defaults.template_of(target.rpartition("/")[2], name)
        if found is None and template is not None and template in self._files and is_template(template):
            found = template
        if argument[0] == '"' and found is None:
            found = next(filter(None, (self._index.beside(name, each) for each in templates)), None)
        is_system = target in build_headers.SYSTEM_HEADERS and target not in self._preceding
        if found is None and (argument[0] == '"' or not is_system):
            found = self._index.nearest(name, target)
            if found is not None:
                found = self._in_search_folder(found, target, argument[0])
            if found == name:  # `#include "lib/lib.h"` in lib/lib.h: that below an include folder
                found = next((each for each in self._index.ending_in(target) if each != name), found)
        return found or next(filter(None, (self._index.nearest(name, each) for each in templates)), None)

    def _in_search_folder(self, found: str, target: str, opening: str) -> str:
        """The header found; instead of one in a folder with nothing else, that in a search path of others."""
        counts = self._search_folders[opening]
        if counts[found.removesuffix(target)]:
            return found
        named = [found, *self._index.ending_in(target)]
        best = max(named, key=lambda each: counts[each.removesuffix(target)])
        return best if counts[best.removesuffix(target)] >= FEWEST_HEADERS else found

    @functools.cached_property
    def _search_folders(self) -> Mapping[str, Counter[str]]:
        """Numbers of headers included in brackets, or in quotes, from each folder, by `<` and `"`.

        Of those whose name is there once.
        """
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for argument in set(itertools.chain(*self.arguments.values())):
            target = include_target(argument)
            if len(found := self._index.ending_in(target)) == 1:
                counts[argument[:1]][found[0].removesuffix(target)] += 1
        return counts

    @functools.cached_property
    def _preceding(self) -> Set[str]:
        """The project's headers that precede the system's of their names, since all of their folder do.

        Such are those in a folder from which it includes several by their names in brackets (`<types.h>`),
        and these in quotes, too.
        """
        arguments = set(itertools.chain(*self.arguments.values()))
        in_brackets = (each[1:-1] for each in arguments if each.startswith("<") and "/" not in each)
        found = ((name, self._index.nearest("", name)) for name in in_brackets)
        by_folder: dict[str, set[str]] = defaultdict(set)
        for name, path in found:
            if path is not None:
                by_folder[posixpath.dirname(path)].add(name)
        return {
            name
            for names in by_folder.values()
            if len(names - build_headers.SYSTEM_HEADERS) >= FEWEST_HEADERS
            for name in names & build_headers.SYSTEM_HEADERS
            if f'"{name}"' in arguments
        }

    def _built(self, target: str, template: str) -> str | None:
        """The header that a build has made of a template, where the project holds one."""
        beside = PurePosixPath(template).with_name(PurePosixPath(target).name).as_posix()
        if beside in self._files:
            return beside
        matches = (
            name for end in (beside, target) for name in self._built_files if f"/{name}".endswith(f"/{end}")
        )
        return next(matches, None)

    @functools.cached_property
    def _built_files(self) -> list[str]:
        return [name for name, file in self._files.items() if file.is_built]

    def is_build_written(self, argument: str) -> bool:
        """True for an include that nothing answers, of a header that only a build can have written."""
        if not self.closed or argument in self._library_includes:
            return False
        target = include_target(argument)
        is_written = target in self._defaults.written or target.rpartition("/")[0] in self._installed_folders
        return is_written or build_headers.is_build_written(argument, self._folders)

    @functools.cached_property
    def _library_includes(self) -> frozenset[str]:
        return library_includes(self.arguments, self.resolve)

    @functools.cached_property
    def includers(self) -> dict[str, list[str]]:
        """The files that include each file, sources first."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self.arguments, key=lambda name: (not is_source(name), name)):
            for argument in self.arguments[name]:
                target = self.resolve(name, argument)
                if target is not None:
                    found[target].append(name)
        return found

    @functools.cached_property
    def first(self) -> str | None:
        """The file that most source files include before all else (`stdafx.h`, a configuration), if any."""
        firsts = [
            self.resolve(name, includes[0])
            for name, includes in self.arguments.items()
            if includes and is_source(name)
        ]
        (target, count), *_ = Counter(firsts).most_common(1) or [(None, 0)]
        return target if count > max(len(firsts) // 2, _FEW_SOURCES) else None

    @functools.cached_property
    def forced(self) -> list[str]:
        """The files that the build includes before each source file."""
        some_file = next(iter(self._files), "")
        found = (self.resolve(some_file, f'"{name}"') for name in self._defaults.forced_includes)
        return [name for name in found if name is not None]
