"""lm-evaluation-harness takes the server for OpenAI's: its figures are those of the model itself."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cpplm.generate.engine import Engine
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import SamplingSettings
from cpplm.tokenizer.export import export_hf
from cpplm.tokenizer.special_tokens import BOS
from tests.serve.test_process import run, serve  # noqa: F401  (a fixture)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("lm_eval") is None, reason="pip install 'lm-eval[api]' (docs/evaluation.md)"
    ),
]
CHOICES = [
    {"query": "int main() {", "choices": [" return 0; }", "}", " for (;;) {}"], "gold": 0},
    {"query": "int area(int width", "choices": [", int height);", ") {", ";"], "gold": 1},
    {"query": "#include <", "choices": ["vector>", "map>\n"], "gold": 1},
]  # fmt: skip
GENERATED = [{"query": each["query"], "answer": "x"} for each in CHOICES]
TASKS = {
    "cpp_choices": """
task: cpp_choices
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/cpp_choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{query}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "cpp_generate": """
task: cpp_generate
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/cpp_generate.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{query}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


def write_tasks(folder: Path) -> None:
    for (name, task), rows in zip(TASKS.items(), (CHOICES, GENERATED), strict=True):
        (folder / f"{name}.yaml").write_text(task.replace("FOLDER", str(folder)))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def harness(url: str, tokenizer: Path, folder: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The results, and the answers to the items in their order, by task."""
    model = f"model=tiny,base_url={url}/v1/completions,tokenizer={tokenizer},max_length=256"
    command = [
        sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", model,
        "--tasks", ",".join(TASKS), "--include_path", str(folder), "--log_samples",
        "--output_path", str(folder / "out"),
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(next(folder.rglob("results_*.json")).read_text())["results"]
    answers = {}
    for name in TASKS:
        lines = next(folder.rglob(f"samples_{name}_*.jsonl")).read_text().splitlines()
        samples = sorted(map(json.loads, lines), key=lambda sample: sample["doc_id"])
        answers[name] = [[response[0] for response in sample["resps"]] for sample in samples]
    return results, answers


def logprob(engine: Engine, context: str, continuation: str) -> float:
    """Of the tokens that a continuation adds, in a pass of its own."""
    before = engine.tokenizer.encode(context, prepend=BOS)
    ids = engine.tokenizer.encode(context + continuation, prepend=BOS)
    with torch.inference_mode():
        logprobs_TV = engine.model(torch.tensor([ids]))[0].float().log_softmax(-1)
    return sum(logprobs_TV[place - 1, ids[place]].item() for place in range(len(before), len(ids)))


def test_its_figures_are_ours(run: Path, long_engine: Engine, tmp_path: Path) -> None:  # noqa: F811
    write_tasks(tmp_path)
    export_hf(long_engine.tokenizer, tmp_path / "tokenizer")
    with serve(run, "--served_name", "tiny") as (_, http):
        results, answers = harness(str(http.base_url).rstrip("/"), tmp_path / "tokenizer", tmp_path)
    right = []
    for item, theirs in zip(CHOICES, answers["cpp_choices"], strict=True):
        ours = [logprob(long_engine, item["query"], choice) for choice in item["choices"]]
        assert [float(value) for value, _ in theirs] == pytest.approx(ours, abs=1e-3)
        right.append(ours.index(max(ours)) == item["gold"])
    assert results["cpp_choices"]["acc,none"] == pytest.approx(sum(right) / len(right))
    sampling = SamplingSettings(12, temperature=0, stop=("\n\n",))
    for item, theirs in zip(GENERATED, answers["cpp_generate"], strict=True):
        ids = tuple(long_engine.tokenizer.encode(item["query"], prepend=BOS))
        (ours,) = long_engine.complete_many([GenerationRequest(ids, sampling)])
        assert theirs == [ours.completions[0].text]
