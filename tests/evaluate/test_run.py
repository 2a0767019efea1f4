"""A real run, evaluated: figures, the store of results, prompts that do not fit."""

import dataclasses
import json
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.cpp import CppEvalSettings
from cpplm.evaluate.problems import load_problems
from cpplm.evaluate.run import BpbSettings, Evaluation
from cpplm.generate.load import ModelSource
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from tests.conftest import SMALL_TABLES


@pytest.fixture(scope="module")
def run(corpus: Path, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    pretrain(
        TrainSettings(
            data_dir=(str(corpus),), tokenizer=tokenizer_path, out=out, depth=1, head_dim=16, max_seq_len=64,
            device_batch_size=2, total_batch_size=128, num_iterations=2,
            architecture=SMALL_TABLES, no_compile=True, precision="fp32",
        )
    )  # fmt: skip
    return out


@pytest.fixture
def evaluation(run: Path) -> Evaluation:
    return Evaluation(ModelSource(str(run), precision="fp32"))


def test_bits_per_byte_agree_with_training(run: Path, corpus: Path, evaluation: Evaluation) -> None:
    found = evaluation.bits_per_byte(BpbSettings(str(corpus), eval_batch_size=2))
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    last = [record for record in records if record["event"] == "validation"][-1]
    assert found["bits_per_byte"] == pytest.approx(last["bits_per_byte"], rel=1e-6)
    assert found["bytes"] == last["bytes"]
    assert found["step"] == 2


def test_an_equal_question_is_answered_from_the_store(
    run: Path, corpus: Path, evaluation: Evaluation
) -> None:
    settings = BpbSettings(str(corpus), eval_tokens=300)
    first = evaluation.bits_per_byte(settings)
    path = run / "evaluation.json"
    marked = json.loads(path.read_text())
    marked["bpb"]["seconds"] = 12345.0
    path.write_text(json.dumps(marked))
    assert evaluation.bits_per_byte(settings)["seconds"] == 12345.0
    other = evaluation.bits_per_byte(BpbSettings(str(corpus), eval_tokens=200))
    assert other["seconds"] != 12345.0
    assert other["tokens"] == 200 < first["tokens"] == 300


def test_problems_are_counted_also_when_their_prompt_is_too_long(
    tmp_path: Path, evaluation: Evaluation
) -> None:
    problem = {
        "difficulty": "easy",
        "tests": "#include <cassert>\nint main() { " + "assert(one() == 1); " * 5 + "}\n",
        "canonical_solution": "    return 1;\n}\n",
        "buggy_solution": "    return 2;\n}\n",
    }
    short = {"name": "short", "prompt": "int one() {\n", **problem}
    long = {"name": "long", "prompt": "// " + "words and more words " * 30 + "\nint one() {\n", **problem}
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (short, long)))
    found = evaluation.cpp(CppEvalSettings(problems=str(path), max_new_tokens=8))
    assert found["problems"] == 2
    assert sum(found["outcomes"].values()) == 2
    details = {sample["problem"]: sample for sample in found["details"]}
    assert details["long"]["body"].strip() in ("", "}")
    assert details["long"]["outcome"] != "passed"


def test_other_problems_in_the_same_file_are_another_question(tmp_path: Path, evaluation: Evaluation) -> None:
    small = load_problems("small")
    path = tmp_path / "problems.jsonl"
    for count in (1, 2):
        path.write_text("".join(json.dumps(dataclasses.asdict(problem)) + "\n" for problem in small[:count]))
        assert evaluation.cpp(CppEvalSettings(problems=str(path), max_new_tokens=4))["problems"] == count


@pytest.mark.parametrize("change", [{"eval_tokens": 0}, {"eval_batch_size": 0}])
def test_bad_settings(change: dict) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        BpbSettings("somewhere", **change)
