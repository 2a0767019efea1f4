"""`cpplm evaluate`: every verb on a model, its text and its JSON, and wrong use."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cpplm.cli.main import dispatch
from cpplm.core.errors import UserError
from cpplm.evaluate.problems import load_problems
from tests.commands import reported
from tests.evaluate.models.hf_dirs import write_hf_dir
from tests.texts import cpp_document


@pytest.fixture(scope="module")
def hf_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_dir(tmp_path_factory.mktemp("hf") / "tiny")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    for number in range(6):
        (folder / f"p{number % 2}").mkdir(exist_ok=True)
        (folder / f"p{number % 2}" / f"f{number}.cpp").write_text(cpp_document(number))
    return folder


@pytest.fixture
def one_problem(tmp_path: Path) -> Path:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(dataclasses.asdict(load_problems("small")[0])))
    return path


def command(*arguments: str | Path) -> tuple[str, dict[str, Any]]:
    """A verb: the text that it prints, and the figures."""
    return reported("evaluate", *arguments)


def test_bpb_of_a_hugging_face_model_on_cxx_files(hf_dir: Path, code: Path, tmp_path: Path) -> None:
    arguments = ("bpb", "--hf_dir", hf_dir, "--data_dir", code, "--out", tmp_path)
    text, found = command(*arguments)
    assert found["model"] == "tiny"
    assert set(found["bpb"]["by_project"]) == {"p0", "p1"}
    assert len(found["bpb"]["shorter_contexts"]) == 2
    for part in ("tiny", "bits per byte", "95 % interval", "p0", "tokens in view", "same bytes"):
        assert part in text
    assert command(*arguments) == (text, found)  # from the store


def test_likelihood_of_a_hugging_face_model(hf_dir: Path) -> None:
    text, found = command("likelihood", "--hf_dir", hf_dir, "--problems", "small")
    assert 0 <= found["likelihood"]["bug_ranking"]["share"] <= 1
    assert "details" not in found["likelihood"]
    assert "bug ranking" in text


def test_everything_about_a_hugging_face_model(
    hf_dir: Path, code: Path, one_problem: Path, tmp_path: Path
) -> None:
    """Its context of 64 tokens is too short for the problem: the prompt is cut, which is counted."""
    where = ("--hf_dir", hf_dir, "--data_dir", code, "--out", tmp_path / "out")
    text, found = command(*where, "--context_bytes", "0", "--problems", one_problem)
    assert {"bpb", "likelihood", "cpp"} < set(found)
    assert found["cpp"]["problems"] == found["likelihood"]["problems"] == 1
    assert found["cpp"]["truncated_prompts"] == 1
    for part in ("bits per byte", "bug ranking", "pass@1", "1 of 1 prompts were cut to fit the context"):
        assert part in text


def test_holes_filled_by_a_hugging_face_model(hf_dir: Path, one_problem: Path, tmp_path: Path) -> None:
    where = ("fim", "--hf_dir", hf_dir, "--out", tmp_path / "out")
    arguments = (*where, "--problems", one_problem, "--holes_per_problem", "1", "--max_new_tokens", "4")
    text, found = command(*arguments)
    assert found["fim"]["config"]["supports_fim"]
    assert "single" in text
    assert command(*arguments) == (text, found)  # from the store


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["bpb", "--data_dir", "x"], ["no model was named", "a RUN, or one of --hf_dir and --url"]),
        (["bpb", "--run", "a", "--hf_dir", "b", "--data_dir", "x"], ["exclude each other"]),
        (["cpp", "--hf_dir", "no/such"], ["no/such", "no config.json"]),
        (["cpp", "--url", "http://127.0.0.1:9/v1", "--model_name", "x"], ["does not answer"]),
        (["cpp", "--url", "nowhere"], ["not an HTTP address"]),
        (["likelihood", "--run", "no/such/run"], ["no/such/run"]),
        (["bpb", "--run", "a"], ["--data_dir"]),
        (["bpb", "--run", "a", "--data_dir", "x", "--eval_bytes", "0"], ["--eval_bytes 0"]),
        (["bpb", "--run", "a", "--data_dir", "x", "--eval_tokens", "5"], ["unknown setting 'eval_tokens'"]),
    ],
)
def test_wrong_use(arguments: list[str], parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        dispatch(["evaluate", *arguments])
    for part in parts:
        assert part in str(caught.value)


def test_the_harness_judges_itself(one_problem: Path) -> None:
    text, found = command("self_test", "--problems", one_problem)
    assert (found["canonical_passed"], found["buggy"], found["buggy_passed"]) == (1, 1, 0)
    assert "1 of 1" in text


def test_a_harness_that_judges_wrongly_says_so(tmp_path: Path) -> None:
    easy = load_problems("small")[0]
    path = tmp_path / "problems.jsonl"
    swapped = dataclasses.replace(easy, canonical_solution=easy.buggy_solution)
    path.write_text(json.dumps(dataclasses.asdict(swapped)))
    with pytest.raises(UserError, match=f"{easy.name}: the canonical solution ended as"):
        dispatch(["evaluate", "self_test", "--problems", str(path)])
