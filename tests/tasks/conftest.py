"""Small projects, their corpus, and all kinds of tasks made of them."""

from pathlib import Path

import pytest
from dulwich import porcelain

from cpplm.corpus.build import build
from cpplm.tasks.build import build_tasks, open_grader
from cpplm.tasks.grader import Grader
from cpplm.tasks.settings import TaskBuildSettings
from tests.corpus.settings import compilable

HEADER = """
#define {up}_LIMIT {limit}

struct {name}_shape {{
  int width;
  int height;
}};

int {name}_area(const {name}_shape& shape);
int {name}_clamp(int value, int low);
int {name}_weigh(int first, int second);
"""
SOURCE = """
#include "{name}.h"

// Returns the area of a shape, which is its width times its height.
int {name}_area(const {name}_shape& shape) {{
  int width = shape.width;
  int height = shape.height;
  return width * height;
}}

// Returns the value, but at least the lower limit that is given.
int {name}_clamp(int value, int low) {{
  int result = value;
  if (result < low) {{
    result = low;
  }}
  int limit = {limit};
  if (result > limit) {{
    result = limit;
  }}
  return result;
}}

// Returns both numbers added, the second one weighed by a constant.
int {name}_weigh(int first, int second) {{
  int weight = {limit};
  int sum = first + second * weight;
  return sum - 1;
}}
"""


def write_project(root: Path, name: str, limit: int) -> None:
    """A header and a source; names and numbers differ from project to project."""
    root.mkdir(parents=True)
    values = {"name": name, "up": name.upper(), "limit": limit}
    (root / f"{name}.h").write_text(HEADER.format(**values))
    (root / f"{name}.cpp").write_text(SOURCE.format(**values))


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Projects in a folder; one of them is a repository with an edit in its history."""
    folder = tmp_path_factory.mktemp("projects")
    for number, name in enumerate(("apple", "berry", "cedar", "daisy")):
        write_project(folder / name, name, 40 + 11 * number)
        repository = porcelain.init(str(folder / name))
        for old, new in (("sum - 1", "sum - 2"), ("sum - 2", "sum - 3")):
            porcelain.add(repository, paths=[str(path) for path in (folder / name).glob("*.*")])
            porcelain.commit(
                repository, b"Change the constant in weigh", author=b"A <a@b.c>", committer=b"A <a@b.c>"
            )
            source = folder / name / f"{name}.cpp"
            source.write_text(source.read_text().replace(old, new))
        porcelain.add(repository, paths=[str(folder / name / f"{name}.cpp")])
        porcelain.commit(
            repository, b"Correct what weigh returns", author=b"A <a@b.c>", committer=b"A <a@b.c>"
        )
        repository.close()
    return folder


@pytest.fixture(scope="session")
def corpus(projects: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus") / "corpus"
    build(compilable(out=str(out), projects_dir=projects, val_fraction=0.3, near_duplicates=0, workers=1))
    return out


def settings(corpus: Path, projects: Path, out: Path, **more: object) -> TaskBuildSettings:
    kinds = ("tiny", "fix", "denoise", "fill", "doc", "ask", "commit")
    defaults: dict = {"kinds": kinds, "num_train": 6, "num_val": 3}
    return TaskBuildSettings(data_dir=str(corpus), out=out, projects_dir=projects, **defaults | more)


@pytest.fixture(scope="session")
def tasks(corpus: Path, projects: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tasks of all kinds but `own`, which compiles and runs for long."""
    out = tmp_path_factory.mktemp("tasks") / "tasks"
    build_tasks(settings(corpus, projects, out))
    return out


@pytest.fixture(scope="session")
def grader(tasks: Path) -> Grader:
    """The grader of the tasks: to look at its compiler takes as long as some tests."""
    return open_grader(tasks, (), 2)
