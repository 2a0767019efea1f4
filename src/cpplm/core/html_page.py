"""HTML pages from Jinja templates; a template escapes whatever it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jinja2


def render(package: str, template: str, filters: Mapping[str, Callable[..., Any]], **values: object) -> str:
    """The page as text.

    Args:
        package: whose folder `templates` has the template.
        template: its file name.
        filters: functions that the template may apply.
        **values: what it shows; to use a name without a value is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template).render(values)
