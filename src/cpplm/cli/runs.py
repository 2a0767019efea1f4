"""`cpplm runs page`."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from cpplm.cli.report import Report
from cpplm.train.page import write_page


@dataclass(frozen=True)
class PageSettings:
    """Settings of `cpplm runs page`."""

    run: tyro.conf.Positional[str]
    """Run folder of `cpplm train`."""


def page(settings: PageSettings) -> Report:
    """Write the page of a run."""
    path = write_page(settings.run)
    return Report(f"{path} (open it in a browser)", {"page": str(path)})
