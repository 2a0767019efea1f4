"""Functions in a class, as the parser has them: where they begin, where their heads end, and their bodies."""

from __future__ import annotations

import re

import tree_sitter

METHOD = re.compile(rb"(~?[A-Za-z_]\w*)\s*\(")
_BRACE = re.compile(rb"[{}]")
_NESTED = re.compile(rb"\b(?:struct|union)(?:\s+\w+)?\s*\{\Z")
_QUALIFIED = re.compile(rb"[\w>]\s*::\s*~?\w+\s*\(")
_CLASS_TEMPLATE = re.compile(rb"\s*template\s*<[^<>{};]*>\s*(?:class|struct)\b")
_TEMPLATE_PARAMETER = re.compile(rb"\b(?:typename|class)(?:\s*\.\.\.)?\s+(\w+)")


def calls_a_parameter(before: bytes, head: bytes, body: bytes) -> bool:
    """True if a template calls what it is given: a lambda, say, for which its body must be there."""
    parameters = before[before.rfind(b"template") :] if before.rstrip().endswith(b">") else b""
    for type_ in _TEMPLATE_PARAMETER.findall(parameters + head):
        for name in re.findall(rb"\b" + type_ + rb"\b[\s&.*]*(\w+)\s*[,)]", head):
            if re.search(rb"\b" + name + rb"\s*\)?\s*\(", body):
                return True
    return False


def forwards_a_parameter(head: bytes, body: bytes) -> bool:
    """True if a template hands on what it is given, which may be a lambda: `make_ref<T>(args...)`."""
    return any(
        re.search(rb"\bforward\s*<\s*" + type_ + rb"\s*>", body)
        for type_ in _TEMPLATE_PARAMETER.findall(head)
    )


def calls_a_member(text: bytes) -> bool:
    """True for a class template that has a member of its parameter's type and calls it: `Finally<F>`."""
    template = _CLASS_TEMPLATE.match(text)
    for type_ in _TEMPLATE_PARAMETER.findall(template.group()) if template is not None else ():
        for name in re.findall(rb"[;{:]\s*" + type_ + rb"\s+(\w+)\s*;", text):
            if re.search(rb"(?<![\w:,])\s" + name + rb"\s*\(", text):
                return True
    return False


def defines_member(node: tree_sitter.Node) -> bool:
    """True for the definition of a member outside its class, which is no declaration without its body."""
    inside = node.parent is not None and node.parent.type == "field_declaration_list"
    body = body_of(node)
    head = (node.text or b"")[: body.start_byte - node.start_byte] if body is not None else b""
    return not inside and _QUALIFIED.search(head) is not None


def end_of_head(body: tree_sitter.Node) -> int:
    """The offset at which the head of a function ends: before its member initialisers."""
    definition = body.parent or body
    initialisers = next((c for c in definition.children if c.type == "field_initializer_list"), body)
    return initialisers.start_byte


def body_of(node: tree_sitter.Node) -> tree_sitter.Node | None:
    """The body of a function definition, also of one behind `template <...>`."""
    while node.type == "template_declaration":
        node = node.named_children[-1]
    return node.child_by_field_name("body") if node.type == "function_definition" else None


def members_and_bodies(text: bytes) -> tuple[bytes, bytes]:
    """The text of a class outside of brackets but those of structures in it; that inside, and after it."""
    inside: list[bytes] = []
    outside: list[bytes] = []
    structures: list[bool] = []  # of the open brackets: whether members are in them
    position = others = 0
    for match in _BRACE.finditer(text):
        part = text[position : match.end()]
        position = match.end()
        (inside if others else outside).append(part)
        if match.group() == b"{":
            structures.append(not structures or _NESTED.search(part) is not None)
            others += not structures[-1]
        elif structures:
            others -= not structures.pop()
        if not structures:
            break
    inside.append(text[position:])
    return b"".join(outside), b"".join(inside)
