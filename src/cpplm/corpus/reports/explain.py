"""`cpplm corpus explain`: the documents that a line of a source file stands in, and why it stands there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.shards import ShardReader

_COLUMNS = ["id", "project", "kind", "files", "sources"]
# A chain of reasons in real code has a few links; a document's own lines end it.
_MOST_LINKS = 50


@dataclass(frozen=True)
class ExplainSettings:
    """Settings of `cpplm corpus explain`."""

    corpus: Annotated[str, Argument("CORPUS", positional=True)]
    """Folder or bucket URL of a corpus."""
    line: Annotated[str, Argument("FILE:LINE")]
    """A line of a source file, as src/table.cc:41; the file's name may lack its first folders."""


def explain(settings: ExplainSettings) -> dict[str, Any]:
    """The documents with a line, each with the chain of reasons that leads from it to the unit's own code.

    Raises:
        UserError: no corpus there, no line of a file, or no file of that name in any document.
    """
    name, _, number = settings.line.rpartition(":")
    if not name or not number.isdecimal() or int(number) < 1:
        raise UserError(f"--line {settings.line} is no line of a file", fix="Give it as src/table.cc:41.")
    reader = ShardReader(settings.corpus)
    documents: list[dict[str, Any]] = []
    known = False
    for shard in reader.shards():
        for row in reader.table(shard, _COLUMNS).to_pylist():
            matching = [source for source in row["sources"] if f"/{source['file']}".endswith(f"/{name}")]
            known = known or bool(matching)
            here = [source for source in matching if source["first"] <= int(number) <= source["last"]]
            if here:
                entry = {key: row[key] for key in ("id", "project", "kind")}
                chain = _chain(here[0], row["sources"])
                documents.append({**entry, "file": row["files"][0], "split": shard.split, "chain": chain})
    if not known:
        raise UserError(
            f"no document of {settings.corpus} has lines of {name}",
            fix="Name the file as 'cpplm corpus inspect' shows it; perhaps it was filtered out.",
        )
    return {"line": settings.line, "documents": documents}


def _chain(source: dict[str, Any], sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A stretch of lines, the stretch that names it, and so on, to one that nothing else is a reason for."""
    chain = [source]
    while source["reason"] and len(chain) < _MOST_LINKS:
        file, _, line = source["reason"].rpartition(" ")[2].rpartition(":")
        following = next(
            (s for s in sources if s["file"] == file and line and s["first"] <= int(line) <= s["last"]), None
        )
        if following is None or following in chain:
            break
        chain.append(following)
        source = following
    return chain


def format_explanation(result: dict[str, Any]) -> str:
    """The explanation as text."""
    lines: list[str] = []
    for document in result["documents"]:
        lines.append(f"{document['id'][:12]}  {document['kind']} of {document['file']} ({document['split']})")
        for source in document["chain"]:
            place = f"{source['file']}:{source['first']}-{source['last']}"
            lines.append(f"    {place}  {source['reason'] or 'the unit itself'}")
    return "\n".join(lines) or f"{result['line']} stands in no document, other lines of its file do"
