"""Macros that would hide the shape of a declaration from the parser are blanked in place.

A parser that does not preprocess stumbles over `namespace std _GLIBCXX_VISIBILITY(default)` or `FOO_API
int f()`. All definitions of a macro in the project are looked at: when any of them is empty, or made of
specifiers and attributes only, the macro is *blank*; when it opens or closes a namespace, it becomes a
one-byte scope marker; when it ends like a statement, a call of it is a whole item. Nothing is masked in
strings, comments or directives, since the views given here have those blanked already.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from cpplm.cpp.dead_branches import CLOSE, OPEN, after_errors, dead_branches
from cpplm.cpp.lexer import IDENTIFIER, Directive, LexedSource, blank
from cpplm.cpp.token_pasting import Pastes, Template, chains_and_calls, find_pastes, numbered, pasted_by_calls

# `blank_either`: with or without arguments; `struct`, `struct_end`: `EVENT_BEGIN(x) int n; EVENT_END(x)`;
# `class_key`: `#define interface class`.
Mask = Literal[
    "blank", "blank_call", "blank_either", "open", "close", "struct", "struct_end", "class_key", "statement",
    "unwrap",
]  # fmt: skip

_SPECIFIERS = frozenset(
    b"inline constexpr consteval constinit noexcept virtual override final extern static explicit const "
    b"volatile "
    b"__inline __inline__ __forceinline __restrict __restrict__ restrict __extension__ __const "
    b"__stdcall __cdecl __fastcall __thiscall __vectorcall register mutable thread_local".split()
)
# Macros of these names are for one file, in a trick; elsewhere the words are what they are in the language.
_STRUCTURAL = frozenset(b"extern namespace class struct union enum template typedef using".split())
# Attribute syntaxes, up to two levels of brackets deep, and the specifiers that take an argument.
_ATTRIBUTE = re.compile(
    rb"(?:__attribute__|__attribute|__declspec|alignas|noexcept|throw|explicit|_Alignas|_Pragma|__pragma)\s*"
    rb"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\[\[[^\[\]]*\]\]"
)
_OPENS = re.compile(
    rb'^(?:\s*(?:(?:inline\s+)?namespace\b[\w\s:]*|extern\s*"C(?:\+\+)?"\s*|export\s*)\{)+\s*$'
)
_CLOSES = re.compile(rb"^[\s}]*\}[\s}]*;?\s*$")
_OPENS_STRUCT = re.compile(rb"^\s*+(?:typedef\s++)?+(?:struct|union)\b[^{};]*+\{[^{}]*+$")
_ENDS_STATEMENT = re.compile(rb"(?:;[\s)]*+|\})\Z")  # `DEPRECATED("text", int f(void);)`, too
_CLOSES_STRUCT = re.compile(rb"^[^{}]*+\}[^{}]*+$")
_STRUCTS: dict[Mask, re.Pattern[bytes]] = {"struct": _OPENS_STRUCT, "struct_end": _CLOSES_STRUCT}
# Names that mean the same wherever they come from: a scope opened or closed, an export or calling convention.
_WELL_KNOWN: tuple[tuple[re.Pattern[bytes], Mask], ...] = (
    (re.compile(rb"^(?:\w*(?:BEGIN_(?:NAMESPACE|C?_?DECLS?|EXTERN_?C)|(?:NAMESPACE|DECLS?|EXTERN_?C)_BEGIN)"
                rb"|_XFUNCPROTOBEGIN)$"), "open"),
    (re.compile(rb"^(?:\w*(?:END_(?:NAMESPACE|C?_?DECLS?|EXTERN_?C)|(?:NAMESPACE|DECLS?|EXTERN_?C)_END)"
                rb"|_XFUNCPROTOEND)$"), "close"),
    (re.compile(rb"^(?:[A-Z][A-Z0-9_]*_(?:API|EXPORT|EXPORTS|PUBLIC|DLL|NODISCARD|NORETURN|DEPRECATED)"
                rb"|JNIEXPORT|JNICALL|__THROW|WINAPI|APIENTRY|CALLBACK|__extension__|_Nullable|_Nonnull)$"),
     "blank"),
    # `void log(const char *text, ...) G_GNUC_PRINTF(1, 2);`
    (re.compile(rb"^(?=[A-Z0-9_]+$)(?!\w+_(?:FN|FUNC|PTR|T)$)\w*(?:GNUC_|PRINTF_?(?:LIKE|FORMAT|ATTR)|(?:FORMAT|ATTR|ATTRIBUTE)_PRINTF)\w*$"),
     "blank_either"),
    (re.compile(rb"^_GL_(?:ARG_NONNULL|ATTRIBUTE_\w+)$"), "blank_either"),  # gnulib's
)  # fmt: skip
# Longer bodies are never specifiers or namespaces; only what they paste and their last character matter.
_LONGEST_BODY = 300
# In a body the macro's only argument: `int f OF((int a));` and `LIB_API(int) f(void);` declare functions.
_ARGUMENT = b"\x03"
_DOUBLED = re.compile(rb"\s*\(\s*\(")
_TYPE_ARGUMENT = re.compile(rb"\s*\(([\w\s*&:]+)\)\s*(?=[A-Za-z_])")
_BEHIND = re.compile(
    rb"(?<=\))(?:\s*+\b[A-Z_][A-Z0-9_]++(?:[ \t]*+\((?:[^();]++|\([^();]*+\))*+\))?){1,4}+(?=\s*+;)"
)
_HEAD = re.compile(rb"(\w+)\s*+\([^();]*+\)\Z")
_ENUM_HEAD = re.compile(rb"\benum\s+(?:class\s+)?\w+\s+\Z")
_ENUMERATORS = re.compile(rb"\s*+\{[^;{}]*+\}")
_NAME_OR_CALL = re.compile(rb"([A-Za-z_]\w*)(\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))?")
_WITH_ARGUMENTS = ("blank_call", "blank_either", "open", "close", "struct", "struct_end")
_MARKERS = {"open": OPEN, "close": CLOSE, "struct": b"struct{", "struct_end": b"};", "class_key": b"struct"}
# The type, its prefix for functions, and the type that it is derived from, each a `struct _LibItemClass`.
_GOBJECT_ARGUMENTS: tuple[Template, ...] = ((0,), (1,), (b"_", 0), (4,), (b"_", 4))
# GObject's: `G_DEFINE_TYPE(LibItem, lib_item, G_TYPE_OBJECT)` needs LibItemClass and declares lib_item_init.
_LIBRARY_PASTES: Pastes = {
    b"G_" + name: frozenset(
        (*argument, ending) for ending in endings.split() for argument in _GOBJECT_ARGUMENTS
    )
    for names, endings in (
        (b"DEFINE_TYPE DEFINE_TYPE_WITH_CODE DEFINE_TYPE_WITH_PRIVATE DEFINE_ABSTRACT_TYPE DEFINE_FINAL_TYPE"
         b" DECLARE_FINAL_TYPE DECLARE_DERIVABLE_TYPE", b"Class _get_type _init _class_init"),
        (b"DEFINE_INTERFACE DECLARE_INTERFACE", b"Interface _get_type _default_init"),
    )
    for name in names.split()
}  # fmt: skip
_TYPE_END = re.compile(rb"[\w*&]\s*\Z")
# `void`, `int n`, `T*`: no arguments of an attribute
_PARAMETERS = re.compile(rb"^\s*void\s*$|\w\s+[*&]*\s*[A-Za-z_]|\w\s*[*&]+\s*(?:,|$)")
_PARENTHESIS = re.compile(rb"[()]")


def macro_bodies(directives: Iterable[Directive]) -> dict[bytes, set[bytes]]:
    """Every `#define` of a file: name to its bodies.

    A body starts with "(" when the macro takes arguments (their names are dropped), with a blank when it does
    not; _ARGUMENT stands for an only argument; of long bodies what they paste, and how they end, is kept.
    """
    bodies: dict[bytes, set[bytes]] = {}
    for directive in directives:
        if directive.keyword != b"define" or not directive.macro:
            continue
        rest = directive.argument[len(directive.macro) :]
        takes_arguments = rest.startswith(b"(")
        body = (rest[rest.find(b")") + 1 :] if takes_arguments else rest).strip()
        if takes_arguments:
            body = numbered(body, rest[1 : rest.find(b")")].split(b","))
        parameter = rest[1 : rest.find(b")")].strip() if takes_arguments else b""
        if parameter and len(body) <= _LONGEST_BODY and parameter in body.split():
            body = b" ".join(_ARGUMENT if word == parameter else word for word in body.split())
        if body.startswith(b"@") and (word := body.strip(b"@").lower()) in _SPECIFIERS:
            body = word  # of a template: `#define INLINE @INLINE@`
        if len(body) > _LONGEST_BODY:
            end = b";" if _ENDS_STATEMENT.search(body, len(body) - 64) else body[-1:]
            body = b"0 " + b" ".join(chains_and_calls(body)) + b" " + end
        bodies.setdefault(directive.macro, set()).add((b"(" if takes_arguments else b" ") + body)
    return bodies


@lru_cache(maxsize=65_536)
def _well_known(name: bytes) -> Mask | None:
    return next((mask for pattern, mask in _WELL_KNOWN if pattern.match(name)), None)


@dataclass(frozen=True)
class MacroTable:
    """The treatment of each macro of a project; names not in `masks` stay as they are."""

    masks: dict[bytes, Mask] = field(default_factory=dict)
    pastes: Pastes = field(default_factory=dict)
    names: frozenset[bytes] = frozenset()  # of all macros
    functions: frozenset[bytes] = frozenset()  # of those with parameters
    renames: dict[bytes, frozenset[bytes]] = field(default_factory=dict)  # what some stand for, by turns

    @classmethod
    def from_bodies(cls, bodies: dict[bytes, set[bytes]]) -> MacroTable:
        """Classify by definitions; macros made of macros take as many rounds as it needs."""
        masks: dict[bytes, Mask] = {}
        maskable = {name: texts for name, texts in bodies.items() if name not in _STRUCTURAL}
        optional = frozenset(name for name, texts in bodies.items() if any(not text[1:] for text in texts))
        known = -1
        while known < len(masks):
            known = len(masks)
            for name in sorted(maskable.keys() - masks.keys()):
                mask = _classify(bodies[name], masks, frozenset()) or _classify(bodies[name], masks, optional)
                if mask:
                    masks[name] = mask
        structs: dict[bytes, Mask] = {
            name: kind
            for kind, pattern in _STRUCTS.items()
            for name, texts in maskable.items()
            if name not in masks and all(text[:1] == b"(" and pattern.match(text[1:]) for text in texts)
        }
        if len(set(structs.values())) == 2:
            masks |= structs
        for name, texts in maskable.items():
            if name not in masks and all(map(_ENDS_STATEMENT.search, texts)):
                masks[name] = "statement"
        functions = frozenset(n for n, texts in bodies.items() if any(text[:1] == b"(" for text in texts))
        pastes, renames = find_pastes(bodies)
        # One without parameters renames what has its name: `#define f PREFIX(f)`.
        pastes = _LIBRARY_PASTES | {name: pastes[name] for name in pastes if name in functions}
        renames = {name: words for name, words in renames.items() if len(words) > 1}
        return cls(dict(sorted(masks.items())), pastes, frozenset(bodies), functions, renames)

    def with_bodies(self, bodies: dict[bytes, set[bytes]]) -> MacroTable:
        """The same table with no other definitions of these macros."""
        known = {name: templates for name, templates in self.pastes.items() if name not in bodies}
        pastes, renames = find_pastes(bodies, known)
        return replace(self, pastes=pastes, renames=renames)

    def pasted(self, mentions: Set[bytes], text: bytes) -> set[bytes]:
        """Names that macros of the project make of their arguments by `##`."""
        macros = mentions & self.pastes.keys()
        return pasted_by_calls(macros, text, self.pastes) if macros else set()

    def mask_of(self, name: bytes) -> Mask | None:
        """The treatment of an identifier, or None when it is ordinary code."""
        known = self.masks.get(name)
        if known or not (b"A" <= name[:1] <= b"Z" or name.startswith(b"_")):
            return known
        return _well_known(name)


def _classify(bodies: set[bytes], masks: dict[bytes, Mask], absent: frozenset[bytes]) -> Mask | None:
    """Scope macros are often empty in some configuration, so opening and closing win over blank.

    The macros in `absent` are taken as empty.
    """
    expanded = [_expand(body[1:], masks, absent) for body in sorted(bodies)]
    bare = [_ATTRIBUTE.sub(b" ", body).strip() for body in expanded]
    written = [body for body in bare if body]
    if any(_OPENS.match(body) for body in written) and all(body.endswith(b"{") for body in written):
        return "open"
    if any(_CLOSES.match(body) for body in written) and all(body.startswith(b"}") for body in written):
        return "close"
    if all(body in (b"class", b"struct") for body in bare):
        return "class_key"
    if any(_SPECIFIERS.issuperset(body.split()) for body in bare):
        with_arguments = [body.startswith(b"(") for body in bodies]
        return "blank_call" if all(with_arguments) else "blank_either" if any(with_arguments) else "blank"
    return "unwrap" if any(set(body.split()) - _SPECIFIERS == {_ARGUMENT} for body in bare) else None


def _expand(body: bytes, masks: dict[bytes, Mask], absent: frozenset[bytes]) -> bytes:
    """The body with the macros classified so far replaced by what they stand for."""
    words: dict[str | None, bytes] = {
        "blank": b" ", "blank_call": b" ", "blank_either": b" ", "open": b" namespace x { ", "close": b" } "
    }  # fmt: skip

    def replacement(match: re.Match[bytes]) -> bytes:
        name, arguments = match.groups(b"")
        mask = masks.get(name)
        written = b" " if name in absent else words.get(mask, name)
        return written + (b"" if mask in _WITH_ARGUMENTS else _expand(arguments, masks, absent))

    return _NAME_OR_CALL.sub(replacement, body)


def mask(lexed: LexedSource, table: MacroTable) -> tuple[bytes, bytes]:
    """The views `code` (strings blank) and `plain` (strings kept, for the parser), macros masked in both."""
    spans: list[tuple[int, int, bytes]] = []
    done = 0
    kinds = {name: table.mask_of(name) for name in set(IDENTIFIER.findall(lexed.names))}
    masked = [name for name, kind in kinds.items() if kind is not None and kind != "statement"]
    # Behind parameters, macros of another library: `void log(const char *text) LIB_COLD CHECK_PRINTF(1, 2);`
    behind = (
        found
        for found in _BEHIND.finditer(lexed.names)
        if b"(" in found.group() or _ends_parameters(lexed.names, found.start())
    )
    calls = itertools.chain(*(_NAME_OR_CALL.finditer(lexed.names, *found.span()) for found in behind))
    spans += [(*found.span(), b" ") for found in calls if kinds[found.group(1)] is None]
    uses = re.finditer(rb"\b(?:" + b"|".join(masked) + rb")\b", lexed.names) if masked else ()
    for found in uses:
        start, end = found.span()
        kind = kinds[found.group()]
        if start < done:
            continue
        if kind == "unwrap":
            spans += _wrapping(lexed.names, start, end)
            continue
        is_call = lexed.names[end : end + 64].lstrip().startswith(b"(")
        if kind in ("blank_call", "struct", "struct_end") and not is_call:
            continue  # the name of something else: `struct Trace` beside `#define Trace(x)`
        if kind in _WITH_ARGUMENTS and is_call:
            after = closing(lexed.names, end)
            if kind in ("blank_call", "blank_either") and declares_function(lexed.names, start, end, after):
                continue
            end = after
        marker = _MARKERS.get(kind or "", b" ")
        if kind == "struct_end":  # what it declares is named by its arguments, which are part of the item
            marker = blank(lexed.names[start : end - len(marker)]) + marker
        if len(marker) <= end - start:
            spans.append((start, end, marker))
        done = end
    dead = [*dead_branches(lexed, _fill(lexed.names, spans)), *after_errors(lexed)]
    code = _fill(lexed.names, spans + dead)
    in_plain = [(start, end, marker if len(marker) > 1 else b" ") for start, end, marker in spans]
    plain = _fill(lexed.plain, in_plain + dead)
    return code, plain


def declares_function(text: bytes, start: int, end: int, after: int) -> bool:
    """True for a function that a macro of its name replaces in other builds: `void trace(int level)`."""
    is_typed = _TYPE_END.search(text, max(start - 64, 0), start) is not None
    if is_typed and _ENUMERATORS.match(text, after) and _ENUM_HEAD.search(text, max(start - 64, 0), start):
        return False  # `enum level LIB_UNDERLYING_TYPE(unsigned char) { low, high };`
    return is_typed and _PARAMETERS.search(text[end:after].strip()[1:-1]) is not None


def _ends_parameters(text: bytes, end: int) -> bool:
    """True if the bracket that closes right before `end` closes the parameters of a function."""
    found = _HEAD.search(text, max(end - _LONGEST_BODY, 0), end)
    return found is not None and declares_function(text, *found.span(1), end)


def _wrapping(text: bytes, start: int, end: int) -> list[tuple[int, int, bytes]]:
    """In `OF((int a))` and `LIB_API(int) f`, the macro's name and its own parentheses; else nothing."""
    doubled, typed = _DOUBLED.match(text, end), _TYPE_ARGUMENT.match(text, end)
    if typed is not None:
        return [(start, typed.start(1), b" "), (typed.end(1), typed.end(1) + 1, b" ")]
    if doubled is None:
        return []
    inner, outer = closing(text, doubled.end() - 1), closing(text, end)
    if outer == end or inner == doubled.end() - 1 or text[inner : outer - 1].strip():
        return []
    return [(start, doubled.end() - 1, b" "), (outer - 1, outer, b" ")]


def closing(text: bytes, start: int) -> int:
    """Offset after the bracket that closes the first one from `start` on; `start` when none does."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, text.index(b"(", start)):
        depth += 1 if match.group() == b"(" else -1
        if depth == 0:
            return match.end()
    return start


def _fill(text: bytes, spans: list[tuple[int, int, bytes]]) -> bytes:
    view = bytearray(text)
    for start, end, marker in spans:
        view[start:end] = marker + blank(text[start + len(marker) : end])
    return bytes(view)
