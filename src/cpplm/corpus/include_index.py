"""Include resolution inside a project, by the end of each path: no build system is asked."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

# Folders and files for other systems.
_FOREIGN = re.compile(
    r"(?i)(?<![a-z])(?:win(?:32|64|dows)?|msvc|vs\d*|nmake|mac(?:os\w*)?|osx|ios|android|os2|vms|(?:ms)?dos)(?![a-z])"
)

# Of a library, that are included by one prefix or below one folder.
FEWEST_HEADERS = 4
# Of the includes of headers below a folder: those that the project has, if it is what installs them.
_INSTALLED_SHARE = 0.75
_FIRST_WORD = re.compile(r"[A-Z]++[a-z0-9]++(?=[A-Z])")  # `Osi` of `OsiSolverInterface.hpp`


class IncludeIndex:
    """The names of a project's files, relative to its folder, to resolve includes among them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self._by_base: dict[str, list[str]] = defaultdict(list)
        for name in self._names:
            self._by_base[posixpath.basename(name)].append(name)

    def beside(self, includer: str, target: str) -> str | None:
        """The file that an include in quotes names by its place beside the file that includes it."""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(includer), target))
        return path if path in self._names else None

    def nearest(self, includer: str, target: str) -> str | None:
        """The file of exactly this name, else of those whose path ends in it the nearest to the includer."""
        if target in self._names:
            return target
        target = target.lstrip("./")
        # A project may have one for each system.
        return max(
            (name for name in self.ending_in(target) if name == target or name != includer),
            key=lambda name: (
                shared_folders(includer, name),
                not is_foreign(name),
                len({*includer.split("/")[:-1]} & {*name.split("/")[:-1]}),
                -len(name),
                name,
            ),
            default=None,
        )

    def ending_in(self, target: str) -> list[str]:
        """The files whose path is `target`, or ends in it."""
        named = self._by_base.get(posixpath.basename(target), ())
        return [name for name in named if name == target or name.endswith("/" + target)]

    def installed_folders(self, targets: Iterable[str], endings: Sequence[str]) -> dict[str, Counter[str]]:
        """The folders that only the project's installation makes, such as `gsl` of `gsl/gsl_math.h`.

        Such are those of which it has nearly all headers that are included, wherever they lie.

        Args:
            targets: what the includes name that nothing else answers, each as often as it is there.
            endings: what may stand at the end of the name of a file instead of `.h`.

        Returns:
            For each how many of these lie in which folder of the project.
        """
        by_folder: dict[str, Counter[str]] = defaultdict(Counter)
        for folder, _, base in (target.rpartition("/") for target in targets):
            if folder and not folder.startswith("."):
                by_folder[folder][base] += 1
        found: dict[str, Counter[str]] = {}
        for folder, bases in by_folder.items():
            there = {base: names for base in bases if (names := self._named(base, endings))}
            number = sum(bases[base] for base in there)
            if len(there) >= FEWEST_HEADERS and number >= _INSTALLED_SHARE * bases.total():
                found[folder] = Counter(map(posixpath.dirname, itertools.chain(*there.values())))
        return found

    def installed(self, base: str, endings: Sequence[str], folders: Counter[str]) -> str | None:
        """Of the files of a name, or the templates, that in the folder where most of their kind lie."""
        names = self._named(base, endings)
        return max(names, key=lambda n: (folders[posixpath.dirname(n)], -len(n), n), default=None)

    def _named(self, base: str, endings: Sequence[str]) -> list[str]:
        bases = (base, *(base.removesuffix(".h") + ending for ending in endings))
        return next(filter(None, map(self._by_base.get, bases)), [])


def is_foreign(name: str) -> bool:
    """True for a file that is for another system than Linux, by its path."""
    return _FOREIGN.search(name) is not None


def shared_folders(one: str, two: str) -> int:
    """The number of leading parts that two paths share."""
    pairs = zip(one.split("/"), two.split("/"), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def library_includes(
    includes: Mapping[str, Sequence[str]], resolve: Callable[[str, str], str | None]
) -> frozenset[str]:
    """The arguments of includes that nothing in a project answers and that are a library's, not a build's.

    Such are many in quotes with one prefix (`"apr_pools.h"`); many with one first word (`"OsiCuts.hpp"`), or
    below a folder that the project has too, where it has fewer of those that it includes than it lacks, or
    has none right beside them (`<gst/gst.h>`, `<gst/video/video.h>` of one with `gst/vaapi`); and those named
    like their folder (`<gtk/gtk.h>`) where it includes none of its own in brackets.

    Args:
        includes: the arguments of includes (`"a.h"`, `<b/c.h>`), by the file that they stand in.
        resolve: the file of the project that an include in a file leads to, if any.
    """
    lacking: dict[str, set[str]] = defaultdict(set)
    answered: dict[str, set[str]] = defaultdict(set)
    for name, arguments in includes.items():
        for argument in arguments:
            folder, _, base = argument[1:].rpartition("/")
            word = _FIRST_WORD.match(base)
            prefix = re.split(r"[_.]", base)[0] if word is None else f"{word.group()}*"
            prefix = folder.split("/")[0] + "/" if folder else prefix
            if not folder.startswith(".") and (folder or argument[:1] == '"'):
                (answered if resolve(name, argument) else lacking)[prefix].add(argument)
    many = (
        arguments
        for prefix, arguments in lacking.items()
        if len(arguments) >= FEWEST_HEADERS
        and (prefix[-1:] not in "/*" or len(arguments) > len(answered[prefix]))
    )
    folders = {prefix: set(map(_folder, arguments)) for prefix, arguments in answered.items()}
    apart = (
        {each for each in arguments if each[:1] == "<" and _folder(each) not in folders.get(prefix, ())}
        for prefix, arguments in lacking.items()
        if prefix[-1:] == "/"
    )
    named = (
        {each for each in arguments if each[:1] == "<" and each.rpartition("/")[2].startswith(prefix[:-1])}
        for prefix, arguments in lacking.items()
        if prefix[-1:] == "/" and not any(each[:1] == "<" for each in answered[prefix])
    )
    return frozenset[str]().union(*many, *named, *(each for each in apart if len(each) >= FEWEST_HEADERS))


def _folder(argument: str) -> str:
    """The folder that the argument of an include begins with."""
    return argument[1:].rpartition("/")[0]
