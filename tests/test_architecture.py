"""Rules of the code base that ruff does not know: sizes, the tree in the README; and that its own are on."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cpplm"
LONGEST_FUNCTION = 60
LONGEST_FILE = 400
IGNORED_FOLDERS = {"runs", "build", "dist", "shared"}  # made by commands or by the machine


def long_functions(tree: ast.AST) -> list[str]:
    """Those of more lines than fit a screen."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(f.name, (f.end_lineno or f.lineno) - f.lineno + 1) for f in functions]
    return [f"{name}: {length} lines" for name, length in lengths if length > LONGEST_FUNCTION]


def test_files_and_functions_are_short() -> None:
    body = "\n".join(f"    x = {i}" for i in range(LONGEST_FUNCTION))
    assert long_functions(ast.parse(f"def f():\n{body}")) == ["f: 61 lines"]
    assert long_functions(ast.parse(f"def f():\n{body}".rpartition("\n")[0])) == []
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        count = len(text.splitlines())
        wrong += [f"{path}: {count} lines"] if count > LONGEST_FILE else []
        wrong += [f"{path}: {each}" for each in long_functions(ast.parse(text))]
    assert wrong == []


def test_ruff_sees_what_is_forbidden() -> None:
    """Unpickling, evaluating, shells, printing, imports inside functions, a file without a docstring."""
    sample = """
import marshal, os, pickle
import numpy as np
from torch import load
def f(x):
    import sys
    print(eval(x), exec(x), np.load(x), os.system(x), load(x), pickle.loads(x), marshal.loads(x), sys)
"""
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--no-cache"]
    found = subprocess.run(
        [*command, "--stdin-filename", str(PACKAGE / "model" / "sample.py"), "-"],
        input=sample, capture_output=True, text=True, check=False, cwd=ROOT,
    ).stdout  # fmt: skip
    codes = {match[1] for match in re.finditer(r":\d+: ([A-Z]+\d+) ", found)}
    assert codes >= {"TID251", "S307", "S102", "S301", "S302", "T201", "PLC0415", "D100"}
    banned = set(re.findall(r"`([\w.]+)` is banned", found))
    assert banned == {"marshal", "pickle", "numpy.load", "os.system", "torch.load"}


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


def test_docs_name_files_that_exist() -> None:
    """Files in backticks, and links; a benchmark of an earlier commit is named with that commit."""
    folders = ("src", "tests", "benchmarks", "recipes", "scripts", "examples")
    files = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.*")]
    files.append("/pyproject.toml")
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"`(?:python )?([\w./-]+\.(?:py|toml|sh))\b[^`]*`(?! of commit)", text):
            if not any(file.endswith(f"/{match[1]}") for file in files):
                wrong.append(f"{page.name}: {match[1]}")
        links = re.findall(r"\]\(([\w./-]+\.md)", text)
        wrong += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert wrong == []
