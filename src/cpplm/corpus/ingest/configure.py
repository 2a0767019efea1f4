"""`corpus build --configure`: the headers and macros that a project's own configuration step makes.

CMake, Meson or the project's `configure` runs in the sandbox, on a copy of the project. It is as untrusted as
any generated program: nothing leaves but one archive of headers and `compile_commands.json`, whose names are
checked and whose text is read like any other file of the project.
"""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from cpplm.core.workers import map_in_threads
from cpplm.corpus.clang.compile_commands import NAME as DATABASE
from cpplm.corpus.clang.compile_commands import command_macros
from cpplm.cpp.file_suffixes import HEADER_SUFFIXES
from cpplm.sandbox.limits import MIB, ResourceLimits
from cpplm.sandbox.sandbox import Sandbox, SandboxError

_LIMITS = ResourceLimits(
    wall_seconds=900,
    cpu_seconds=300,
    memory_bytes=4096 * MIB,
    processes=128,
    scratch_bytes=1024 * MIB,
    open_files=1024,
)
_ARCHIVE, _MOST_BYTES = "built.tar", 64 * MIB
_MOST_SAID = 400  # characters of what went wrong
_TRIALS = " -o ".join(f"-name {name}" for name in ("CMakeFiles", "meson-private", "_deps", "subprojects"))
_HEADERS = " -o ".join(f"-name '*{suffix}'" for suffix in sorted(HEADER_SUFFIXES))
# The first step that succeeds, on a copy: many write beside their sources. A header that is a copy of another
# file is left out: the project has it, or has a reason not to show it, such as its license.
_SCRIPT = rf"""
cd project || {{ echo "the sandbox's user cannot read it" >&2; exit 1; }}
cd .. && mkdir source || exit 1
tar -C project --exclude=./.git --ignore-failed-read -cf - . | tar -C source -xmf - || exit 1
: >stamp && sleep 0.02 # longer than the clock of files takes
step() {{ echo "$1" && rm -rf build && mkdir build && cd build || exit 1
    "$@" >>../log 2>&1; status=$?; cd ..; return $status; }}
configure() {{ if [ -x ../source/configure ]; then ../source/configure; else sh ../source/configure; fi; }}
autoreconf() {{ (cd ../source && command autoreconf --install --force) && configure; }}
if [ -f source/CMakeLists.txt ] && step cmake -S ../source -B . -DFETCHCONTENT_FULLY_DISCONNECTED=ON \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_POLICY_VERSION_MINIMUM=3.5; then done=1
elif [ -f source/meson.build ] && step meson setup . ../source; then done=1
elif [ -f source/configure ] && step configure; then done=1
elif [ ! -f source/configure ] && [ -f source/configure.ac ] && step autoreconf; then done=1
fi
find source ! -newer stamp -type f \( {_HEADERS} -o -name '*.in' \) -exec sha256sum {{}} + | cut -c 1-64 >sums
find build source \( {_TRIALS} \) -prune -o -newer stamp \( -name {DATABASE} -o {_HEADERS} \) -print0 |
    LC_ALL=C sort -z | while IFS= read -r -d '' name; do
        sum=$(sha256sum <"$name" | cut -c 1-64) && grep -q -e "$sum" sums || printf '%s\0' "$name"
    done | tar --dereference --ignore-failed-read --null --verbatim-files-from -cf {_ARCHIVE} -T - || exit 1
pwd
[ "$done" ] || [ ! -f log ] && exit
{{ grep -E -A 6 "^CMake Error|[Ee]rror: |ERROR: " log || tail -n 2 log; }} | head -n 8
exit 1
"""
_WORK = b"/work"  # what the sandbox's folder is called in all that is kept
_PATH = re.compile(rb'"/work[^"]*"')


@dataclass(frozen=True)
class Configured:
    """Headers and macros that the configuration step of a project made.

    Attributes:
        headers: the files, by their names in the project; those of the build folder are in `build/`.
        macros: of the command lines that compile the project, the first value of each.
        step: `cmake`, `meson`, `configure` or `autoreconf`; "" where there was none to run.
        problem: why it failed; "" if it did not.
    """

    headers: Mapping[str, Path] = field(default_factory=dict)
    macros: Mapping[bytes, bytes] = field(default_factory=dict)
    step: str = ""
    problem: str = ""

    def figures(self) -> dict[str, Any]:
        """For the manifest."""
        return {"step": self.step, "headers": len(self.headers), "problem": self.problem}


def configure(roots: Sequence[Path], folder: Path, workers: int, *, unsafe: bool) -> list[Configured]:
    """Configure the project in each of the folders, `workers` at a time; their headers go to `folder`.

    Raises:
        UserError: no sandbox works here.
    """
    sandbox = Sandbox.probe(unsafe=unsafe)
    shutil.rmtree(folder, ignore_errors=True)  # of a build that was killed
    run = partial(_configure, sandbox=sandbox)
    folders = [folder / str(number) for number in range(len(roots))]
    return map_in_threads(run, roots, folders, workers=workers, what="configure", unit="project")


def _configure(root: Path, folder: Path, sandbox: Sandbox) -> Configured:
    try:
        result = sandbox.run(
            {}, ["bash", "-c", _SCRIPT], _LIMITS, fetch={_ARCHIVE: _MOST_BYTES}, folders={"project": root}
        )
    except SandboxError as error:
        return Configured(problem=str(error))
    steps, _, rest = result.stdout.decode(errors="replace").partition("/")
    work, _, errors = f"/{rest}".partition("\n")
    step = " ".join(steps.split()[-1:])
    said = (errors.strip() or result.message().strip() or result.reason)[:_MOST_SAID]
    problem = "" if result.succeeded else " ".join(said.split())
    if problem == "exit":
        problem = f"it ended with {result.exit_code} and said nothing"
    if _ARCHIVE not in result.files:
        return Configured(step=step, problem=problem or f"more than {_MOST_BYTES // MIB} MiB of headers")
    try:
        headers, database = _unpack(result.files[_ARCHIVE], folder, work.encode())
    except (OSError, ValueError, RecursionError, tarfile.TarError) as error:  # the project wrote it
        return Configured(step=step, problem=f"its headers cannot be read: {error}")
    # Texts with paths are empty: where the sandbox has a folder is nothing to learn.
    macros = {name: _PATH.sub(b'""', value) for name, value in command_macros(database).items()}
    return Configured(headers, macros, step, problem)


def _unpack(archive: bytes, folder: Path, work: bytes) -> tuple[dict[str, Path], bytes]:
    """Write the headers into a folder, numbered; returns them by name, and `compile_commands.json`.

    Whatever is no plain file of an honest size and name is left out: the project wrote the archive.

    Args:
        archive: of `build` and `source`, as the sandbox returns it.
        folder: to write to.
        work: path in the sandbox, different from run to run with some of its backends.
    """
    headers: dict[str, Path] = {}
    database = b""
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as members:
        for member in members:
            top, *inside = PurePosixPath(member.name).parts or ("",)
            is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.sparse
            if not is_plain or member.size > len(archive) or not inside or ".." in inside:
                continue
            if top not in ("build", "source") or "\0" in member.name:
                continue
            file = members.extractfile(member)
            data = file.read().replace(work, _WORK) if file else b""
            if inside[-1] == DATABASE:
                database = database or data
                continue
            name = "/".join(inside if top == "source" else (top, *inside))
            with suppress(UnicodeEncodeError):
                headers[name.encode().decode()] = folder / str(len(headers))
                headers[name].write_bytes(data)
    return headers, database
