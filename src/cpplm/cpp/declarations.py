"""One top-level piece of code as an item: its kind and declared names, from its syntax tree.

Where tree-sitter could not read a piece, the shape of its text decides. Names are plain identifiers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import tree_sitter

from cpplm.cpp.doc_comments import PackedPairs
from cpplm.cpp.lexer import IDENTIFIER, Directive
from cpplm.cpp.segments import Frame, Scope
from cpplm.cpp.syntax_spans import PackedSpans

_CLASS_TYPES = ("class_specifier", "struct_specifier", "union_specifier", "enum_specifier")
_CALL_TYPES = ("expression_statement", "call_expression", "macro_type_specifier")  # the last is C's `F(x)`
_DECORATIONS = ("template_parameter_list", "string_literal", "requires_clause", "ERROR", "comment")
_NAMES = ("identifier", "type_identifier", "qualified_identifier", "template_function")
_TEMPLATE_ARGUMENTS = re.compile(rb"<[^<>]*>")
_OPERATOR = re.compile(rb"\boperator\s*(?:\(\s*\)|\[\s*\]|\"\"\s*\w+|[^\s\w(]+)")
_CLASS_HEAD = re.compile(rb"(?:^|[>\s])(?:class|struct|union|enum)\b[^()=;]*\{")
_CONVERSION = re.compile(rb"(?:.*::)?\s*(\w*)(?:<.*>)?::\s*operator\s+[^()]*\(\s*\)", re.DOTALL)
# `T *UNKNOWN_MACRO f(int);` is read as a product.
_MARKED_POINTER = re.compile(rb"\s*(?:\w+\s+)*\w+\s*\*\s*\w+\s+\w+\s*\([^{};=]*\)\s*;\s*\Z")
# `LIB_API extern lib_type name[8];`, with a macro of another project.
_LAST_WORD = re.compile(rb"[\w\s*&]++(?=[;=\[])")
_INSTANTIATION = re.compile(rb"\s*(?:extern\s+)?template\s+(?!\s*<)")
# `typedef status (CALL *callback)(int);`
_CALLBACK = re.compile(rb"\btypedef\b[^(){};]*+\(\s*+(?:\w++\s++)++\*\s*+(\w++)\s*+\)\s*+\(")
_PARENTHESIZED = re.compile(rb"\(\s*(\w+)\s*\)\s*\(")  # `typedef unsigned long (callback)(int);`
_ENUMERATOR = re.compile(rb"[{,]\s*([A-Za-z_]\w*)")
_CALL = re.compile(rb"(?:\b\w++\s*+)?\([^()]*+\)")
_DEEPEST_CALL = 8
_NO_NAMES = frozenset(
    b"auto char class const double enum extern final float inline int long short signed static struct "
    b"typedef union unsigned void volatile".split()
)
_QUALIFIED_CLASS = re.compile(rb"\b(\w+)\s*::\s*\w+\s*(?:final\s*)?\Z")
_CONSTANT = re.compile(rb"\b(?:constexpr|consteval|auto)\b")


class ItemKind(IntEnum):
    """Kinds of items, in the order in which documents present them."""

    INCLUDE = 1
    MACRO = 2
    PRAGMA = 3
    USING = 4
    FORWARD = 5
    TYPE = 6
    ALIAS = 7
    VARIABLE = 8
    PROTOTYPE = 9
    FUNCTION = 10
    OTHER = 11
    CALL = 12  # a macro invoked at namespace scope: it may declare anything
    REGION = 13  # an `#if` group that changes its own condition: kept as one block


@dataclass(slots=True)
class Item:
    """One top-level declaration or directive of a unit.

    `text` is exact, with its leading comments; `names` are what it declares for plain lookup;
    `function_name` is the name of a function and `qualifier` its class when it is defined out of it;
    `mentions` are all identifiers in it and in the conditions around it but for those behind `.` or `->`,
    which are `accesses`; `body_required`: users need its body (constexpr, auto).
    """

    kind: ItemKind
    text: bytes
    stack: tuple[Frame, ...]
    mentions: frozenset[bytes]
    line: int
    last_line: int
    accesses: frozenset[bytes] = frozenset()
    names: tuple[bytes, ...] = ()
    qualifier: bytes = b""
    function_name: bytes = b""
    body_required: bool = False
    functions: int = 0
    spans: PackedSpans = b""  # by offsets in `text`, as are `pairs`, the documented functions
    pairs: PackedPairs = b""
    origin: int = 0  # where `text` would begin in the file if its comments stood directly before it
    directives: tuple[Directive, ...] = ()
    start: int = 0  # of the code in the file: `text` is the comments before it, then `data[start:end]`
    end: int = 0
    leading_start: int = 0  # of the comments before it in the file, or `start`


def read_declaration(item: Item, root: tree_sitter.Node, code: bytes) -> None:
    """Classify a piece and name what it declares.

    Args:
        item: of the piece, of kind OTHER; its kind, its names and what goes with them are filled in.
        root: of its tree.
        code: its text, with comments, directives, macros and the insides of strings blank.
    """
    node = _significant(root)
    if (
        node is None
        or node.type == "ERROR"
        or (root.has_error and (_is_class(code) or _MARKED_POINTER.match(code)))
        or (node.type == "function_definition" and _is_class(code))
        or _INSTANTIATION.match(code)
    ):
        _guess(item, code)
    else:
        _classify(item, node, code)


def _significant(root: tree_sitter.Node) -> tree_sitter.Node | None:
    """The declaration itself, without `template <...>` and `extern "C"` around it."""
    node = next((child for child in root.children if child.is_named and child.type != "ERROR"), None)
    if node is None:
        return root.children[0] if root.children else None
    while node.type in ("template_declaration", "linkage_specification"):
        inner = [child for child in node.named_children if child.type not in _DECORATIONS]
        if not inner:
            return node
        node = inner[-1]
    return node


def _is_class(code: bytes) -> bool:
    return bool(_CLASS_HEAD.search(code, 0, code.find(b"{") + 1))


def _classify(item: Item, node: tree_sitter.Node, code: bytes) -> None:
    kind = node.type
    if kind == "function_definition":
        _function(item, node, code)
    elif kind in _CLASS_TYPES:
        _type(item, node)
    elif kind in ("declaration", "field_declaration"):
        _declaration(item, node, code)
    elif kind in ("alias_declaration", "type_definition"):
        body = next((c for c in node.children if c.type in _CLASS_TYPES), None)
        if body is not None:
            _type(item, body)
        item.kind = ItemKind.TYPE if body is not None and body.child_by_field_name("body") else ItemKind.ALIAS
        callback = tuple(_CALLBACK.findall(code)[:1])
        item.names += callback or _declared_names(node) or tuple(_PARENTHESIZED.findall(code)[:1])
    elif kind in ("using_declaration", "namespace_alias_definition"):
        _using(item, node, code)
    elif kind == "namespace_definition" and not IDENTIFIER.search(code, code.find(b"{")):
        item.kind = ItemKind.FORWARD  # also of those around it, which may have nothing else in them
        heads = b" ".join([frame.opener for frame in item.stack if isinstance(frame, Scope)] + [code])
        item.names = tuple(
            name for name in IDENTIFIER.findall(heads) if name not in (b"inline", b"namespace")
        )
    elif kind == "concept_definition":
        item.kind = ItemKind.TYPE
        item.names = _first_identifier(node.child_by_field_name("name"))
    elif kind in _CALL_TYPES and not code.lstrip().startswith((b"asm", b"__asm")):
        item.kind = ItemKind.CALL


def _using(item: Item, node: tree_sitter.Node, code: bytes) -> None:
    item.kind = ItemKind.USING
    if node.type == "namespace_alias_definition":
        item.names = _first_identifier(node.child_by_field_name("name"))
        return
    operator = _OPERATOR.search(code)
    if operator:  # nobody mentions an operator, but this needs one
        item.mentions |= {b"".join(operator.group().split())}
    elif b"namespace" not in code:
        item.names = tuple(IDENTIFIER.findall(code))[-1:]


def _first_identifier(node: tree_sitter.Node | None) -> tuple[bytes, ...]:
    text = node.text if node is not None else None
    return tuple(IDENTIFIER.findall(text or b"")[:1])


def _function(item: Item, node: tree_sitter.Node, code: bytes) -> None:
    item.kind = ItemKind.FUNCTION
    item.functions = int(node.child_by_field_name("body") is not None)
    declarator = node.child_by_field_name("declarator")
    type_ = node.child_by_field_name("type")
    _name_function(item, declarator, type_.text or b"" if type_ is not None else b"")
    item.body_required = bool(_CONSTANT.search(code.partition(b"{")[0]))


def _name_function(item: Item, declarator: tree_sitter.Node | None, type_: bytes = b"") -> None:
    """Split `ns::Class<T>::method` into name and qualifier; a conversion has no name to call it by.

    `type_` is the text before the declarator: of `constexpr C::operator bool()` the parser takes
    `C::operator` for a type.
    """
    prefix = type_ + b" " if type_.endswith(b"operator") else b""
    text = prefix + ((declarator.text if declarator is not None else None) or b"")
    if b"operator" in text and (conversion := _CONVERSION.match(text)):
        item.qualifier = conversion.group(1)
        return
    while declarator is not None and declarator.type not in ("function_declarator", "operator_cast"):
        inner = declarator.child_by_field_name("declarator") or declarator.child_by_field_name("name")
        if inner is None and declarator.named_children:
            inner = declarator.named_children[-1]
        declarator = inner
        if inner and inner.type in ("identifier", "qualified_identifier") and not inner.named_child_count:
            break
    if declarator is None:
        return
    target = declarator.child_by_field_name("declarator") or declarator
    text = target.text or b""
    operator = _OPERATOR.search(text)
    plain = text[: operator.start()] if operator else text
    while _TEMPLATE_ARGUMENTS.search(plain):
        plain = _TEMPLATE_ARGUMENTS.sub(b"", plain)
    parts = [part.strip() for part in plain.split(b"::")]
    name = b"".join(operator.group().split()) if operator else parts[-1]
    name = name.removeprefix(b'operator""')  # `1.5_km` mentions `_km`
    scope = [part for part in parts[:-1] if part]
    item.function_name = name
    if scope:
        item.qualifier = scope[-1]
    elif name:
        item.names = (name,)


def _class_name(node: tree_sitter.Node | None) -> tuple[bytes, ...]:
    """`C` of `C`, `C<int>` and `A::B::C`."""
    while node is not None and node.type in ("qualified_identifier", "template_type"):
        node = node.child_by_field_name("name")
    return _first_identifier(node)


def _type(item: Item, node: tree_sitter.Node) -> None:
    body = node.child_by_field_name("body")
    item.kind = ItemKind.TYPE if body is not None else ItemKind.FORWARD
    name = node.child_by_field_name("name")
    item.names = _class_name(name)
    if name is not None and name.type == "qualified_identifier":
        item.qualifier = b"".join(_first_identifier(name))
    # The values of an `enum class` are named behind its name only.
    is_open = node.type == "enum_specifier" and not any(c.type in ("class", "struct") for c in node.children)
    if is_open and body is not None:
        enumerators = (child for child in body.named_children if child.type == "enumerator")
        item.names += tuple(
            name for each in enumerators for name in _first_identifier(each.child_by_field_name("name"))
        )


def _declared_names(node: tree_sitter.Node) -> tuple[bytes, ...]:
    """The names introduced by the declarators of a declaration."""
    names: list[bytes] = []
    for child in [*node.children_by_field_name("declarator"), *node.children_by_field_name("name")]:
        inner: tree_sitter.Node | None = child
        while inner is not None and inner.type not in _NAMES:
            declarators = [c for c in inner.named_children if "declarator" in c.type]
            words = [c for c in inner.named_children if c.type in ("identifier", "type_identifier")]
            inner = inner.child_by_field_name("declarator") or next(iter(declarators + words), None)
        if inner is not None and inner.text is not None and inner.type != "qualified_identifier":
            names.extend(IDENTIFIER.findall(inner.text)[:1])
    return tuple(names)


def _declaration(item: Item, node: tree_sitter.Node, code: bytes) -> None:
    body = next((c for c in node.children if c.type in _CLASS_TYPES and c.child_by_field_name("body")), None)
    declarators = node.children_by_field_name("declarator")
    if body is not None:
        _type(item, body)
        item.names += _declared_names(node)
        return
    if any(_is_function_declarator(declarator) for declarator in declarators):
        item.kind = ItemKind.PROTOTYPE
        _name_function(item, declarators[0])
        item.function_name = b""
        return
    item.kind = ItemKind.VARIABLE
    named = _LAST_WORD.match(code) if node.has_error else None
    item.names = tuple(IDENTIFIER.findall(named.group())[-1:]) if named else _declared_names(node)


def _is_function_declarator(node: tree_sitter.Node | None) -> bool:
    while node is not None and node.type in ("pointer_declarator", "reference_declarator"):
        node = next((c for c in node.named_children if "declarator" in c.type), None)
    return (
        node is not None
        and node.type == "function_declarator"
        and not any(c.type == "parenthesized_declarator" for c in node.named_children)
    )


def _guess(item: Item, code: bytes) -> None:
    """Kind and name by shape alone, for what the parser cannot read."""
    trimmed = code.strip()
    if _is_class(code):
        item.kind = ItemKind.TYPE
        head = code[: code.find(b"{")]
        while _TEMPLATE_ARGUMENTS.search(head):
            head = _TEMPLATE_ARGUMENTS.sub(b"", head)
        head = re.split(rb"(?<!:):(?!:)", head)[0]
        words = IDENTIFIER.findall(head)
        item.names = tuple([word for word in words if word not in _NO_NAMES][-1:])
        item.qualifier = b"".join(_QUALIFIED_CLASS.findall(head))
        if trimmed.startswith(b"typedef"):
            item.names += tuple(IDENTIFIER.findall(trimmed, trimmed.rfind(b"}") + 1))
        if words[: words[:1].count(b"typedef") + 1][-1:] == [b"enum"]:
            body = code[code.find(b"{") :]
            for _ in range(_DEEPEST_CALL):  # of macros that make enumerators; or in a value
                body = _CALL.sub(b",", body)
            item.names += tuple(_ENUMERATOR.findall(body))
    elif re.match(rb"(?:typedef|using)\b", trimmed):
        item.kind = ItemKind.ALIAS
        words = IDENTIFIER.findall(code)
        item.names = tuple(words[1:2] if trimmed.startswith(b"using") else words[-1:])
    elif _INSTANTIATION.match(code):
        item.kind = ItemKind.OTHER
    elif b"(" in trimmed:
        item.kind = ItemKind.FUNCTION if trimmed.endswith(b"}") else ItemKind.PROTOTYPE
        item.functions = int(item.kind == ItemKind.FUNCTION)
        item.body_required = True
        words = IDENTIFIER.findall(trimmed[: trimmed.index(b"(")])
        item.names = tuple(words[-1:])
        item.function_name = words[-1] if words and item.kind == ItemKind.FUNCTION else b""
    else:
        item.kind = ItemKind.VARIABLE if trimmed.endswith(b";") else ItemKind.CALL
        item.names = tuple(IDENTIFIER.findall(code)[-1:])
