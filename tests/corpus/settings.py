"""Settings of the builds whose documents are made to compile."""

from typing import Any

from cpplm.corpus.settings import CorpusSettings


def compilable(out: str, **options: Any) -> CorpusSettings:
    """`CorpusSettings` of `--mode compilable`."""
    return CorpusSettings(out=out, mode="compilable", **options)
