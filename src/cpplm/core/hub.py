"""Repositories of the Hugging Face hub: read like a bucket, written to by one commit.

    hf://OWNER/NAME[@REVISION][/FOLDER]            a model
    hf://datasets/OWNER/NAME[@REVISION][/FOLDER]   a data set

What is opened is one commit: a branch or tag is resolved once, and the location then names its commit. Files
come through the library's cache (HF_HOME), whole or not at all. HF_ENDPOINT and HF_TOKEN are the library's;
the token stands in no message of ours.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from cpplm.core.errors import UserError, import_extra
from cpplm.core.progress import log_info

if TYPE_CHECKING:
    from huggingface_hub import DatasetInfo, HfApi, ModelInfo

PREFIX = "hf://"
READABLE = (".json", ".jsonl", ".parquet", ".safetensors")  # none of which can hold a program
_REPOSITORY = r"(?!datasets/)[A-Za-z0-9][\w.-]*/[\w.-]+"
_LOCATION = re.compile(rf"{PREFIX}(datasets/)?({_REPOSITORY})(?:@([^/@\s]+))?(?:/(.*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LARGE = 10_000_000  # bytes: a download that is announced
_PIECE = 8 << 20
TIMEOUT = 120.0  # seconds without a byte, of all but downloads (HF_HUB_DOWNLOAD_TIMEOUT)
_WAITS = (1.0, 4.0)  # seconds before the second and the third try
_LONGEST_WAIT = 60.0  # that the hub may ask for
_AGAIN = "Run the same command again; what has arrived is kept."
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class HubLocation:
    """A folder of a repository; `folder` is "" for all of it."""

    kind: str
    repository: str
    revision: str
    folder: str

    @classmethod
    def parse(cls, url: str) -> HubLocation:
        """Read a URL; UserError if it is not of this form."""
        match = _LOCATION.fullmatch(url)
        if match is None:
            raise UserError(
                f"{url} is no place on the hub",
                fix="Write hf://OWNER/NAME or hf://datasets/OWNER/NAME, then @REVISION and /FOLDER.",
            )
        kind, repository, revision, folder = match.groups()
        return cls(
            "dataset" if kind else "model", repository, unquote(revision or "main"), (folder or "").strip("/")
        )

    def __str__(self) -> str:
        kind = "datasets/" if self.kind == "dataset" else ""
        folder = f"/{self.folder}" if self.folder else ""
        return f"{PREFIX}{kind}{self.repository}@{quote(self.revision, safe='')}{folder}"

    @property
    def is_pinned(self) -> bool:
        """True if the revision is a commit, which never changes."""
        return bool(_COMMIT.fullmatch(self.revision))

    def pin(self, earlier: str = "") -> HubLocation:
        """The same place in the commit that its revision names now, or named earlier.

        Args:
            earlier: if this is the same place in a commit, it is that one.

        Raises:
            UserError: there is no such repository or revision, or the hub does not answer.
        """
        if self.is_pinned:
            return self
        before = HubLocation.parse(earlier) if earlier.startswith(PREFIX) else self
        if before.is_pinned and replace(self, revision=before.revision) == before:
            return before
        return replace(self, revision=str(self.look_up().sha))

    def look_up(self, *, files: bool = False) -> ModelInfo | DatasetInfo:
        """The hub's record of the repository; with `files` also their sizes. UserError as of `pin`."""
        hub = _connect()
        ask = hub.dataset_info if self.kind == "dataset" else hub.model_info
        return _try(
            lambda: ask(self.repository, revision=self.revision, timeout=TIMEOUT, files_metadata=files),
            str(self),
        )


class HubStore:
    """The part of an object store's interface that `Storage` reads by, for one commit of a repository."""

    def __init__(self, url: str) -> None:
        self.location = HubLocation.parse(url).pin()
        self._files: dict[str, int] | None = None

    def head(self, name: str) -> Mapping[str, int]:
        """Size of a file.

        Raises:
            FileNotFoundError: there is none of that name.
        """
        sizes = self._sizes()
        if name not in sizes:
            raise FileNotFoundError(name)
        return {"size": sizes[name]}

    def list(self, prefix: str | None = None) -> list[list[dict[str, str | int]]]:
        """Names and sizes of the files below a folder, in one batch."""
        inside = f"{prefix.rstrip('/')}/" if prefix else ""
        return [
            [{"path": name, "size": size} for name, size in self._sizes().items() if name.startswith(inside)]
        ]

    def get(self, name: str) -> HubFile:
        """A file, which is in the cache from then on.

        Raises:
            FileNotFoundError: there is none of that name.
            UserError: it is not of a kind that is read, or does not arrive.
        """
        where = f"{self.location}/{name}"
        if not name.endswith(READABLE):
            raise UserError(
                f"{where} is not read: it may hold a program", fix=f"Read are {', '.join(READABLE)}."
            )
        hub, place = _connect(), self.location
        path = f"{place.folder}/{name}" if place.folder else name
        if (size := self._sizes().get(name, 0)) > _LARGE:
            log_info(f"{where}: {size / 1e6:,.1f} MB, unless it is in the cache")
        file = _try(
            lambda: hub.hf_hub_download(
                place.repository, path, repo_type=place.kind, revision=place.revision
            ),
            where,
        )
        return HubFile(Path(file))

    def put(self, name: str, *_: object, **__: object) -> None:
        """Refuse to write."""
        raise UserError(
            f"{self.location}/{name} cannot be written: the hub is only read",
            fix="Name another place to write to; 'cpplm export --push' puts a model on the hub.",
        )

    delete = put

    def _sizes(self) -> dict[str, int]:
        if self._files is None:
            inside = f"{self.location.folder}/" if self.location.folder else ""
            files = self.location.look_up(files=True).siblings or ()
            self._files = {
                file.rfilename.removeprefix(inside): file.size or 0
                for file in files
                if file.rfilename.startswith(inside)
            }
        return self._files


@dataclass(frozen=True)
class HubFile:
    """A file in the cache."""

    path: Path

    def stream(self) -> Iterator[bytes]:
        """It piece by piece."""
        with self.path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    def bytes(self) -> bytes:
        """All of it."""
        return self.path.read_bytes()


def require_push(repository: str) -> None:
    """Refuse a name that no repository has, and a machine where nobody is logged in; says nothing of rights.

    Raises:
        UserError: one of these, or the hub does not answer.
    """
    if not re.fullmatch(_REPOSITORY, repository):
        raise UserError(f"--push {repository} is no repository", fix="Write OWNER/NAME.")
    _try(_connect().whoami, f"the hub's account for {repository}", action="look up")


def push(source: Path, repository: str, *, revision: str, private: bool, stale: Callable[[str], bool]) -> str:
    """Put a file, or the files of a folder, into the repository of a model, by one commit; returns its URL.

    Args:
        source: what is put there.
        repository: OWNER/NAME; it is made if it is not there.
        revision: branch, which is made from `main` if it is not there; "" for `main`.
        private: the repository is to be seen by its owner alone.
        stale: whether a file of this name that is there and not in the folder is deleted by the same commit.

    Raises:
        UserError: the hub refuses, does not answer, or has the repository in public against `private`.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete  # noqa: PLC0415  (an extra)

    hub = _connect()
    paths = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    root = source if source.is_dir() else source.parent
    additions = {path.relative_to(root).as_posix(): path for path in paths}
    branch = revision or "main"

    def commit() -> str:
        hub.create_repo(repository, private=private or None, exist_ok=True)
        if private and not hub.model_info(repository, timeout=TIMEOUT).private:
            raise UserError(
                f"{repository} is there already, and public",
                fix="Make it private on its page first, or leave out --private.",
            )
        if branch != "main":
            hub.create_branch(repository, branch=branch, exist_ok=True)
        there = hub.model_info(repository, revision=branch, timeout=TIMEOUT).siblings or ()
        names = [file.rfilename for file in there if source.is_dir() and file.rfilename not in additions]
        return hub.create_commit(
            repository,
            [
                *(CommitOperationAdd(name, str(path)) for name, path in additions.items()),
                *(CommitOperationDelete(name) for name in names if stale(name)),
            ],
            commit_message=f"{source.name}, by cpplm export",
            revision=branch,
        ).commit_url

    return _try(commit, f"{PREFIX}{repository}@{branch}", action="write")


def _connect() -> HfApi:
    """The library's client, without bars and warnings, with a time-out; UserError if it is not installed."""
    library = import_extra("huggingface_hub", "the hub needs", "hub")
    import_extra("huggingface_hub.utils", "the hub needs", "hub").disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    library.get_session().timeout = TIMEOUT
    return library.HfApi()


def _try(call: Callable[[], _Value], where: str, action: str = "read") -> _Value:
    """The value of a call, which is made again after what may pass.

    Raises:
        FileNotFoundError: the repository has no such file.
        UserError: anything else that went wrong.
    """
    from httpx2 import HTTPError, TimeoutException  # noqa: PLC0415  (an extra)

    for wait in (*_WAITS, None):
        try:
            return call()
        except (HTTPError, OSError, RuntimeError, ValueError) as raised:
            error = _cause(raised)
            status, asked = _status(error)
            passing = (
                status in (408, 429)
                or status >= 500
                or (isinstance(error, HTTPError) and not status and not isinstance(error, TimeoutException))
            )  # the library has tried again after a time-out
            if not passing or wait is None or asked > _LONGEST_WAIT:
                raise _explain(error, status, f"cannot {action} {where}", asked) from raised
            log_info(f"cannot {action} {where} yet ({status or error}): again in {max(wait, asked):.0f} s")
            time.sleep(max(wait, asked))
    raise AssertionError


def _cause(error: BaseException) -> BaseException:
    """Error that the library has wrapped in "not in the cache either", or in "error while uploading"."""
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415  (an extra)

    while isinstance(error, LocalEntryNotFoundError | RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> tuple[int, float]:
    """HTTP status, 0 for none, and for how many seconds the hub wants to be left alone."""
    response = getattr(error, "response", None)
    if response is None:
        return 0, 0.0
    asked = response.headers.get("retry-after", "")
    return int(response.status_code), float(asked) if asked.isdecimal() else 0.0


def _explain(error: BaseException, status: int, what: str, asked: float) -> Exception:
    """One line for the user, without the library's advice and without the token."""
    from httpx2 import HTTPError, TimeoutException  # noqa: PLC0415  (an extra)
    from huggingface_hub import constants, get_token  # noqa: PLC0415
    from huggingface_hub import errors as known  # noqa: PLC0415

    if isinstance(error, known.RemoteEntryNotFoundError):
        return FileNotFoundError(what)
    token, text = get_token(), getattr(error, "server_message", None) or str(error)
    reason = " ".join((text.replace(token, "***") if token else text).split())[:300].rstrip(".")
    login = "set HF_TOKEN, or run 'hf auth login'."
    cases = (  # the first that is true
        (isinstance(error, known.OfflineModeIsEnabled), "HF_HUB_OFFLINE forbids to ask the hub", "Unset it."),
        (isinstance(error, known.RevisionNotFoundError), "no such revision", "Name a branch, tag or commit."),
        (isinstance(error, known.LocalTokenNotFoundError), "nobody is logged in", f"To log in, {login}"),
        (status == 403, "the hub forbids it (403)",
         "Use a token with that right; access to a gated repository is asked for on its page."),
        (status == 401 or isinstance(error, known.RepositoryNotFoundError),
         f"no such repository, or no access ({status})", f"Check the name; for what is private {login}"),
        (status == 429, "too many requests (429)", f"Wait{f' {asked:,.0f} s' if asked else ''}. {_AGAIN}"),
        (isinstance(error, TimeoutException), f"no answer from {constants.ENDPOINT} in time",
         f"Check the network, HF_ENDPOINT, and HF_HUB_DOWNLOAD_TIMEOUT (seconds). {_AGAIN}"),
        (status == 0 and isinstance(error, HTTPError), f"no connection to {constants.ENDPOINT}: {reason}",
         f"Check the network and HF_ENDPOINT. {_AGAIN}"),
        (status >= 500, f"the hub failed ({status}): {reason}", _AGAIN),
        (True, f"{reason} ({status})" if status else reason, ""),
    )  # fmt: skip
    return next(UserError(f"{what}: {why}", fix=fix) for case, why, fix in cases if case)
