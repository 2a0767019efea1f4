"""Words that are single tokens in every vocabulary: keywords, directives and the core of namespace std.

A few hundred, no more: thousands of library names would take places that code in general needs, and merging
finds those that matter by itself. `forced_vocab.json` says where each list is from.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files


@cache
def forced_words() -> dict[str, tuple[str, ...]]:
    """The lists `keywords`, `directives` and `std`."""
    content = json.loads(files("cpplm.tokenizer").joinpath("forced_vocab.json").read_bytes())
    return {name: tuple(content[name]) for name in ("keywords", "directives", "std")}


def forced_tokens() -> list[bytes]:
    """The core names as the pretokenizer cuts them: bare, behind a space, and joined to `std::`.

    The most important come first, for vocabularies that have no room for all.
    """
    names = forced_words()
    words = [*names["keywords"], *(f"#{name}" for name in names["directives"])]
    words += [f" {name}" for name in names["keywords"]]
    words += [form for name in names["std"] for form in (f"std::{name}", name, f" std::{name}", f" {name}")]
    return [word.encode() for word in dict.fromkeys(words)]
