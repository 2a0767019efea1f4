"""Headers of standard names: those that the table says do declare them."""

from __future__ import annotations

import pytest

from cpplm.corpus.compile.compiler import compile_document
from cpplm.cpp import standard_headers
from cpplm.cpp.standard_headers import header_of
from cpplm.sandbox.sandbox import Sandbox


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("std::sort", "<algorithm>"),
        ("std::chrono", "<chrono>"),
        ("iovec", "<sys/uio.h>"),
        ("snappy::iovec", "<sys/uio.h>"),
        ("size_t", "<stddef.h>"),
        ("std::size_t", "<cstddef>"),
        ("sort", None),
        ("std::iovec", None),
        ("sea::Hull", None),
    ],
)
def test_header_of(name: str, header: str | None) -> None:
    assert header_of(name) == header


@pytest.mark.slow
def test_the_headers_declare_the_names() -> None:
    """Macros as such, everything else by a using declaration, in one compilation."""
    lines = [f"#include {header}" for header in sorted(set(standard_headers.HEADERS.values()))]
    for name in sorted(standard_headers.HEADERS):
        plain = name.removeprefix("std::")
        if name in {"std::chrono", "std::filesystem", "std::this_thread", "std::placeholders"}:
            lines.append(f"namespace ours_{plain} = {name};")
        else:
            lines += [
                f"#ifndef {plain}",
                f"namespace ours_{plain} {{ using {name if '::' in name else '::' + name}; }}",
                "#endif",
            ]
    verdict = compile_document("\n".join(lines), "c++", Sandbox.probe())
    assert verdict.compiles, (verdict.first_error, verdict.undeclared_names)
