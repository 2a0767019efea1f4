"""Settings of `cpplm corpus build`, and which of them change its documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, to_dict
from cpplm.core.storage import sha256
from cpplm.core.workers import available_cores
from cpplm.corpus.ingest.licenses import check_names

Mode = Literal["compilable", "cross-file", "inlined", "file"]
SplitBy = Literal["auto", "project", "unit"]
# Settings that say where things are or how fast to go; two builds that differ only in them are the same.
_WITHOUT_EFFECT = (
    *("projects", "projects_dir", "projects_list", "cxx_headers", "jsonl"),
    *("out", "append", "workers", "engine", "tasks", "tokenizer", "compile_commands", "unsafe"),
)


@dataclass(frozen=True)
class CorpusSettings:
    """Settings of `cpplm corpus build`: the projects, the length and kind of documents, the output."""

    out: Annotated[str, Argument("FOLDER")]
    """Folder or bucket URL for the shards; `cpplm corpus export` makes JSON lines of them."""
    projects: Annotated[tuple[Path, ...], Argument("PROJECT", positional=True)] = ()
    """Folders, each one project."""
    projects_dir: Path | None = None
    """A folder whose sub-folders are projects."""
    projects_list: Path | None = None
    """A text file with one project folder per line (# starts a comment)."""
    cxx_headers: bool = False
    """Use the C++ standard library headers of this machine's g++, as one project named libstdc++."""
    jsonl: tuple[Path, ...] = ()
    """Files of JSON lines, also .gz and .zst: {"text": ...}, with path, project and license where known."""
    append: bool = False
    """Add the projects to the finished corpus in --out; its documents stay, each in its split."""
    tokenizer: Path | None = None
    """Count the budget with this tokenizer; without one it is counted in bytes."""
    max_tokens: int | None = None
    """Longest document in tokens (needs --tokenizer; 16384 when only that is given)."""
    max_bytes: int = 49_152
    """Longest document in bytes of UTF-8; not used with --tokenizer."""
    mode: Mode = "file"
    """file: a document per file, as it is; compilable: headers with their sources and what they need of the
    project, in the compiler's order; cross-file: with the bodies of functions that they call in other source
    files, too; inlined: with all that the project's includes bring, for long contexts."""
    cross_file_depth: int = 3
    """With --mode cross-file: how many calls to follow into other source files."""
    max_repeat: float = 8.0
    """Limit on the size of all documents, as a multiple of the source text; beyond it, those that repeat
    most are built with less or no text of other files."""
    semantic: bool = False
    """Resolve names exactly with libclang where it can parse (needs cpplm[semantic]; 20 times slower)."""
    compile_commands: Path | None = None
    """The compilation database for --semantic; by default the one in each project or its build folder."""
    configure: bool = False
    """Run each project's own configuration step (CMake, Meson, configure) in the sandbox, without a network,
    and read the headers that it writes and the macros of its compile commands."""
    label: bool = False
    """Compile every document (syntax only, in the sandbox) and store whether it does: half a second each."""
    headers: tuple[Path, ...] = ()
    """Folders of third-party headers for --label."""
    unsafe: bool = False
    """Run the compiler and configuration steps without isolation. Never do this with code that you do not
    trust."""
    val_fraction: float = 0.05
    """Share of the bytes held out for validation."""
    val_split: SplitBy = "auto"
    """Held-out text: project = whole projects, which measures unseen code; unit = part of each project (a
    unit is a source file with its headers); auto = project, but unit if there is only one project."""
    max_file_bytes: int = 500_000
    """Larger files are counted and named, but do not become documents."""
    max_include_bytes: int = 10_000_000
    """Larger files do not even serve the includes of others."""
    keep_vendored: bool = False
    """Also learn from third_party, vendor and such folders, and from well-known single-file libraries."""
    keep_ignored: bool = False
    """Also learn from build folders and from what .gitignore files leave out."""
    licenses: tuple[str, ...] = ("any",)
    """Licenses to learn from: any; permissive; or SPDX identifiers. Unknown ones count for any only."""
    keep_personal_data: bool = False
    """Leave e-mail addresses and secrets (keys, tokens, passwords in URLs) as they are."""
    near_duplicates: float = 0.85
    """Leave out files that share this much of their text with an earlier one; 0: only exact copies."""
    decontaminate: tuple[Path, ...] = ()
    """JSON lines with evaluation problems whose text must not be learned, besides those that cpplm brings."""
    workers: int = 0
    """Processes; 0 uses every core. The documents do not depend on it."""
    engine: Literal["local", "datatrove"] = "local"
    """Runner of the processes; datatrove needs cpplm[cluster], and can run the same on Slurm."""
    tasks: int = 0
    """With --engine datatrove: into how many tasks to divide the projects; 0 makes one per worker."""

    def __post_init__(self) -> None:
        if not (self.projects or self.projects_dir or self.projects_list or self.cxx_headers or self.jsonl):
            raise UserError(
                "no project was given",
                fix="Name a folder, or pass --projects_dir, --projects_list, --jsonl or --cxx_headers.",
            )
        self._check_budget()
        if self.compile_commands is not None and not self.semantic:
            raise UserError("--compile_commands has no effect alone", fix="Add --semantic, or leave it out.")
        self._check_mode()
        if self.headers and not self.label:
            raise UserError("--headers has no effect without a compiler", fix="Add --label.")
        if self.unsafe and not (self.label or self.configure):
            raise UserError("--unsafe has no effect: nothing is run", fix="Add --label or --configure.")
        if self.max_repeat < 1:
            raise UserError(
                f"--max_repeat {self.max_repeat} is less than the source itself",
                fix="Try 5, or 1 for no repetition.",
            )
        if not 0 < self.val_fraction < 1:
            raise UserError(f"--val_fraction {self.val_fraction} is not between 0 and 1", fix="Try 0.05.")
        if self.max_file_bytes < 1:
            raise UserError(f"--max_file_bytes {self.max_file_bytes} leaves no file", fix="Try 500000.")
        if self.max_include_bytes < self.max_file_bytes:
            raise UserError(
                "--max_include_bytes is below --max_file_bytes",
                fix="A file that makes documents is read, too: raise it.",
            )
        check_names(self.licenses)
        if self.near_duplicates and not 0.5 <= self.near_duplicates <= 1:
            raise UserError(
                f"--near_duplicates {self.near_duplicates} is not a similarity from 0.5 to 1",
                fix="Try 0.85; 0 keeps near-duplicates.",
            )
        if self.workers < 0:
            raise UserError(f"--workers {self.workers} is negative", fix="Use 0 for every core.")
        if self.tasks < 0 or (self.tasks and self.engine == "local"):
            raise UserError(
                f"--tasks {self.tasks} has no effect", fix="Use it with --engine datatrove, from 1 on."
            )

    def _check_mode(self) -> None:
        for name in ("semantic", "configure"):
            if getattr(self, name) and self.mode == "file":
                raise UserError(f"--{name} has no effect with --mode file", fix="Add --mode compilable.")
        if self.cross_file_depth < 1:
            raise UserError(
                f"--cross_file_depth {self.cross_file_depth} follows no call", fix="Use --mode compilable."
            )
        if self.cross_file_depth != CorpusSettings.cross_file_depth and self.mode != "cross-file":
            raise UserError(
                f"--cross_file_depth has no effect with --mode {self.mode}", fix="Add --mode cross-file."
            )

    def _check_budget(self) -> None:
        if self.max_tokens is not None and self.tokenizer is None:
            raise UserError(
                "--max_tokens counts real tokens and needs a tokenizer",
                fix="Add --tokenizer FILE, or give the budget as --max_bytes.",
            )
        if self.tokenizer is not None and self.max_bytes != CorpusSettings.max_bytes:
            raise UserError(
                "--max_bytes has no effect with --tokenizer",
                fix="Use --max_tokens, or leave --tokenizer out.",
            )
        if self.max_tokens is not None and self.max_tokens < 128:
            raise UserError(f"--max_tokens {self.max_tokens} is too short for code", fix="Use at least 128.")
        if self.max_bytes < 512:
            raise UserError(f"--max_bytes {self.max_bytes} is too short for code", fix="Use at least 512.")

    @property
    def budget(self) -> int:
        """The longest document, in the unit that is counted."""
        if self.tokenizer is None:
            return self.max_bytes
        return 16_384 if self.max_tokens is None else self.max_tokens

    @property
    def worker_count(self) -> int:
        """Processes to start."""
        return self.workers or available_cores()

    def identity(self, tokenizer_hash: str) -> dict[str, Any]:
        """The settings that decide the documents, to compare two builds."""
        values = {name: value for name, value in to_dict(self).items() if name not in _WITHOUT_EFFECT}
        if self.tokenizer is None:
            values.pop("max_tokens")
        else:
            values.pop("max_bytes")
            values["max_tokens"] = self.budget
        if self.mode != "cross-file":
            values.pop("cross_file_depth")
        values["tokenizer_hash"] = tokenizer_hash
        values["decontaminate"] = sorted(_file_hash(path) for path in self.decontaminate)
        return values


def _file_hash(path: Path) -> str:
    try:
        return sha256(path.expanduser().read_bytes())
    except OSError as error:
        raise UserError(
            f"cannot read --decontaminate {path}: {error.strerror}",
            fix="Name a JSON Lines file with problems.",
        ) from error
