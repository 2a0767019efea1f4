"""A folder that appears whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.core.locking import exclusive_lock
from cpplm.core.storage import Storage


@contextmanager
def atomic_directory(out: Path, *, overwrite: bool, known: Callable[[str], bool]) -> Iterator[Path]:
    """A folder to fill; it becomes `out` when the block ends, and only without an error.

    Until then it lies beside, as `.NAME.unfinished`; the next call deletes what a killed process left there.
    An older `out` is moved aside, as `.NAME.before`, between two renames; after a kill in that moment the
    next call moves it back.

    Args:
        out: where.
        overwrite: replace an earlier folder of the same kind.
        known: whether a file of this name is of that kind; a folder with any other is not replaced.

    Raises:
        UserError: `out` is there and may not be replaced, another process writes it, or the disk refuses.
    """
    out = out.expanduser().resolve()
    if not out.name:
        raise UserError(f"{out} cannot be replaced", fix="Name a folder in it as --out.")
    unfinished, before = (out.with_name(f".{out.name}.{what}") for what in ("unfinished", "before"))
    with exclusive_lock(out):
        try:
            _clear(out, unfinished, before)
            _refuse(out, overwrite=overwrite, known=known)
            unfinished.mkdir(parents=True)
            try:
                yield unfinished
                names = [str(path.relative_to(unfinished)) for path in unfinished.rglob("*")]
                Storage(unfinished).sync(names)
                if out.exists():
                    out.rename(before)
                unfinished.rename(out)
            finally:
                _clear(out, unfinished, before)
            Storage(out.parent).sync([out.name])
        except OSError as error:
            raise UserError(
                f"cannot write {out}: {error.strerror or error}",
                fix="Free some space or check the permissions, then run the same command again.",
            ) from error


def _clear(out: Path, unfinished: Path, before: Path) -> None:
    """Delete what is no whole folder; what was moved aside goes back where nothing took its place."""
    shutil.rmtree(unfinished, ignore_errors=True)
    if before.exists():
        before.rename(unfinished if out.exists() else out)
        shutil.rmtree(unfinished, ignore_errors=True)


def _refuse(out: Path, *, overwrite: bool, known: Callable[[str], bool]) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file", fix="Name a folder as --out.")
    names = sorted(path.name for path in out.iterdir())
    if names and not overwrite:
        raise UserError(
            f"{out} is not empty", fix="Name another --out, or add --overwrite to replace an earlier export."
        )
    strangers = [name for name in names if not known(name) or not (out / name).is_file()]
    if strangers:
        more = f" and {len(strangers) - 3} more" if len(strangers) > 3 else ""
        raise UserError(
            f"{out} holds what no export wrote: {', '.join(strangers[:3])}{more}",
            fix="Name another --out, or delete the folder yourself.",
        )
