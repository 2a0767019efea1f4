"""The names by which an item of a file is found: of what it declares, and of the types it belongs to."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Sequence, Set

from cpplm.corpus.slicing.outlines import without_comments
from cpplm.corpus.slicing.shadowing import template_parameters
from cpplm.corpus.slicing.x_macros import made_enumerators
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.keywords import GNU_KEYWORDS, KEYWORD_BYTES
from cpplm.cpp.lexer import IDENTIFIER
from cpplm.cpp.macros import MacroTable, closing, declares_function

# Free functions that libraries find by the types of their arguments.
_FOUND_BY_ARGUMENTS = (b"operator", b"intrusive_ptr_", b"hash_value", b"to_json", b"from_json", b"tag_invoke")
_NAMED_BY_MACRO = re.compile(rb"\b(\w+)\s*\(\s*(\w+)\s*\)\s*\(")  # `int API(name)(void);`
_STRING = re.compile(rb'"(?:[^"\\\n]|\\.)*"')
_BEHIND_CALL = re.compile(rb"\)\s*(\w+)\s*;?\s*\Z")  # `typedef ARRAY (3) Name;`
# For the parser these are types of the language.
_STANDARD_TYPE = rb"(bool|u?int(?:8|16|32|64|ptr)_t|s?size_t|ptrdiff_t|char(?:8|16|32)_t)"
_OF_OLD_C = re.compile(rb"[\s}]" + _STANDARD_TYPE + rb"\s*;\s*\Z")
_UNQUALIFIED = re.compile(rb"(?<!::)(?<!\w)[A-Za-z_]\w*(?!\w)(?!\s*::)")
_PARAMETERS = re.compile(rb",\s*+\([^()]*+\)")  # `FUNCTION(name, (int a, int b))`
_QUALIFIED = re.compile(rb"\b(\w+)\s*::\s*(\w+)")
_SPECIALIZATION = re.compile(
    rb"template\s*<[^{;]*>\s*(?:class|struct|union)\s+[^<:{;#]*(?:::[^<:{;#]*)*<[^{;]*"
)
_NO_NAME = re.compile(rb"[^\w\s*&:~]")
_NESTED_CLASS = re.compile(rb"(\w+)\s*::\s*\w+\s*(?:final\s*)?(?:\{|:(?!:))")
_BASES = re.compile(rb"(?<!:):(?!:)[^{]*")


@functools.lru_cache(maxsize=4_096)
def _call_of(macro: bytes) -> re.Pattern[bytes]:
    """A call of this macro, or of any, by its name or at the beginning of a line."""
    return re.compile(rb"\b%b\s*\(" % macro if macro else rb"(?m)^\s*\w+\s*\(|\b[A-Z][A-Z0-9_]+\s*\(")


def names_by_item(items: Sequence[Item], macros: MacroTable) -> list[set[bytes]]:
    """The declared names of each item of a file.

    What several bodies behind calls of another library's macro have in common none of them declares:
    `TEST(Suite, first) {}`, `TEST(Suite, second) {}`.
    """
    found = [declared_names(item, macros) for item in items]
    behind_macros = [
        names
        for item, names in zip(items, found, strict=True)
        if item.kind == ItemKind.FUNCTION
        and _callee(item) not in macros.functions
        and _is_macro(item, macros)
    ]
    common = {name for name, count in Counter(itertools.chain(*behind_macros)).items() if count > 1}
    for names in behind_macros:
        names.difference_update(common)
    return found


def declared_names(item: Item, macros: MacroTable) -> set[bytes]:
    """The names by which an item is found; a macro call that declares is found by its arguments."""
    names = set(item.names)
    code = _code(item)
    names.update(d.macro for d in item.directives if d.keyword in (b"define", b"undef"))
    callee = _callee(item)
    if item.kind == ItemKind.CALL or (_is_macro(item, macros) and item.kind != ItemKind.MACRO):
        # What renames functions may have any name, and no arguments.
        head = code.partition(b"{")[0]
        call = _call_of(callee if callee.isupper() else b"").search(head)
        start = call.start() if call else len(head)
        end = closing(head, start) if call else start
        arguments = head[start : end if end > start else None]  # `CONSTANT(Tag, name, {});`
        inner = _STRING.sub(b"", arguments.partition(b"(")[2])
        name, parenthesis, _ = inner.partition(b"(")
        if item.kind == ItemKind.FUNCTION and parenthesis and name and not _NO_NAME.search(name):
            # `METHOD(Class::name(int n)) {`, of which the class has a declaration
            return set(IDENTIFIER.findall(name)[-1:]) if b"::" not in name else set()
        names.update(_UNQUALIFIED.findall(_PARAMETERS.sub(b"", inner)))
        names -= KEYWORD_BYTES.union(re.findall(rb"\b" + _STANDARD_TYPE + rb"\b", inner))
    if item.kind in (ItemKind.PROTOTYPE, ItemKind.FUNCTION):
        named = _NAMED_BY_MACRO.findall(item.text)
        names.update(name for macro, name in named if macro in macros.names and macro not in macros.pastes)
    if item.kind in (ItemKind.TYPE, ItemKind.VARIABLE) and b"enum" in code:
        made = made_enumerators(item, without_comments(item.text), macros)
        names.update(name for each in made for name in each.names)
    if code.startswith(b"typedef"):
        names.update(_BEHIND_CALL.findall(code) or _OF_OLD_C.findall(code))
    if item.qualifier and item.body_required and item.function_name:
        names.add(item.function_name)
    if item.kind == ItemKind.REGION:
        names |= macros.pasted(item.mentions, item.text)
    elif item.kind not in (ItemKind.MACRO, ItemKind.INCLUDE):
        names = _pasted(names | {callee}, item, macros) or names
        names = names.union(*(macros.renames[name] for name in names & macros.renames.keys()))
    return names - GNU_KEYWORDS - {b""}


def _pasted(names: set[bytes], item: Item, macros: MacroTable) -> set[bytes]:
    """The names, those instead that macros paste: `int NAME(f)(void);`, `typedef struct {} NAME(t);`."""
    first = {name: word.group() for name in names if (word := IDENTIFIER.match(name))}
    pasting = frozenset(first.values()) & macros.pastes.keys()
    calls = b" ".join(name for name in names if b"(" in name and first.get(name) in pasting)
    if not calls:
        start, end = item.text.find(b"{") + 1 or len(item.text), item.text.rfind(b"}")
        calls = item.text[:start] + item.text[end:]
    pasted = macros.pasted(pasting, calls) if pasting else set()
    return {name for name in names if first.get(name) not in pasting} | pasted if pasted else set()


def _callee(item: Item) -> bytes:
    """The function or macro that an item defines, declares or calls; empty where that is not one name."""
    return item.function_name or (item.names[0] if len(item.names) == 1 else b"")


def _is_macro(item: Item, macros: MacroTable) -> bool:
    """True if what stands before the parentheses is a macro, of the project or another one."""
    name, code = _callee(item), _code(item)
    is_named = name in macros.functions or (name.isupper() and item.kind == ItemKind.FUNCTION)
    return is_named and ((name.isupper() and name in macros.functions) or not _is_function(name, code))


def _code(item: Item) -> bytes:
    """The text of an item behind the comments before it."""
    return item.text[len(item.text) - (item.end - item.start) :]


def _is_function(name: bytes, code: bytes) -> bool:
    """True for the function itself that a macro of its name replaces elsewhere."""
    call = _call_of(name).search(code)
    return call is not None and declares_function(
        code, call.start(), call.end() - 1, closing(code, call.start())
    )


def attached_to(item: Item, types: Set[bytes]) -> Set[bytes]:
    """The names in the head of what is needed without being named, where all types among them are.

    That is what libraries call, such as free operators, specializations, and classes of classes defined
    outside of these (`struct Map::Private {`).
    """
    code = _code(item)
    head = without_comments(code[: code.find(b"{") + 1 or None])
    called = [name for name in item.names if name.startswith(_FOUND_BY_ARGUMENTS)]
    if item.kind in (ItemKind.FUNCTION, ItemKind.PROTOTYPE) and called:
        head = head[head.find(b"operator" if called[0].startswith(b"operator") else called[0]) :]
    elif item.kind == ItemKind.TYPE and (special := _SPECIALIZATION.search(head)):
        head = _BASES.sub(b"", special.group())
    elif item.kind == ItemKind.TYPE and item.qualifier and (member := _NESTED_CLASS.search(head)):
        return {member.group(1)} & types
    else:
        return frozenset()
    nested = {name for owner, name in _QUALIFIED.findall(head) if owner in types}
    return set(IDENTIFIER.findall(head)) - KEYWORD_BYTES - template_parameters(item.text) - nested - {*called}
