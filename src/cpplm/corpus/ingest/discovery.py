"""Projects and their C++ files: found in a fixed order, read as UTF-8 with LF line ends, skips counted.

What cannot be read as source is left out; what can, but is not worth learning to write, keeps its place in
the list and makes no documents. Either has one named reason, never none. Paths are judged relative to the
project, so a project may live anywhere (below a folder named `build`, say). Links are not followed.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.corpus.ingest.generated_files import (
    HeadComments,
    in_vendor_folder,
    is_data,
    is_generated,
    is_known_copy,
    read_head,
)
from cpplm.corpus.ingest.licenses import LicenseFiles, is_allowed
from cpplm.corpus.ingest.pii import redact
from cpplm.corpus.ingest.walk import IGNORED, SkipCounts, relative_name, walk
from cpplm.corpus.settings import CorpusSettings
from cpplm.cpp.file_suffixes import FRAGMENT_SUFFIXES, HEADER_SUFFIXES, PART_SUFFIXES, SOURCE_SUFFIXES

# Of headers that a build writes; the last is that of config.hin.
TEMPLATE_ENDINGS = (".in", ".cmake", ".cmake.in", ".in.cmake", ".cmakein", ".cin", ".meson", "in", "-Linux")
# Templates of headers that are not named for them: `AC_CONFIG_HEADERS([config.h:config.in])`.
_CONFIGURATIONS = ("config", "header")
AUTOCONF_SCRIPTS = ("configure.ac", "configure.in")
_LONGEST_FORWARD = 50_000
# Comments, directives and namespaces around them.
_DIRECTIVES = re.compile(
    rb"(?:\s|/\*.*?\*/|//[^\n]*"
    rb"|#[ \t]*(?:include|define|undef|ifn?def|if|el\w+|endif|pragma|error)\b[^\n]*"
    rb"|(?:inline\s++)?namespace\b[\w\s:]*+|[{}])*+",
    re.DOTALL,
)
SUFFIXES = SOURCE_SUFFIXES | PART_SUFFIXES | HEADER_SUFFIXES | FRAGMENT_SUFFIXES


@dataclass(frozen=True)
class Project:
    """A named set of folders that belong together.

    `bare_headers` admits names such as `vector`. The names of files without paths are made up, so that no
    include leads from one to another.
    """

    name: str
    roots: tuple[Path, ...]
    bare_headers: bool = False
    has_paths: bool = True


@dataclass(frozen=True)
class FileRules:
    """Rules by which a single file makes documents; `curation` has those over several files."""

    max_file_bytes: int = 500_000
    max_include_bytes: int = 10_000_000
    keep_vendored: bool = False
    keep_ignored: bool = False
    licenses: tuple[str, ...] = ("any",)


@dataclass(frozen=True)
class SourceFile:
    """One file of a project: its name within the project, and the hash of its bytes.

    `license` is an SPDX expression, "" where none was found. Without `makes_documents` the file serves
    includes and macro definitions only, and not even the documents of other files quote it unless it
    `may_be_borrowed`. With `redact` personal data and secrets are replaced when it is read. `is_built`: git
    ignores it, or it lies in a build folder.
    """

    name: str
    path: Path
    size: int
    digest: str
    license: str = ""
    makes_documents: bool = True
    may_be_borrowed: bool = True
    redact: bool = True
    is_built: bool = False


def find_projects(settings: CorpusSettings) -> list[Project]:
    """The projects that the settings name, sorted by name.

    Raises:
        UserError: a path is missing, is no folder or is given twice; g++ is missing.
    """
    folders = [path.expanduser() for path in settings.projects]
    if settings.projects_dir is not None:
        folders += subfolders(settings.projects_dir)
    if settings.projects_list is not None:
        folders += _listed(settings.projects_list.expanduser())
    roots = [_folder(path, "project").resolve() for path in folders]
    for root, times in Counter(roots).items():
        if times > 1:
            raise UserError(f"project {root} is given {times} times", fix="Name each folder once.")
    projects = [Project(name, (root,)) for name, root in zip(_names(roots), roots, strict=True)]
    if settings.cxx_headers:
        projects.append(Project("libstdc++", tuple(find_cxx_headers()), bare_headers=True))
    return sorted(projects, key=lambda project: project.name)


def subfolders(projects_dir: Path) -> list[Path]:
    """The projects in a folder, sorted.

    Raises:
        UserError: it is missing, or has no sub-folders.
    """
    parent = _folder(projects_dir.expanduser(), "--projects_dir")
    inside = sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not inside:
        raise UserError(f"--projects_dir {parent} has no sub-folders", fix="Put each project into one.")
    return inside


def _folder(path: Path, what: str) -> Path:
    if not path.exists():
        raise UserError(f"{what} {path} does not exist", fix="Check the path.")
    if not path.is_dir():
        raise UserError(f"{what} {path} is a file, not a folder", fix=f"Name the folder: {path.parent}.")
    return path


def _listed(path: Path) -> list[Path]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read --projects_list {path}: {error}", fix="One folder per line, UTF-8."
        ) from error
    names = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not names:
        raise UserError(f"--projects_list {path} names no folder", fix="Write one folder per line.")
    return [path.parent / Path(name).expanduser() for name in names]


def _names(roots: list[Path]) -> list[str]:
    """A name per project: the folder's own, with as many parents as it takes to tell them apart."""
    length = 1
    names = [os.fsencode(root.name or "root").decode("utf-8", "replace") for root in roots]
    while len(set(names)) < len(names):
        length += 1
        counted = Counter(names)
        names = [
            os.fsencode("/".join(root.parts[-length:])).decode("utf-8", "replace")
            if counted[name] > 1
            else name
            for root, name in zip(roots, names, strict=True)
        ]
    return names


def find_cxx_headers() -> list[Path]:
    """The folders of the C++ standard library, as the machine's g++ reports them.

    Raises:
        UserError: there is no g++, or it reports no such folder.
    """
    compiler = shutil.which("g++")
    fix = "Install it (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or use --projects."
    if compiler is None:
        raise UserError("--cxx_headers needs g++, which is not on the PATH", fix=fix)
    process = subprocess.run(
        [compiler, "-E", "-v", "-x", "c++", os.devnull],
        capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}, timeout=60,
    )  # fmt: skip
    listing = re.search(
        r"#include <\.\.\.> search starts here:\n(.*?)End of search list", process.stderr, re.DOTALL
    )
    folders = [Path(line.strip()).resolve() for line in listing.group(1).splitlines()] if listing else []
    cxx_folders = [path for path in folders if "c++" in path.parts and path.is_dir()]
    cxx_folders = [
        path for path in dict.fromkeys(cxx_folders) if not any(other in path.parents for other in cxx_folders)
    ]
    if not cxx_folders:
        raise UserError(f"{compiler} reports no folder of C++ headers", fix=fix)
    return cxx_folders


def find_files(project: Project, rules: FileRules | None = None) -> tuple[list[SourceFile], SkipCounts]:
    """The C++ files of a project in a fixed order, and what was left out or makes no documents.

    Reads every file once; each is judged by itself, copies of one another are not looked for here.
    """
    rules = rules or FileRules()
    skips = SkipCounts()
    files: list[SourceFile] = []
    reasons: dict[str, str] = {}
    taken: set[str] = set()
    for number, root in enumerate(project.roots):
        licenses = LicenseFiles(root)
        wanted = functools.partial(is_cpp, bare_headers=project.bare_headers)
        built: dict[Path, str] = {}
        found = walk(root, skips, wanted, keep_ignored=rules.keep_ignored, built=built)
        for path in itertools.chain(found, built):
            name = relative_name(path, root)
            if name in taken:
                name = f"{number}/{name}"
            taken.add(name)
            data = read_raw(path, root, name, rules.max_include_bytes, skips)
            if data is None:
                continue
            text = normalize_source(data)
            head = read_head(text)
            if built.get(path) == IGNORED and not is_generated(text, head):  # it may be somebody's secret
                continue
            license = licenses.of_file(path, head.comments)
            digest = hashlib.sha256(data).hexdigest()
            files.append(SourceFile(name, path, len(data), digest, license, is_built=path in built))
            reasons[name] = next(_reasons(text, head, project.name, files[-1], rules), "")
    # Folders for other people's code are left out, if the project has code of its own.
    vendored = {file.name for file in files if not rules.keep_vendored and in_vendor_folder(file.name)}
    if any(file.name not in vendored and not reasons[file.name] for file in files):
        reasons.update({name: "vendored" for name in vendored if not reasons[name]})
    for file in files:
        if reasons[file.name] and not file.is_built:  # these are counted already
            skips.add(reasons[file.name], file.name, file.size)
    return [
        replace(
            file,
            makes_documents=not (reasons[file.name] or file.is_built),
            may_be_borrowed=is_allowed(file.license, rules.licenses) and not is_template(file.name),
        )
        for file in files
    ], skips


def built_files(
    project: Project, headers: Mapping[str, Path], rules: FileRules, skips: SkipCounts
) -> list[SourceFile]:
    """Headers that a build wrote, under the licenses of the project's folders; by their names in it."""
    licenses = LicenseFiles(project.roots[0])
    files = []
    for name, path in sorted(headers.items()):
        data = read_raw(path, path.parent, name, rules.max_include_bytes, skips)
        if data is not None:
            head = read_head(normalize_source(data)).comments
            license = licenses.of_file(project.roots[0] / name, head)
            files.append(
                SourceFile(
                    name, path, len(data), hashlib.sha256(data).hexdigest(), license, makes_documents=False,
                    may_be_borrowed=is_allowed(license, rules.licenses), is_built=True,
                )
            )  # fmt: skip
    return files


def _reasons(
    text: bytes, head: HeadComments, project: str, file: SourceFile, rules: FileRules
) -> Iterator[str]:
    """The reason why a file makes no documents: what it is comes before what is allowed."""
    if file.size > rules.max_file_bytes:
        yield f"larger than {rules.max_file_bytes:,} bytes"
    if is_template(file.name):
        yield "template of a header"
    is_body = text.startswith(b"{", head.end)  # of functions, for files that include it in theirs
    if is_body or Path(file.name).suffix.lower() in FRAGMENT_SUFFIXES:
        yield "fragment for other files"
    if is_generated(text, head):
        yield "generated"
    if is_data(text):
        yield "minified or data"
    if not rules.keep_vendored and is_known_copy(file.name, head, project):
        yield "copy of a library"
    if not is_allowed(file.license, rules.licenses):
        yield f"license {file.license}" if file.license else "license unknown"


def is_cpp(path: Path, *, bare_headers: bool = False) -> bool:
    """True if a file is C++ by its name; one without a suffix if it does nothing but include others."""
    if not path.suffix:
        return bare_headers or _forwards(path)
    return path.suffix.lower() in SUFFIXES or is_template(path.name)


def _forwards(path: Path) -> bool:
    """True for a file that does nothing but include others, such as <pqxx/connection>."""
    try:
        if not path.is_file() or path.is_symlink() or path.stat().st_size > _LONGEST_FORWARD:
            return False
        data = path.read_bytes()
    except OSError:
        return False
    return b"include" in data and _DIRECTIVES.fullmatch(data) is not None


def is_template(name: str) -> bool:
    """True if a build makes a header of this file."""
    if name.rpartition("/")[2] in AUTOCONF_SCRIPTS:
        return True
    stems = (name.removesuffix(ending) for ending in TEMPLATE_ENDINGS if name.endswith(ending))
    # config_h.in becomes config.h, and gnulib's math.in.h a math.h before the system's
    return name.endswith(".in.h") or any(
        Path(stem).suffix.lower() in HEADER_SUFFIXES
        or stem.endswith("_h")
        or Path(stem).name in _CONFIGURATIONS
        for stem in stems
    )


def read_raw(path: Path, root: Path, name: str, max_bytes: int, skips: SkipCounts) -> bytes | None:
    """The raw bytes of a file that is source; None, counted, otherwise."""
    data, size = b"", 0
    try:
        if path.is_symlink():
            inside = root in path.resolve(strict=True).parents
            reason = "link inside the project" if inside else "link that leaves the project"
        elif not path.is_file():
            reason = "not a plain file"
        elif path.stat().st_size > max_bytes:
            reason, size = f"larger than {max_bytes:,} bytes", path.stat().st_size
        else:
            data = path.read_bytes()
            reason, size = _no_source(data), len(data)
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        reason = "unreadable"
    if reason:
        skips.add(reason, name, size)
    return None if reason else data


def _no_source(data: bytes) -> str:
    """The reason why bytes are no source text; "" when they are."""
    if not data.strip():
        return "empty"
    if b"\0" in data:
        return "binary"
    return "" if _decode(data) is not None else "neither UTF-8 nor Latin-1"


def _decode(data: bytes) -> str | None:
    """UTF-8; else Latin-1 where every other byte is one of its printable characters; else None."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
        return None if re.search("[\x7f-\x9f]", text) else text


def is_utf8(data: bytes) -> bool:
    """True if the bytes are valid UTF-8."""
    return data.decode(errors="ignore").encode() == data


def normalize_source(data: bytes) -> bytes:
    """UTF-8 without byte order mark, with LF line ends: what every later offset refers to."""
    text = _decode(data)
    if text is None:
        raise ValueError("not text: find_files lets no such file through")
    return text.replace("\r\n", "\n").replace("\r", "\n").encode()


def read_source(file: SourceFile) -> bytes:
    """The text of a file as every stage after discovery sees it: UTF-8, LF, redacted.

    All offsets and lines refer to this text.

    Raises:
        OSError: it went away or became unreadable since it was found.
    """
    text = normalize_source(file.path.read_bytes())
    return redact(text)[0] if file.redact else text


def content_digest(files: Iterable[SourceFile]) -> str:
    """A hash of a project's names and contents, and of what was decided on each file."""
    lines = "".join(
        f"{file.digest} {file.makes_documents:d}{file.may_be_borrowed:d}{file.redact:d}{file.is_built:d} "
        f"{file.license} {file.name}\n"
        for file in files
    )
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
