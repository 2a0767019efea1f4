"""The one exception that means "you can fix this"; optional packages, whose lack is such a case."""

from __future__ import annotations

import importlib
from typing import Any


class UserError(Exception):
    """Bad input, bad settings or a missing tool.

    The message says what is wrong, where, and how to fix it. The command line prints it as one line
    and exits with 2; every other exception is a defect of cpplm and exits with 1.
    """

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(f"{what}. {fix}" if fix else what)


def import_extra(module: str, needs: str, extra: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: its name.
        needs: what needs it, with its verb, such as "commits need".
        extra: of cpplm, that installs it.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{needs} a package: {error}", fix=f"pip install 'cpplm[{extra}]'") from error
