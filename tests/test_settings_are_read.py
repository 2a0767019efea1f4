"""No flag that does nothing: every field of every settings class is read somewhere, explained and frozen.

A read is an attribute access on something that the source declares to be of that class: a parameter or a
field annotated with it, `self._x` that keeps such a parameter, or a local name for one of these. What a class
reads of itself counts where that method or property is itself read; `__post_init__` never counts.
"""

import ast
import dataclasses
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import all_settings_classes

PACKAGE = Path(__file__).parents[1] / "src" / "cpplm"
TREES = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
CLASSES = all_settings_classes()
Function = ast.FunctionDef | ast.AsyncFunctionDef


def walk(node: ast.AST, skip_class: str) -> Iterator[ast.AST]:
    """`ast.walk` without the body of one class."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.ClassDef) and child.name == skip_class):
            yield from walk(child, skip_class)


def is_of(annotation: ast.AST | None, cls: str) -> bool:
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        annotation = annotation.slice.elts[0]  # Annotated[cls, ...]
    return annotation is not None and ast.unparse(annotation).strip("'\"").split(".")[-1] == cls


def holders(cls: str, trees: list[ast.Module]) -> set[str]:
    """Names of fields, anywhere, that hold an instance: `model: ModelSource` gives "model"."""
    return {
        node.target.id
        for tree in trees
        for node in walk(tree, cls)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and is_of(node.annotation, cls)
    }


def reads_in_function(function: Function, cls: str, kept: set[str]) -> set[str]:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    local = {argument.arg for argument in arguments if is_of(argument.annotation, cls)}

    def holds(node: ast.AST) -> bool:
        return (isinstance(node, ast.Name) and node.id in local) or (
            isinstance(node, ast.Attribute) and node.attr in kept
        )

    for node in ast.walk(
        function
    ):  # local names: settings = trainer.settings, a, b = settings.x, trainer.settings
        if isinstance(node, ast.Assign):
            targets, values = node.targets, [node.value]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                targets, values = node.targets[0].elts, node.value.elts
            local |= {
                t.id for t, v in zip(targets, values, strict=False) if isinstance(t, ast.Name) and holds(v)
            }
    return {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute) and holds(node.value)}


def reads(cls: str, trees: list[ast.Module]) -> set[str]:
    """Attributes of `cls` that are read outside of its definition."""
    found: set[str] = set()
    fields = holders(cls, trees)
    for tree in trees:
        for scope in walk(tree, cls):
            if not isinstance(scope, Function | ast.ClassDef):
                continue
            kept = set(fields)
            if isinstance(scope, ast.ClassDef):  # self._settings = settings, in any method
                for method in [node for node in scope.body if isinstance(node, Function)]:
                    given = {a.arg for a in method.args.args if is_of(a.annotation, cls)}
                    kept |= {
                        target.attr
                        for node in ast.walk(method)
                        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
                        for target in node.targets
                        if isinstance(target, ast.Attribute) and node.value.id in given
                    }
                for method in [node for node in scope.body if isinstance(node, Function)]:
                    found |= reads_in_function(method, cls, kept)
            else:
                found |= reads_in_function(scope, cls, kept)
    return found


def reads_of_itself(definition: ast.ClassDef, outside: set[str]) -> set[str]:
    """`outside`, and what methods and properties read of `self`, where they are themselves read."""
    methods = {
        node.name: {
            a.attr for a in ast.walk(node) if isinstance(a, ast.Attribute) and ast.unparse(a.value) == "self"
        }
        for node in definition.body
        if isinstance(node, Function) and node.name != "__post_init__"
    }
    found, before = set(outside), set[str]()
    while found != before:
        before = set(found)
        found |= {name for method in methods.keys() & found for name in methods[method]}
    return found


def definition_of(cls: type) -> ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_setting_is_read(cls: type) -> None:
    read = reads_of_itself(definition_of(cls), reads(cls.__name__, TREES))
    unread = [field.name for field in dataclasses.fields(cls) if field.name not in read]
    assert unread == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_setting_is_explained(cls: type) -> None:
    body = definition_of(cls).body
    explained = {
        node.target.id
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and len(str(after.value.value)) > 5
    }
    hints = typing.get_type_hints(cls)
    groups = {
        name for name, hint in hints.items() if dataclasses.is_dataclass(hint)
    }  # explained by their class
    assert [f.name for f in dataclasses.fields(cls) if f.name not in explained | groups] == []
    assert cls.__doc__
    assert not cls.__doc__.startswith(f"{cls.__name__}(")  # what @dataclass writes where nobody did


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_settings_are_frozen_and_switches_are_off(cls: type) -> None:
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for field in dataclasses.fields(cls):
        if typing.get_type_hints(cls)[field.name] is bool:
            assert field.default is False, f"{field.name}: a flag can only turn a switch on"


def test_an_unread_setting_would_be_found() -> None:
    source = """
class S:
    used: int; hidden: int; through: int; checked: int; other: int; kept: int; local: int
    def __post_init__(self): self.checked; self.unused_property
    @property
    def doubled(self): return 2 * self.through
    @property
    def unused_property(self): return self.hidden
class Command:
    group: S
class Keeper:
    def __init__(self, settings: S): self._mine = settings
    def use(self): return self._mine.kept
def f(settings: S): return settings.used + settings.doubled
def g(settings: Another): return settings.other
def h(command: Command):
    x = command.group
    return x.local
"""
    tree = ast.parse(source)
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)
    read = reads_of_itself(definition, reads("S", [tree]))
    fields = {"used", "hidden", "through", "checked", "other", "kept", "local"}
    assert read & fields == {"used", "through", "kept", "local"}
