"""No flag that does nothing: every field of every settings class is read somewhere, explained and frozen.

A read is an attribute access on something that the source declares to be of that class: a parameter or a
field annotated with it, `self._x` that keeps such a parameter, or a local name for one of these. What a class
reads of itself counts where that method or property is itself read; `__post_init__` never counts.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import typing
from pathlib import Path

import pytest

import cpplm.jax.settings  # noqa: F401  (where `JaxSettings` are read, under the name of a subclass)
from tests.commands import all_settings_classes

PACKAGE = Path(__file__).parents[1] / "src" / "cpplm"
CLASSES = all_settings_classes()
Function = ast.FunctionDef | ast.AsyncFunctionDef


def class_name(annotation: ast.AST) -> str:
    """The class of `x: C`, of `x: package.C` and of `x: Annotated[C, ...]`."""
    text = ast.unparse(annotation).strip("'\"")
    if text.startswith("Annotated["):
        text = text.removeprefix("Annotated[").split(",")[0]
    return text.split(".")[-1]


def base_name(node: ast.AST) -> str:
    """`a` for the name a, `.b` for any expression that ends in .b, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    return f".{node.attr}" if isinstance(node, ast.Attribute) else ""


@dataclasses.dataclass
class FunctionReads:
    """A function, walked once for all classes: what it declares, assigns and reads of what."""

    declared: dict[str, str]
    """Parameters, with the last part of their annotation."""
    assigned: list[tuple[str, str]]
    """Targets and values as `base_name` gives them."""
    read: set[tuple[str, str]]
    """Base and attribute."""
    copied: list[tuple[str, set[str]]]
    """`train_settings_of(settings, changed=...)`: base, and what is not read."""
    owner: str
    """The outermost class that it stands in, if any."""

    @classmethod
    def of(cls, function: Function, owner: str) -> "FunctionReads":
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        nodes, assigned = list(ast.walk(function)), []
        for node in nodes:  # settings = trainer.settings; a, b = settings.x, trainer.settings
            if isinstance(node, ast.Assign):
                targets, values = node.targets, [node.value]
                if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                    targets, values = node.targets[0].elts, node.value.elts
                assigned += [(base_name(t), base_name(v)) for t, v in zip(targets, values, strict=False)]
        return cls(
            {a.arg: class_name(a.annotation) for a in arguments if a.annotation},
            assigned,
            {(base_name(n.value), n.attr) for n in nodes if isinstance(n, ast.Attribute)},
            [
                (base_name(n.args[0]), {str(k.arg) for k in n.keywords})
                for n in nodes
                if isinstance(n, ast.Call) and base_name(n.func) == "train_settings_of"
            ],
            owner,
        )

    def parameters(self, cls: str) -> set[str]:
        """Those that are of a class."""
        return {name for name, annotation in self.declared.items() if annotation == cls}


@dataclasses.dataclass
class Sources:
    """All functions, and all annotated names with the classes that they stand in."""

    functions: list[FunctionReads]
    annotated: list[tuple[str, str, str]]
    """Name, last part of the annotation, outermost class."""

    @classmethod
    def of(cls, trees: list[ast.Module]) -> "Sources":
        found = cls([], [])
        for tree in trees:
            for node in tree.body:
                owner = node.name if isinstance(node, ast.ClassDef) else ""
                for inner in ast.walk(node):
                    if isinstance(inner, Function):
                        found.functions.append(FunctionReads.of(inner, owner))
                    elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                        found.annotated.append((inner.target.id, class_name(inner.annotation), owner))
        return found

    def reads(self, cls: str) -> set[str]:
        """Attributes of `cls` that are read outside of its definition."""
        fields = {f".{name}" for name, annotation, owner in self.annotated if annotation == cls != owner}
        functions = [function for function in self.functions if function.owner != cls]
        kept: dict[str, set[str]] = {}  # self._settings = settings, in any method
        for function in functions:
            local = function.parameters(cls)
            for target, value in function.assigned:
                if function.owner and target.startswith(".") and value in local:
                    kept.setdefault(function.owner, set()).add(target)
        found: set[str] = set()
        for function in functions:
            holders = fields | kept.get(function.owner, set()) | function.parameters(cls)
            for target, value in function.assigned:
                if value in holders and not target.startswith("."):
                    holders.add(target)
            found |= {attribute for base, attribute in function.read if base in holders}
            for base, changed in function.copied:
                if base in holders:
                    found |= {name for name, _, owner in self.annotated if owner == "TrainSettings"} - changed
        return found


def sources_of_the_package() -> Sources:
    """Takes seconds: not for every process that collects tests."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return Sources.of([ast.parse(path.read_text(encoding="utf-8")) for path in paths])


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


def own_fields(cls: type) -> list[str]:
    """Fields that the class defines itself, not those that it inherits."""
    own = inspect.get_annotations(cls)
    return [field.name for field in dataclasses.fields(cls) if field.name in own]


def definition_of(cls: type) -> ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


def test_every_setting_is_read() -> None:
    reads_of = functools.cache(sources_of_the_package().reads)  # of bases asked for again and again
    unread = []
    for cls in CLASSES:
        family = [*cls.__mro__[:-1], *cls.__subclasses__()]  # what is declared as one of them may be another
        outside = {name for relative in family for name in reads_of(relative.__name__)}
        read = reads_of_itself(definition_of(cls), outside)
        unread += [f"{cls.__name__}.{name}" for name in own_fields(cls) if name not in read]
    assert unread == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_settings_are_explained_and_frozen_and_switches_are_off(cls: type) -> None:
    explained = {
        node.target.id
        for node, after in itertools.pairwise(definition_of(cls).body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and len(str(after.value.value)) > 5
    }
    hints = typing.get_type_hints(cls)
    groups = {name for name, hint in hints.items() if dataclasses.is_dataclass(hint)}  # by their class
    assert [name for name in own_fields(cls) if name not in explained | groups] == []
    assert cls.__doc__
    assert not cls.__doc__.startswith(f"{cls.__name__}(")  # what @dataclass writes where nobody did
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for field in dataclasses.fields(cls):
        if hints[field.name] is bool:
            assert field.default is False, f"{field.name}: a flag can only turn a switch on"


def test_an_unread_setting_would_be_found() -> None:
    source = """
class S:
    used: int; hidden: int; through: int; checked: int; other: int; kept: int; local: int; shared: int
    def __post_init__(self): self.checked; self.unused_property
    @property
    def doubled(self): return 2 * self.through
    @property
    def unused_property(self): return self.hidden
class TrainSettings:
    shared: int; hidden: int
class Command:
    group: S
class Keeper:
    def __init__(self, settings: S): self._mine = settings
    def use(self): return self._mine.kept
def f(settings: S): return settings.used + settings.doubled
def d(settings: S): return train_settings_of(settings, hidden=1)
def g(settings: Another): return settings.other
def h(command: Command):
    x = command.group
    return x.local
"""
    tree = ast.parse(source)
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)
    read = reads_of_itself(definition, Sources.of([tree]).reads("S"))
    fields = {"used", "hidden", "through", "checked", "other", "kept", "local", "shared"}
    assert read & fields == {"used", "through", "kept", "local", "shared"}
