"""Runs that read corpus, tokenizer and parent from a hub."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.tokenizer.export import export_hf
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import open_run
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from tests.fake_hub import FakeHub
from tests.train.records import records

CODE, MODEL = "hf://datasets/them/code/corpus", "hf://them/model"


@pytest.fixture
def there(
    corpus: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeHub]:
    fake = FakeHub()
    with fake.open():
        fake.use(monkeypatch, tmp_path / "home")
        fake.add(
            "datasets/them/code", {f"corpus/{path.name}": path.read_bytes() for path in corpus.iterdir()}
        )
        export_hf(tokenizer, tmp_path / "export")
        fake.add_folder("models/them/model", tmp_path / "export")
        yield fake


def test_the_tokenizer_of_an_export(there: FakeHub, tokenizer: Tokenizer) -> None:
    for location in (MODEL, f"{MODEL}/tokenizer.json", Path(f"{MODEL}@main/tokenizer.json")):
        assert Tokenizer.load(location) == tokenizer
    with pytest.raises(UserError, match=r"no such file: hf://them/model@\w+/none\.json"):
        Tokenizer.load(f"{MODEL}/none.json")


def test_a_run_goes_on_with_the_commits_that_it_began_with(
    small_run: TrainSettings, there: FakeHub, tmp_path: Path
) -> None:
    first = dataclasses.replace(
        small_run, data_dir=(CODE,), tokenizer=Path(MODEL), out=tmp_path / "run", num_iterations=4
    )
    first.check_paths()
    pretrain(first)
    pins = [repository.branches["main"] for repository in there.repositories.values()]
    there.add("datasets/them/code", {"corpus/manifest.json": b"{}"})
    there.add("models/them/model", {"tokenizer.json": b"{}"})
    pretrain(dataclasses.replace(first, num_iterations=6))
    for session in records(first.out, "session"):
        assert session["settings"]["data_dir"] == [f"hf://datasets/them/code@{pins[0]}/corpus"]
        assert session["settings"]["tokenizer"] == f"hf:/them/model@{pins[1]}"
    assert open_run(first.out).step == 6
    with pytest.raises(UserError, match="holds no finished documents"):
        pretrain(dataclasses.replace(first, out=tmp_path / "another", tokenizer=Path(f"{MODEL}@{pins[1]}")))

    there.add_folder("models/them/run", first.out)
    code = f"hf://datasets/them/code@{pins[0]}/corpus"
    child = dataclasses.replace(
        first, init_from="hf://them/run/checkpoints:6", data_dir=(code,),
        tokenizer=Path(f"{MODEL}@{pins[1]}"), out=tmp_path / "child", depth=-1, max_seq_len=-1,
    )  # fmt: skip
    pretrain(child)
    parent = open_run(child.out).parent
    commit = there.repositories["models/them/run"].branches["main"]
    assert parent and parent["location"] == f"hf://them/run@{commit}/checkpoints"
