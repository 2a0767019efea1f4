"""The repair loop: a unit whose documents fail to compile is built again with what they lack, at most twice.

What a document lacks is read off the compiler's messages:

    an undeclared name      declared in a header that no include of the unit reaches, or only in a source
    an incomplete type      defined there
    a standard header       the compiler's own suggestion, or the usual header of a well-known name
    a header nobody has     a quoted include that neither the project nor the system answers: left out
    a macro of the build    `#ifndef NAME`, `#error`

Where code is not self-contained, its users include other headers first; and builds write headers and define
macros. A member function that a class lacks was left out where the class was shortened, and counts as a name.
The version of which a larger share of documents compiles is kept, the first one of equals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cpplm.corpus.compile.compiler import CompileResult, main_source
from cpplm.corpus.compile.labels import Compile
from cpplm.corpus.document import Document
from cpplm.corpus.include_index import shared_folders
from cpplm.corpus.ingest.discovery import is_fragment
from cpplm.corpus.slicing.asked import NOTHING, Asked
from cpplm.corpus.slicing.closure import Index
from cpplm.corpus.slicing.documents import Options, build_unit
from cpplm.corpus.slicing.units import Unit
from cpplm.cpp.file_suffixes import is_source
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import IDENTIFIER
from cpplm.cpp.parser import language_of
from cpplm.cpp.segments import Scope
from cpplm.cpp.standard_headers import header_of

TRIES = 2
Version = list[tuple[Document, CompileResult]]
REASONS = (
    "an undeclared name",
    "an incomplete type",
    "a standard header",
    "a header nobody has",
    "a macro of the build",
)
# Missing headers that are looked for in one document: the compiler stops at each.
_MOST_MISSING = 8
_DECLARING = frozenset({
    ItemKind.MACRO, ItemKind.FORWARD, ItemKind.TYPE, ItemKind.ALIAS,
    ItemKind.VARIABLE, ItemKind.PROTOTYPE, ItemKind.FUNCTION,
})  # fmt: skip
_STATIC = re.compile(rb"^static\b", re.MULTILINE)


@dataclass(frozen=True)
class Repaired:
    """A unit after the loop: its documents with what the compiler says of each.

    Attributes:
        first: as it was built first.
        version: as it is kept.
        reasons: why it was built again; empty when it was not.
    """

    first: Version
    version: Version
    reasons: tuple[str, ...] = ()

    @property
    def better(self) -> bool:
        """Whether building it again helped."""
        return self.version is not self.first

    @property
    def growth(self) -> int:
        """How many bytes longer the documents are than they were first."""
        return _size(self.version) - _size(self.first)


def within(units: Sequence[Repaired], most: int) -> list[Repaired]:
    """The units with fewer repairs, those that grew most undone, until all text has at most `most` bytes.

    Text that was longer before any repair stays that long.
    """
    kept = list(units)
    most = max(most, sum(_size(unit.first) for unit in units))
    total = sum(_size(unit.version) for unit in units)
    for number in sorted(range(len(units)), key=lambda number: (-units[number].growth, number)):
        if total > most and units[number].growth > 0:
            kept[number] = replace(units[number], version=units[number].first)
            total -= units[number].growth
    return kept


def size_of(documents: Iterable[Document]) -> int:
    """The length of all texts in UTF-8."""
    return sum(len(document.text.encode()) for document in documents)


def _size(version: Version) -> int:
    return size_of(document for document, _ in version)


@dataclass
class RepairFigures:
    """Units that were built again, and those where that helped; a unit counts for each of its reasons."""

    tried: Counter[str] = field(default_factory=Counter)
    better: Counter[str] = field(default_factory=Counter)

    def add(self, built: Repaired) -> None:
        """Count one unit."""
        for counts in (self.tried, self.better) if built.better else (self.tried,):
            if built.reasons:
                counts.update(["units", *built.reasons])

    def merge(self, other: RepairFigures) -> None:
        """Count those of another batch."""
        self.tried.update(other.tried)
        self.better.update(other.better)

    def to_dict(self) -> dict[str, Any]:
        """For the manifest: `units`, of which `better`, and both by reason."""
        counts = {name: {"tried": self.tried[name], "better": self.better[name]} for name in REASONS}
        return {
            "units": self.tried["units"],
            "better": self.better["units"],
            "reasons": {name: count for name, count in counts.items() if count["tried"]},
        }


@dataclass
class Loop:
    """Compiles the documents of one unit and builds it again; each text is compiled once."""

    unit: Unit
    index: Index
    options: Options
    compile: Compile
    _verdicts: dict[str, CompileResult] = field(default_factory=dict)

    def run(self, documents: Sequence[Document], tries: int = TRIES) -> Repaired:
        """Compile the unit's documents, and build it at most `tries` times again."""
        first = best = last = self._judged(documents)
        asked, reasons = NOTHING, dict[str, None]()
        for _ in range(tries):
            more, why = self._lacks(last)
            if more | asked == asked:
                break
            asked |= more
            reasons |= dict.fromkeys(why)
            last = self._judged(build_unit(self.unit, self.index, replace(self.options, asked=asked))[0])
            if _rate(last) > _rate(best):
                best = last
        return Repaired(first, best, tuple(reasons))

    def _judged(self, documents: Sequence[Document]) -> Version:
        return [(document, self._verdict(document, document.text)) for document in documents]

    def _verdict(self, document: Document, text: str) -> CompileResult:
        if text not in self._verdicts:
            language = language_of(main_source(document.files), self.index.is_c)
            self._verdicts[text] = self.compile(text, language)
        return self._verdicts[text]

    def _lacks(self, version: Version) -> tuple[Asked, list[str]]:
        """What the failing documents lack, and the names of these reasons."""
        asked = NOTHING
        reasons: list[str] = []
        for document, before in version:
            if before.compiles or document.kind != "compilable":
                continue
            text, verdict, without = self._past_missing_headers(document, before)
            for reason, more in (
                ("a header nobody has", Asked(without=without)),
                ("a macro of the build", Asked(macros=_encoded(verdict.required_macros))),
                ("a standard header", Asked(headers=_encoded(verdict.suggested_headers))),
                ("an undeclared name", self._find(verdict.undeclared_names, text)),
                ("an incomplete type", self._find(verdict.incomplete_types, text, complete=True)),
            ):
                if more:
                    asked |= more
                    reasons.append(reason)
        return asked, reasons

    def _past_missing_headers(
        self, document: Document, verdict: CompileResult
    ) -> tuple[str, CompileResult, frozenset[bytes]]:
        """The text without quoted includes that nothing answers, the verdict on it, and their arguments."""
        text, gone = document.text, set[bytes]()
        while verdict.missing_headers and len(gone) < _MOST_MISSING:
            argument = f'"{verdict.missing_headers[0]}"'
            line = rf"(?m)^[ \t]*#[ \t]*include[ \t]*{re.escape(argument)}.*$"
            text, found = re.subn(line, "", text)
            if not found:
                break
            gone.add(argument.encode())
            verdict = self._verdict(document, text)
        return text, verdict, frozenset(gone)

    def _find(self, names: Sequence[str], text: str, *, complete: bool = False) -> Asked:
        """Where the names are declared, or defined, beyond what the unit's includes reach."""
        found = NOTHING
        for name in names:
            found |= self._project.find(name, text, complete=complete) or _of_system(name)
        return found

    @cached_property
    def _project(self) -> _Elsewhere:
        return _Elsewhere(self.unit, self.index)


@dataclass
class _Elsewhere:
    """The files of a project that a unit does not see."""

    unit: Unit
    index: Index

    def __post_init__(self) -> None:
        names = [file.name for file in self.unit.files]
        seen = self.index.includes.visible(names)
        self._seen = {self.index.number[name] for name in seen}
        self._rest = [
            (name, file.path.read_bytes())
            for name, file in self.index.files.items()
            if file.may_be_borrowed and name not in seen and not is_fragment(name)
        ]
        own = [item for name in names for item in self.index.read(name).items]
        self._declared = {name for item in own for name in item.names}
        self._scopes = {scope for item in own for scope in _scopes(item)}
        self._scopes |= {name for item in own if item.kind == ItemKind.USING for name in item.mentions}

    def find(self, name: str, text: str, *, complete: bool) -> Asked:
        """What declares a name as compilers write it; for a namespace, what is used of it in the text.

        A member of a class that is not found may have been left out where the class was shortened.
        """
        *scopes, plain = name.replace("{anonymous}::", "").encode().split(b"::")
        if b"std" in scopes or not IDENTIFIER.fullmatch(plain) or (plain in self._declared and not complete):
            return NOTHING
        file = self._file(plain, scopes[-1:], complete=complete)
        if file is not None:
            return Asked(names=frozenset({plain}), files=frozenset({file}))
        if scopes and any(key[0] in self._seen for key in self.index.declared.get(scopes[-1], ())):
            return Asked(names=frozenset({plain}))
        members = set(re.findall(rb"\b" + plain + rb"\s*::\s*([A-Za-z_]\w*)", text.encode()))
        found = {member: self._file(member, [plain], complete=False) for member in members}
        return Asked(
            frozenset(member for member, file in found.items() if file is not None),
            frozenset(file for file in found.values() if file is not None),
        )

    def _file(self, name: bytes, scope: list[bytes], *, complete: bool) -> str | None:
        """The best file for a name: a header before a source, then what lies nearest to the unit."""
        for sources in (False, True):
            files = (file for file, data in self._rest if is_source(file) == sources and name in data)
            places = [
                (
                    item.kind == ItemKind.FORWARD,
                    -shared_folders(self.unit.name, file),
                    self.index.place(item),
                    file,
                )
                for file in files
                for item in self._declarations(file, name)
                if self._fits(item, name, scope, complete=complete) and not (sources and _is_private(item))
            ]
            if places:
                return min(places)[-1]
        return None

    def _declarations(self, file: str, name: bytes) -> Iterator[Item]:
        """The items of one file that declare a name."""
        if self.index.read(file).sound:
            number = self.index.number[file]
            yield from (self.index.item(key) for key in self.index.declared.get(name, ()) if key[0] == number)

    def _fits(self, item: Item, name: bytes, scope: list[bytes], *, complete: bool) -> bool:
        """Whether an item can be what is meant by a name in this scope, or in one of the unit's own."""
        if complete and (item.kind not in (ItemKind.TYPE, ItemKind.ALIAS) or b"{" not in item.text):
            return False
        if item.kind not in _DECLARING or item.qualifier:
            return False
        if item.kind == ItemKind.MACRO:
            return not scope and not complete
        around = _scopes(item)
        return name in item.names and (scope[0] in around if scope else self._scopes.issuperset(around))


def _rate(version: Version) -> float:
    """The share of documents that compile; 1 when there are none."""
    return sum(verdict.compiles for _, verdict in version) / len(version) if version else 1.0


def _encoded(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.encode() for name in names)


def _of_system(name: str) -> Asked:
    header = header_of(name)
    return NOTHING if header is None else Asked(headers=frozenset({header.encode()}))


def _scopes(item: Item) -> list[bytes]:
    """The namespaces around an item."""
    openers = [
        frame.opener for frame in item.stack if isinstance(frame, Scope) and b"namespace" in frame.opener
    ]
    return [name for opener in openers for name in IDENTIFIER.findall(opener) if name not in _NO_SCOPES]


_NO_SCOPES = frozenset({b"namespace", b"inline"})


def _is_private(item: Item) -> bool:
    """Whether something in a source cannot be meant elsewhere: static, or in a namespace without a name."""
    unnamed = any(
        isinstance(frame, Scope) and IDENTIFIER.findall(frame.opener) == [b"namespace"]
        for frame in item.stack
    )
    return unnamed or item.kind == ItemKind.MACRO or _STATIC.search(item.text) is not None
