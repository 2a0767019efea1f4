"""A real run, evaluated: figures, the store of results, what a crash keeps, prompts that do not fit."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.problems import Problem, load_problems
from cpplm.evaluate.run import Evaluation
from cpplm.evaluate.settings import (
    BpbSettings,
    CppEvalSettings,
    EvalTarget,
    EvaluatedModel,
)
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from tests.evaluate.models.loopback import Loopback, status
from tests.evaluate.scripted import write_problems


@pytest.fixture(scope="module")
def run(small_run: TrainSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    pretrain(dataclasses.replace(small_run, out=out, num_iterations=2, eval_every=2))
    return out


@pytest.fixture
def evaluation(run: Path) -> Evaluation:
    return evaluate(run=str(run), precision="fp32")


def evaluate(out: str = "", **model: Any) -> Evaluation:
    return Evaluation(EvalTarget(EvaluatedModel(**model), out))


def test_what_another_evaluation_stored_meanwhile_is_kept(run: Path, tmp_path: Path) -> None:
    one, other = (evaluate(run=str(run), precision="fp32", out=str(tmp_path / "results")) for _ in range(2))

    def measure(inputs: dict[str, Any]) -> dict[str, Any]:
        other.cached("other", {}, lambda _: {"figure": 2})
        return {"figure": 1}

    one.cached("one", {}, measure)
    assert set(Storage(tmp_path / "results").read_json("evaluation.json")) == {"one", "other"}


# ---- bits per byte ----------------------------------------------------------------------------------------


def test_bits_per_byte_are_near_those_of_training(run: Path, corpus: Path, evaluation: Evaluation) -> None:
    """In training, rows of the context's length are cut anywhere, here each token has context behind it."""
    found = evaluation.bits_per_byte(BpbSettings(str(corpus), context_bytes=0))
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    last = [record for record in records if record["event"] == "validation"][-1]
    assert found["bits_per_byte"] == pytest.approx(last["bits_per_byte"], rel=0.05)
    assert found["bytes"] == last["bytes"]
    assert (found["step"], found["documents"]) == (2, 8)
    assert set(found["by_project"]) == {"p0", "p1", "p2"}


def test_an_equal_question_is_answered_from_the_store(
    run: Path, corpus: Path, evaluation: Evaluation
) -> None:
    settings = BpbSettings(str(corpus), eval_bytes=3000, context_bytes=0)
    first = evaluation.bits_per_byte(settings)
    path = run / "evaluation.json"
    marked = json.loads(path.read_text())
    marked["bpb"]["seconds"] = 12345.0
    path.write_text(json.dumps(marked))
    assert evaluation.bits_per_byte(settings)["seconds"] == 12345.0
    for changed in ({"eval_bytes": 1000}, {"context": 32}, {"context_bytes": 100}):
        other = evaluation.bits_per_byte(dataclasses.replace(settings, **changed))
        assert other["seconds"] != 12345.0
    assert first["bytes"] <= 3000
    assert first["inputs"]["precision"] == "torch.float32"


def test_the_same_texts_for_any_kind_of_model(
    corpus: Path, hf_dir: Path, loopback: Loopback, tmp_path: Path
) -> None:
    settings = BpbSettings(str(corpus), eval_bytes=1500, context=48, context_bytes=0)
    theirs = evaluate(hf_dir=hf_dir, precision="fp32", out=str(tmp_path)).bits_per_byte(settings)
    loopback.context = 50
    served = evaluate(url=loopback.url).bits_per_byte(settings)
    assert theirs["bytes"] == served["bytes"]
    assert served["bits_per_byte"] == pytest.approx(theirs["bits_per_byte"], rel=0.05)
    assert json.loads((tmp_path / "evaluation.json").read_text())["bpb"] == theirs


# ---- likelihood -------------------------------------------------------------------------------------------


# ---- C++ problems -----------------------------------------------------------------------------------------

ONE = Problem(
    name="one",
    difficulty="easy",
    prompt="int one() {\n",
    tests="#include <cassert>\nint main() { " + "assert(one() == 1); " * 5 + "}\n",
    canonical_solution="    return 1;\n}\n",
    buggy_solution="    return 2;\n}\n",
)


def test_what_cannot_be_stored_is_not_measured(
    tmp_path: Path, evaluation: Evaluation, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored already is told all the same."""
    problems = write_problems(tmp_path / "mine.jsonl", [ONE])
    stored = BpbSettings(str(corpus), eval_bytes=500, context_bytes=0)
    expected = evaluation.bits_per_byte(stored)

    def refused(storage: Storage, name: str, data: bytes) -> None:
        raise UserError(f"cannot write {storage.path(name)}")

    monkeypatch.setattr(Storage, "write", refused)
    for ask in ("generate", "score"):
        monkeypatch.setattr(CheckpointModel, ask, lambda *_, **__: pytest.fail("it was asked"))
    assert evaluation.bits_per_byte(stored) == expected
    with pytest.raises(UserError, match=r"results cannot be kept: cannot write .*--out FOLDER"):
        evaluation.cpp(CppEvalSettings(problems=str(problems), max_new_tokens=4))


@pytest.mark.slow
def test_other_problems_in_the_same_file_are_another_question(tmp_path: Path, evaluation: Evaluation) -> None:
    small = load_problems("small")
    for count in (1, 2):
        path = write_problems(tmp_path / "problems.jsonl", small[:count])
        assert evaluation.cpp(CppEvalSettings(problems=str(path), max_new_tokens=4))["problems"] == count


def test_a_server_that_fails_is_counted_and_named(tmp_path: Path, loopback: Loopback) -> None:
    other = dataclasses.replace(ONE, name="two", prompt="int one() { ")
    problems = write_problems(tmp_path / "mine.jsonl", [ONE, other])
    loopback.context = 2000
    evaluation = evaluate(url=loopback.url, out=str(tmp_path / "out"), eval_batch_size=1)
    settings = CppEvalSettings(problems=str(problems), max_new_tokens=6, num_samples=2, temperature=0.5)
    loopback.faults = [status(400, b'{"error": {"message": "out of tokens"}}')]
    found = evaluation.cpp(settings)
    assert found["failed_samples"] == {"HTTP 400 out of tokens": 1}
    assert sum(found["outcomes"].values()) == 4
    asked = len(loopback.asked)
    (tmp_path / "out" / "evaluation.json").unlink()
    again = evaluation.cpp(settings)  # only the problem that failed is asked again
    assert len(loopback.asked) == asked + 2
    assert "failed_samples" not in again


# ---- which model ------------------------------------------------------------------------------------------


def test_without_a_place_for_results_they_are_not_kept(
    hf_dir: Path, corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in hf_dir.iterdir()}
    evaluation = evaluate(hf_dir=hf_dir)
    evaluation.bits_per_byte(BpbSettings(str(corpus), eval_bytes=500, context_bytes=0))
    assert "are printed and not kept" in capfd.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in hf_dir.iterdir()} == before
    assert evaluation.about == {"model": "tiny"}
