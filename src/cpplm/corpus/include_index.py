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
_FEWEST_HEADERS = 4
# Of the headers that are included below a folder: those that the project has, if it is what installs them.
_INSTALLED_SHARE = 0.75


class IncludeIndex:
    """The names of a project's files, relative to its folder, to resolve includes among them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self._by_base: dict[str, list[str]] = defaultdict(list)
        for name in self._names:
            self._by_base[posixpath.basename(name)].append(name)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def beside(self, includer: str, target: str) -> str | None:
        """The file that an include in quotes names by its place beside the file that includes it."""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(includer), target))
        return path if path in self._names else None

    def nearest(self, includer: str, target: str) -> str | None:
        """The file of exactly this name, else of those whose path ends in it the nearest to the includer."""
        if target in self._names:
            return target
        target = target.lstrip("./")
        candidates = [
            name for name in self._by_base.get(posixpath.basename(target), ())
            if name == target or (name.endswith("/" + target) and name != includer)
        ]  # fmt: skip
        # A project may have one for each system.
        return max(
            candidates,
            key=lambda name: (
                shared_folders(includer, name),
                not is_foreign(name),
                len({*includer.split("/")[:-1]} & {*name.split("/")[:-1]}),
                -len(name),
                name,
            ),
            default=None,
        )

    def installed(self, targets: Iterable[str], endings: Sequence[str]) -> dict[str, str]:
        """The files behind includes below a folder that only their installation makes: `gsl/gsl_math.h`.

        That is a folder of which the project has nearly all headers that are included, wherever they are.

        Args:
            targets: what includes name that nothing else answers.
            endings: what may stand at the end of the name of a file instead of `.h`.
        """
        by_folder: dict[str, dict[str, list[str]]] = defaultdict(dict)
        for folder, _, base in (target.rpartition("/") for target in targets):
            stem = base.removesuffix(".h")
            bases = (base, *(stem + ending for ending in endings))
            if folder and not folder.startswith("."):
                by_folder[folder][base] = next(filter(None, map(self._by_base.get, bases)), [])
        found: dict[str, str] = {}
        for folder, files in by_folder.items():
            there = [names for names in files.values() if names]
            if len(there) >= max(_FEWEST_HEADERS, _INSTALLED_SHARE * len(files)):
                in_folder = Counter(map(posixpath.dirname, itertools.chain(*there)))
                for base, names in files.items():
                    found[f"{folder}/{base}"] = max(
                        names, key=lambda n: (in_folder[posixpath.dirname(n)], -len(n), n), default=""
                    )
        return {target: name for target, name in found.items() if name}


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

    Such are many in quotes with one prefix (`"apr_pools.h"`), and those below a folder that the project has
    too, where it has fewer of those that it includes than it lacks.

    Args:
        includes: the arguments of includes (`"a.h"`, `<b/c.h>`), by the file that they stand in.
        resolve: the file of the project that an include in a file leads to, if any.
    """
    lacking: dict[str, set[str]] = defaultdict(set)
    answered: dict[str, set[str]] = defaultdict(set)
    for name, arguments in includes.items():
        for argument in arguments:
            folder, _, base = argument[1:].rpartition("/")
            prefix = folder.split("/")[0] + "/" if folder else re.split(r"[_.]", base)[0]
            if not folder.startswith(".") and (folder or argument[:1] == '"'):
                (answered if resolve(name, argument) else lacking)[prefix].add(argument)
    many = (
        arguments
        for prefix, arguments in lacking.items()
        if len(arguments) >= _FEWEST_HEADERS
        and (prefix[-1:] != "/" or len(arguments) > len(answered[prefix]))
    )
    return frozenset[str]().union(*many)
