import json
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.core.settings import (
    Argument,
    flags,
    flatten,
    from_command_line,
    from_dict,
    read_toml,
    to_arguments,
    to_dict,
)
from tests.commands import all_settings_classes, example


@dataclass(frozen=True)
class Inner:
    """A group."""

    rate: float = 0.5
    """A rate."""
    place: Path = Path("here")
    """A place."""


@dataclass(frozen=True)
class Sample:
    """One setting of each kind."""

    name: str
    """Required."""
    max_tokens: int = 3
    """A number."""
    ratio: float = 1.0
    """A fraction."""
    verbose: bool = False
    """A switch."""
    items: tuple[Path, ...] = ()
    """A list."""
    limit: int | None = None
    """Optional."""
    mode: Literal["", "fast", "slow"] = "fast"
    """A choice."""
    inner: Inner = field(default_factory=Inner)
    """A group."""

    def __post_init__(self) -> None:
        if self.verbose and self.mode == "":
            raise UserError("--verbose needs a --mode", fix="Give one.")


def parse(*arguments: str, recipe: Path | None = None) -> Sample:
    return from_command_line(Sample, list(arguments), program="cpplm try", description="", recipe=recipe)


def write_recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


# ---- plain values -----------------------------------------------------------------------------------------


def test_every_settings_class_survives_json_and_has_each_flag_once() -> None:
    def names(value: Any) -> list[str]:
        fields = vars(value).items()
        return [n for key, item in fields for n in (names(item) if is_dataclass(item) else [key])]

    for cls in all_settings_classes():
        instance = example(cls)
        stored = json.loads(json.dumps(to_dict(instance)))
        assert from_dict(cls, stored, where="stored") == instance
        assert sorted(names(instance)) == sorted(flags(cls))


@given(
    name=st.text(),
    max_tokens=st.integers(),
    ratio=st.floats(allow_nan=False),
    items=st.lists(st.text(st.characters(codec="ascii", exclude_characters="/\0"), min_size=1)),
    limit=st.none() | st.integers(),
    mode=st.sampled_from(["", "fast", "slow"]),
    rate=st.floats(allow_nan=False),
)
def test_any_values_survive_json(items: list[str], rate: float, **values: Any) -> None:
    sample = Sample(**values, items=tuple(map(Path, items)), inner=Inner(rate=rate))
    assert from_dict(Sample, json.loads(json.dumps(to_dict(sample))), where="stored") == sample


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "a", "max_token": 3}, "unknown setting 'max_token'. Did you mean 'max_tokens'?"),
        ({"name": "a", "zzzzzz": 3}, "Known settings: name, max_tokens"),
        ({"name": "a", "inner": {"rat": 3}}, "inner: unknown setting 'rat'. Did you mean 'rate'?"),
        ({"name": "a", "rate": 3}, "unknown setting 'rate'"),  # belongs into its group
        ({"name": "a", "inner": 3}, "inner: 3 is not a group of settings"),
        ({"max_tokens": 3}, '"name"'),
        ({"name": 3}, '"name"'),
        ({"name": "a", "max_tokens": "3"}, '"max_tokens"'),
        ({"name": "a", "max_tokens": 3.5}, '"max_tokens"'),
        ({"name": "a", "max_tokens": True}, "max_tokens is a number or text, not true"),
        ({"name": "a", "ratio": True}, "ratio is a number or text, not true"),
        ({"name": "a", "verbose": 1}, '"verbose"'),
        ({"name": "a", "items": "abc"}, "items is a list, not 'abc'"),
        ({"name": "a", "items": [3]}, "os.PathLike object"),
        ({"name": "a", "mode": "medium"}, '"mode"'),
        ({"name": "a", "verbose": True, "mode": ""}, "--verbose needs a --mode. Give one."),
        ([1, 2], "is not a group of settings"),
        (None, "is not a group of settings"),
    ],
)
def test_refuses_wrong_values(values: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        from_dict(Sample, values, where="config.json")
    assert str(caught.value).startswith(("config.json: ", "--verbose"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_flags_are_laid_flat() -> None:
    assert list(flags(Sample)) == [
        "name", "max_tokens", "ratio", "verbose", "items", "limit", "mode", "rate", "place",
    ]  # fmt: skip


# ---- flags ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--max_tokens", "--max-tokens"])
def test_dashes_and_underscores_are_the_same(flag: str) -> None:
    assert parse("--name", "a", flag, "7").max_tokens == 7
    assert parse("--name", "a", f"{flag}=7").max_tokens == 7


def test_every_kind_of_flag() -> None:
    parsed = parse(
        "--name=-x", "--max_tokens", "-5", "--ratio", "2", "--verbose", "--items", "a", "b c",
        "--limit", "9", "--mode", "slow", "--rate", "0.25", "--place", "/there",
    )  # fmt: skip
    assert parsed == Sample(
        name="-x", max_tokens=-5, ratio=2.0, verbose=True, items=(Path("a"), Path("b c")), limit=9,
        mode="slow", inner=Inner(rate=0.25, place=Path("/there")),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max_token", "3"], "unknown setting 'max_token'. Did you mean 'max_tokens'?"),
        (["--max-token=3"], "Did you mean 'max_tokens'?"),
        (["--inner.rate", "3"], "unknown setting 'inner.rate'"),
        ([], "Missing from cpplm try: --name STR. Try 'cpplm try --help'."),
        (["--name"], "'--name'"),
        (["--name", "a", "--max_tokens", "x"], "--max_tokens: invalid literal for int() with base 10: 'x'"),
        (["--name", "a", "--max_tokens", "1e3"], "'1e3'"),
        (["--name", "a", "--mode", "medium"], "invalid choice 'medium' for argument '--mode'"),
        (["--name", "a", "b"], "Unrecognized options: b"),
        (["--name", "a", "--verbose=yes"], "Unrecognized options: yes"),
        (["--name", "a", "-q"], "-q"),
        (["--name", "a", "--verbose", "--mode="], "--verbose needs a --mode"),
    ],
)
def test_refuses_wrong_flags_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as caught:
        parse(*arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not set(str(caught.value)) & set("╭│─╰")
    assert capsys.readouterr() == ("", "")


@dataclass(frozen=True)
class Source:
    """A group with what the command is about."""

    base_run: Annotated[str, Argument("RUN", positional=True, letters=("i",))]
    """The run."""


@dataclass(frozen=True)
class OfRun:
    """A command about one run."""

    source: Source
    """A group."""
    names: tuple[str, ...] = ()
    """A list."""
    verbose: bool = False
    """A switch."""


@dataclass(frozen=True)
class OfRuns:
    """A command about several runs."""

    runs: Annotated[tuple[str, ...], Argument("RUN", positional=True)] = ()
    """The runs."""
    names: tuple[str, ...] = ()
    """A list."""


@pytest.mark.parametrize(
    "words",
    [
        ["a"], ["--base_run", "a"], ["--base-run=a"], ["-i", "a"], ["--verbose", "a"], ["a", "--verbose"],
        ["--names", "x", "--base_run", "a"], ["a", "--names", "x"], ["--names", "x", "--verbose", "a"],
    ],
)  # fmt: skip
def test_a_positional_is_taken_anywhere_and_with_its_flag(words: list[str]) -> None:
    parsed = from_command_line(OfRun, words, program="cpplm try", description="")
    assert parsed == OfRun(Source("a"), ("x",) if "x" in words else (), "--verbose" in words)


@pytest.mark.parametrize("words", [["--", "-a"], ["--base_run=-a"], ["-i=-a"]])
def test_a_positional_may_begin_with_a_dash(words: list[str]) -> None:
    assert from_command_line(OfRun, words, program="", description="").source.base_run.endswith("-a")


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ([], ("r",)),
        (["a", "b"], ("a", "b")),
        (["a", "--names", "y"], ("a",)),
        (["--runs", "a", "b"], ("a", "b")),
    ],
)
def test_a_positional_wins_over_the_recipe(words: list[str], runs: tuple[str, ...], tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, 'runs = ["r"]\nnames = ["x"]\n')
    parsed = from_command_line(OfRuns, words, program="cpplm try", description="", recipe=recipe)
    assert parsed == OfRuns(runs, ("y",) if "y" in words else ("x",))


def test_a_list_is_given_once() -> None:
    words = ["a", "--names", "x", "--names", "y"]
    with pytest.raises(UserError, match=r"--names is given twice\. Write all values behind one: --names A B"):
        from_command_line(OfRuns, words, program="cpplm try", description="")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing from cpplm try: RUN. Try 'cpplm try --help'."),
        (["a", "b"], "Unrecognized options: b"),
        (["a", "--base_run", "b"], "RUN is given twice: a, and --base_run b. Leave one of them out."),
        (["--base_run"], "expected 1 argument"),
    ],
)
def test_refuses_a_wrong_positional_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        from_command_line(OfRun, words, program="cpplm try", description="")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flag", ["--place", "--items"])
def test_a_bucket_is_no_local_path(flag: str) -> None:
    with pytest.raises(UserError, match=f"{flag} s3:/bucket/x must be local"):
        parse("--name", "s3://bucket/x", flag, "s3://bucket/x")
    assert parse("--name", "s3://bucket/x", flag, "a/b:c/d").name == "s3://bucket/x"


def test_a_narrow_terminal_does_not_change_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    with pytest.raises(UserError, match=r"--max_tokens: invalid literal for int\(\) with base 10: 'x'"):
        parse("--name", "a", "--max_tokens", "x")


# ---- recipes ----------------------------------------------------------------------------------------------


def test_a_recipe_is_the_same_as_its_flags(tmp_path: Path) -> None:
    recipe = write_recipe(
        tmp_path,
        'name = "--odd value"\nmax_tokens = -5\nratio = 2\nverbose = true\nitems = ["a", "b c"]\n'
        'limit = 9\nmode = "slow"\nrate = 0.25\nplace = "/there"\n',
    )
    assert parse(recipe=recipe) == Sample(
        name="--odd value", max_tokens=-5, ratio=2.0, verbose=True, items=(Path("a"), Path("b c")), limit=9,
        mode="slow", inner=Inner(rate=0.25, place=Path("/there")),
    )  # fmt: skip


def test_flags_win_over_the_recipe_and_the_recipe_over_defaults(tmp_path: Path) -> None:
    recipe = write_recipe(
        tmp_path,
        'name = "r"\nmax_tokens = 10\nitems = ["a", "b"]\nmode = ""\nrate = 9.0\nverbose = false\n',
    )
    parsed = parse("--max-tokens", "20", "--items", "c", recipe=recipe)
    assert parsed == Sample(name="r", max_tokens=20, items=(Path("c"),), mode="", inner=Inner(rate=9.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_token = 3", "unknown setting 'max_token'. Did you mean 'max_tokens'?"),
        ("[inner]\nrate = 3.0", "unknown setting 'inner'"),
        ('max_tokens = "3"', '"max_tokens"'),
        ("max_tokens = true", "max_tokens is a number or text, not true"),
        ("max_tokens = [3]", '"max_tokens"'),
        ("max_tokens = 2020-01-01", '"max_tokens"'),
        ('verbose = "yes"', '"verbose"'),
        ('items = "a"', "items is a list"),
        ('mode = "medium"', '"mode"'),
        ("max_tokens = ", "not valid TOML"),
        ("max_tokens = 1\nmax_tokens = 2", "not valid TOML"),
    ],
)
def test_refuses_wrong_recipes(text: str, message: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, text)
    with pytest.raises(UserError) as caught:
        to_arguments(Sample, read_toml(recipe, "settings file"), where=str(recipe))
    assert message in str(caught.value)
    assert str(recipe) in str(caught.value)


def test_refuses_recipes_that_cannot_be_read(tmp_path: Path) -> None:
    not_text = tmp_path / "bytes.toml"
    not_text.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path, not_text):
        with pytest.raises(UserError, match="cannot read the settings file"):
            read_toml(path, "settings file")


def test_the_recipes_of_the_repository_are_valid() -> None:
    train = next(cls for cls in all_settings_classes() if cls.__name__ == "TrainSettings")
    folder = Path(__file__).parents[2] / "recipes"
    recipes = sorted({*folder.glob("*.toml")} - {folder / "sweep.toml"})  # tests/sweep reads that
    assert recipes
    for recipe in recipes:
        needed = ["--data_dir", "d", "--tokenizer", "t", "--out", "o"]
        from_command_line(train, needed, program="cpplm train", description="", recipe=recipe)


KEYS = st.text("abc_", min_size=1, max_size=3)
NESTED = st.recursive(
    st.dictionaries(KEYS, st.none() | st.integers() | st.just([1]) | st.just({}), max_size=3),
    lambda inner: st.dictionaries(KEYS, inner | st.integers(), max_size=3),
    max_leaves=6,
)


def unflatten(flat: dict[str, Any]) -> dict[str, Any]:
    """What `flatten` was given."""
    values: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, last = name.split(".")
        here = values
        for group in groups:
            here = here.setdefault(group, {})
        here[last] = value
    return values


@settings(max_examples=25)
@given(NESTED)
def test_flattening_loses_no_value(values: dict[str, Any]) -> None:
    flat = flatten(values)
    assert unflatten(flat) == values
    assert not any(isinstance(value, dict) and value for value in flat.values())
