"""Rules of the code base that no linter knows: sizes, imports, forbidden calls, the tree in the README."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cpplm"
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FUNCTION = 60
LONGEST_FILE = 400
# Imports inside a function, each with its reason.
ALLOWED_IMPORTS = {
    ("cli/main.py", "run"): "`cpplm --help` starts without the settings library",
}
# Pickle runs code when it is read, and so do these; a checkpoint or corpus may come from anyone.
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
ALLOWED_MODULES = {
    ("sandbox/sandbox.py", "marshal"): "writes requests for the launcher, reads none",
    (
        "train/checkpoint/import_nanochat.py",
        "torch.load",
    ): "with weights_only=True, which runs nothing; a test feeds it code",
    ("sandbox/launcher.py", "marshal"): "reads what its own parent wrote, before any untrusted program runs",
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "torch.load", "torch.save", "os.system", "os.popen", "np.load"}
IGNORED_FOLDERS = {
    "runs",
    "build",
    "dist",
    "shared",
}  # made by commands or by the machine, not part of the tree

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def dotted(node: ast.AST) -> str:
    """`a.b.c` for such an expression, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


# ---- the rules, as functions that give what breaks them ---------------------------------------------------


def long_functions(tree: ast.AST) -> list[str]:
    return [
        f"{f.name}: {f.end_lineno - f.lineno + 1} lines"
        for f in functions(tree)
        if f.end_lineno is not None and f.end_lineno - f.lineno + 1 > LONGEST_FUNCTION
    ]


def imports_inside_functions(tree: ast.AST) -> list[str]:
    return [
        f.name for f in functions(tree) for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)
    ]


def calls_of_print(tree: ast.AST) -> list[int]:
    return [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func) == "print"]


def forbidden(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [node.module] if node.module.split(".")[0] in FORBIDDEN_MODULES else []
            found += [
                f"{node.module}.{a.name}" for a in node.names if f"{node.module}.{a.name}" in FORBIDDEN_CALLS
            ]
        elif isinstance(node, ast.Call):
            called = dotted(node.func).replace("numpy.", "np.")
            allows_pickle = any(k.arg == "allow_pickle" for k in node.keywords)
            found += [called] if called in FORBIDDEN_CALLS or allows_pickle else []
    return found


def test_the_rules_see_what_they_forbid() -> None:
    """Each rule on a sample that breaks it: a rule that finds nothing anywhere would prove nothing."""
    body = "\n".join(f"    x = {i}" for i in range(LONGEST_FUNCTION))
    assert long_functions(ast.parse(f"def f():\n{body}")) == ["f: 61 lines"]
    assert long_functions(ast.parse(f"def f():\n{body}".rpartition("\n")[0])) == []
    inside = "class C:\n  def f(self):\n    if 1:\n      import os\nimport sys"
    assert imports_inside_functions(ast.parse(inside)) == ["f"]
    assert calls_of_print(ast.parse("x = 1\nprint(x)\nprinter(x)")) == [2]
    sample = (
        "import pickle\nfrom torch import load\ntorch.load(x)\neval(x)\nm.eval()\nre.compile(x)\ncompile(x)"
    )
    assert sorted(forbidden(ast.parse(sample))) == ["compile", "eval", "pickle", "torch.load", "torch.load"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file(path: Path) -> None:
    tree = tree_of(path)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    assert long_functions(tree) == []
    allowed = [function for file, function in ALLOWED_IMPORTS if file == name_of(path)]
    assert [f for f in imports_inside_functions(tree) if f not in allowed] == []
    assert [what for what in forbidden(tree) if (name_of(path), what) not in ALLOWED_MODULES] == []
    if path.parent.name != "cli":
        assert calls_of_print(tree) == []
    assert ast.get_docstring(tree), "a file says at its top what it is for"


def test_the_allow_list_holds_nothing_obsolete() -> None:
    for file, function in ALLOWED_IMPORTS:
        assert function in imports_inside_functions(tree_of(PACKAGE / file))
    for file, module in ALLOWED_MODULES:
        assert module in forbidden(tree_of(PACKAGE / file))


# ---- the tree in the README -------------------------------------------------------------------------------


def printed_tree(readme: str) -> tuple[set[str], set[str]]:
    """Top-level entries and folders below src/cpplm, from the fenced block that holds `src/cpplm/`."""
    blocks = [
        block for block in re.findall(r"```\w*\n(.*?)```", readme, re.DOTALL) if "src/cpplm/\n" in block
    ]
    assert len(blocks) == 1, "README.md shows one tree, with a line `src/cpplm/`"
    top, below = set[str](), set[str]()
    parents: list[tuple[int, str]] = []
    for line in blocks[0].splitlines():
        match = re.match(r"( *)([\w./-]+)(?:  +\S.*)?$", line)
        assert match, f"not a line of a tree: {line!r}"
        indent, name = len(match[1]), match[2].rstrip("/")
        if indent == 0:
            top.add(name)
            parents = []
            continue
        parents = [(depth, parent) for depth, parent in parents if depth < indent]
        below.add("/".join([*(parent for _, parent in parents), name]))
        parents.append((indent, name))
    return top, below


def test_the_tree_is_read_right() -> None:
    tree = "Makefile   a\nsrc/cpplm/\n  model/   m\n    kernels/  k\n  cli/     c\n"
    readme = f"x\n```\n{tree}```\n```sh\nmake demo\n```"
    assert printed_tree(readme) == ({"Makefile", "src/cpplm"}, {"model", "model/kernels", "cli"})


def test_the_tree_in_the_readme_is_the_tree() -> None:
    top, below = printed_tree((ROOT / "README.md").read_text(encoding="utf-8"))
    packages = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.glob("*/**/__init__.py")}
    assert below == packages
    missing = [name for name in top if not (ROOT / name).exists()]
    assert missing == []
    folders = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith((".", "__")) and path.name not in IGNORED_FOLDERS
        if any(entry.is_file() for entry in path.rglob("*"))
    }
    assert folders - {"src"} == {name for name in top if (ROOT / name).is_dir()} - {"src/cpplm", ".ci"}
