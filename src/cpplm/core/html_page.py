"""HTML: pages from Jinja templates, which escape whatever they are given, and text with shaded parts."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jinja2

PRE_STYLE = "color:#1b1b1b;background:#fff;padding:1em;line-height:1.5;white-space:pre-wrap"
"""Style of a `<pre>` element that reads on light and dark pages."""


def render(
    package: str,
    template: str,
    filters: Mapping[str, Callable[..., Any]],
    *,
    autoescape: bool = True,
    **values: object,
) -> str:
    """The page as text.

    Args:
        package: whose folder `templates` has the template.
        template: its file name.
        filters: functions that the template may apply.
        autoescape: False for a text that is no HTML.
        **values: what it shows; to use a name without a value is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        autoescape=autoescape,  # noqa: S701  (True but for Markdown)
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template).render(values)


def shaded_text(pieces: Iterable[tuple[str, float, str]]) -> str:
    """One `<pre>` element of text in pieces.

    Args:
        pieces: text, its shade from 0 (none) to 1 (darkest), and a remark that shows under the pointer.
    """
    spans = [
        f'<span style="background:rgba(255,120,0,{min(max(shade, 0.0), 1.0):.2f})" '
        f'title="{html.escape(remark)}">{html.escape(text)}</span>'
        for text, shade, remark in pieces
        if text
    ]
    return f'<pre style="{PRE_STYLE}">{"".join(spans)}</pre>\n'
