"""The commands, by name: `main.py` imports no more than what the one that was asked for needs."""

from __future__ import annotations

import re
from typing import NamedTuple


class Command(NamedTuple):
    """A command: settings class (as module:name below cpplm), summary and example."""

    settings: str
    summary: str
    example: str
    resumes: bool = False
    """Stopped half-way, the same command goes on from what is kept."""
    stops_at_once: bool = False
    """A signal to stop ends it within two seconds, unless it has something to save (`core.shutdown`)."""
    function: str = ""
    """Its name as that of the settings class; unless given, that of `runs page` is `cli.runs:page`, that of
    `compress cache stat` is `cli.compress:cache_stat`."""


COMMANDS: dict[str, Command] = {
    "corpus build": Command(
        "corpus.settings:CorpusSettings",
        "C++ projects to ordered training documents in parquet shards",
        "corpus build ~/src/fmt ~/src/spdlog --out corpus",
        resumes=True,
    ),
    "corpus inspect": Command(
        "corpus.reports.inspect_corpus:InspectSettings",
        "show documents of a corpus and its figures",
        "corpus inspect runs/demo/corpus --page corpus.html",
    ),
    "corpus explain": Command(
        "corpus.reports.explain:ExplainSettings",
        "the documents that a source line stands in, and why",
        "corpus explain runs/demo/corpus --line src/tinyxml2.cpp:120",
    ),
    "corpus check": Command(
        "corpus.reports.compile_rate:CompileRateSettings",
        "compile a sample of the documents, in the sandbox",
        "corpus check runs/demo/corpus --sample 100",
    ),
    "corpus export": Command(
        "corpus.reports.export_jsonl:ExportSettings",
        "documents or docstring pairs as JSON lines",
        "corpus export runs/demo/corpus --to corpus.jsonl.zst",
    ),
    "tokenizer train": Command(
        "tokenizer.train:TokenizerSettings",
        "train a lossless C++ tokenizer on a corpus",
        "tokenizer train corpus --out tokenizer.json",
    ),
    "tokenizer evaluate": Command(
        "tokenizer.benchmark:TokenizerBenchmarkSettings",
        "bytes per token and encoding speed on held-out code",
        "tokenizer evaluate runs/demo/corpus --tokenizer runs/demo/tokenizer.json",
    ),
    "tokenizer show": Command(
        "cli.tokenizer:ShowSettings",
        "where tokens begin and end, in colors",
        "tokenizer show runs/demo/tokenizer.json --file main.cpp",
    ),
    "tokenizer export": Command(
        "cli.tokenizer:TokenizerExportSettings",
        "a tokenizer for Hugging Face's libraries",
        "tokenizer export runs/demo/tokenizer.json --out hf_tokenizer",
    ),
    "train": Command(
        "train.settings:TrainSettings",
        "pre-train a model",
        "train corpus --tokenizer tokenizer.json --out runs/first --depth 4 --max_minutes 30",
        resumes=True,
        stops_at_once=True,
    ),
    "sft": Command(
        "post_training.settings:SftSettings",
        "fine-tune a model on conversations",
        "sft conversations.jsonl --init_from runs/first --out runs/chat",
        resumes=True,
        stops_at_once=True,
    ),
    "rl": Command(
        "post_training.rl.settings:RlSettings",
        "reinforcement learning: train by what compiles, passes tests or is right",
        "rl runs/tasks --init_from runs/chat --out runs/rl --kinds fix",
        resumes=True,
        stops_at_once=True,
    ),
    "evaluate": Command(
        "evaluate.settings:EvaluateCommand",
        "bits per byte, likelihood, then the C++ problems",
        "evaluate runs/demo/run --data_dir runs/demo/corpus",
        resumes=True,
        function="cli.evaluate:everything",
    ),
    "evaluate bpb": Command(
        "evaluate.settings:BpbCommand",
        "bits per byte of held-out code, by project and context",
        "evaluate bpb runs/demo/run --data_dir runs/demo/corpus --eval_bytes 1000000",
        resumes=True,
    ),
    "evaluate likelihood": Command(
        "evaluate.settings:LikelihoodCommand",
        "how likely right solutions of the C++ problems are, also against buggy ones",
        "evaluate likelihood runs/demo/run --problems humaneval",
        resumes=True,
    ),
    "evaluate fim": Command(
        "evaluate.settings:FimCommand",
        "holes in code filled: exact, compiling, passing",
        "evaluate fim runs/demo/run --files runs/demo/corpus",
        resumes=True,
    ),
    "evaluate cpp": Command(
        "evaluate.settings:CppCommand",
        "C++ problems: compile rate and pass rate, in the sandbox",
        "evaluate cpp runs/demo/run --problems small --num_samples 10 --temperature 0.8",
        resumes=True,
    ),
    "evaluate tasks": Command(
        "evaluate.task_settings:TasksCommand",
        "tasks of `cpplm tasks build`: one model against others",
        "evaluate tasks runs/sft --tasks runs/tasks --against runs/demo/run",
        resumes=True,
    ),
    "tasks build": Command(
        "tasks.settings:TaskBuildSettings",
        "tasks with checked answers from your own code",
        "tasks build runs/demo/corpus --out runs/tasks",
        resumes=True,
    ),
    "tasks inspect": Command(
        "tasks.settings:TaskInspectSettings",
        "show tasks and how many there are",
        "tasks inspect runs/tasks",
    ),
    "tasks audit": Command(
        "tasks.settings:TaskAuditSettings",
        "gold answers must score 1, cheats nothing",
        "tasks audit runs/tasks",
    ),
    "evaluate self_test": Command(
        "evaluate.settings:SelfTestSettings",
        "the harness itself: right solutions must pass, buggy ones fail",
        "evaluate self_test --problems small",
    ),
    "generate": Command(
        "generate.settings:GenerateSettings",
        "complete a prompt, or fill in between two texts",
        "generate runs/demo/run --prompt 'int main() {' --max_new_tokens 64",
    ),
    "chat": Command(
        "generate.settings:ChatSettings",
        "talk with a model, which may use tools",
        "chat runs/demo/run --tools ~/src/fmt",
    ),
    "export": Command(
        "export.settings:ModelExportSettings",
        "a model for Hugging Face's transformers, or for llama.cpp",
        "export runs/demo/run --out hf_model",
    ),
    "compress quantize": Command(
        "compress.settings:QuantizeSettings",
        "round a model's weights to few bits, or pack those that were trained so",
        "compress quantize runs/demo/run --recipe int4 --out runs/int4",
    ),
    "compress qat": Command(
        "compress.settings:QatSettings",
        "quantisation-aware training: distil a model into its rounded weights",
        "compress qat runs/demo/corpus --run runs/demo/run --recipe int4 --max_minutes 5 --out runs/qat",
        resumes=True,
        stops_at_once=True,
    ),
    "compress check": Command(
        "compress.settings:CheckSettings",
        "the layers of a quantised model: levels in use, scales that float16 does not hold",
        "compress check runs/qat",
    ),
    "compress compare": Command(
        "compress.settings:CompareSettings",
        "what quantised models lost, beside plain rounding",
        "compress compare runs/demo/run --students runs/int4 --data_dir runs/demo/corpus",
    ),
    "compress cache build": Command(
        "compress.kd.settings:CacheBuildSettings",
        "write a teacher's likeliest tokens for rows of training",
        "compress cache build runs/demo/corpus --teacher runs/demo/run --out runs/cache",
        resumes=True,
    ),
    "compress cache verify": Command(
        "compress.kd.settings:CacheSettings",
        "compare every shard of a cache with its hash",
        "compress cache verify runs/cache",
    ),
    "compress cache stat": Command(
        "compress.kd.settings:CacheSettings",
        "size of a cache, and how much of the teacher it holds",
        "compress cache stat runs/cache",
    ),
    "serve": Command(
        "serve.settings:ServeSettings",
        "a server for editors, OpenAI's clients and the web page",
        "serve runs/demo/run --port 8000",
    ),
    "runs page": Command(
        "cli.runs:RunPageSettings",
        "one self-contained HTML page about a run",
        "runs page runs/demo/run",
    ),
    "runs compare": Command(
        "cli.runs:RunCompareSettings",
        "runs side by side: figures, settings, curves",
        "runs compare runs/a runs/b --out compared.html",
    ),
    "runs list": Command(
        "cli.runs:RunListSettings",
        "a table of the runs below a folder",
        "runs list runs",
        function="cli.runs:list_runs",
    ),
    "runs watch": Command(
        "cli.runs:RunWatchSettings",
        "a local page of all runs, with curves that grow as they train",
        "runs watch runs --port 8100",
    ),
    "checkpoints list": Command(
        "cli.checkpoints:CheckpointListSettings",
        "the checkpoints of a run",
        "checkpoints list runs/demo/run",
        function="cli.checkpoints:list_checkpoints",
    ),
    "checkpoints verify": Command(
        "cli.checkpoints:VerifySettings",
        "compare every file of the checkpoints with its hash",
        "checkpoints verify runs/demo/run",
    ),
    "checkpoints import": Command(
        "cli.checkpoints:ImportSettings",
        "a model trained by nanochat",
        "checkpoints import nanochat/base_checkpoints/d12 --tokenizer tokenizer.json --out runs/imported",
        function="cli.checkpoints:import_checkpoint",
    ),
    "tpu plan": Command(
        "cloud.plan:PlanSettings",
        "what a run costs on spot machines and on demand, and how often to save",
        "tpu plan --hours 48 --type v6e-8 --mean_hours 6",
    ),
    "sweep": Command(
        "sweep.settings:SweepSettings",
        "search settings of train, sft or compress qat by many trials",
        "sweep --recipe recipes/sweep.toml --out runs/sweep",
        resumes=True,
    ),
    "sweep worker": Command(
        "sweep.settings:WorkerSettings",
        "take part in a sweep, from this machine or another one",
        "sweep worker runs/sweep",
        resumes=True,
    ),
    "sweep show": Command(
        "sweep.settings:WorkerSettings",
        "the trials of a sweep, the best first",
        "sweep show runs/sweep",
    ),
    "sweep wandb-agent": Command(
        "sweep.settings:WandbAgentSettings",
        "run the trials that a Weights & Biases sweep hands out",
        "sweep wandb-agent my-project/0a1b2c3d --recipe recipes/sweep.toml",
    ),
    "tpu check": Command(
        "jax.check_settings:CheckSettings",
        "compile the training step for TPUs that are not here: does it fit?",
        "tpu check v5e-8 --depth 16",
        function="cli.tpu_train_step:check",
    ),
    "tpu bench": Command(
        "jax.check_settings:BenchSettings",
        "tokens per second of the training step on the devices here",
        "tpu bench --depth 12 --max_seq_len 2048",
        function="cli.tpu_train_step:bench",
    ),
    "tpu types": Command(
        "cloud.settings:TypesSettings",
        "slices of TPUs that can be rented: chips, zones, runtimes, prices",
        "tpu types",
    ),
    "tpu price": Command(
        "cloud.settings:PriceSettings",
        "what a slice costs, on demand and spot",
        "tpu price v6e-4 --hours 24",
    ),
    "tpu create": Command(
        "cloud.settings:CreateSettings",
        "ask for a machine, for use by hand",
        "tpu create my-slice --type v6e-4 --zone us-east5-b --spot",
    ),
    "tpu list": Command(
        "cloud.settings:PlaceSettings",
        "the machines there are, and what they cost",
        "tpu list",
        function="cli.tpu:list_nodes",
    ),
    "tpu ssh": Command(
        "cloud.settings:SshSettings",
        "a shell on a machine",
        "tpu ssh my-slice",
    ),
    "tpu stop": Command(
        "cloud.settings:StopSettings",
        "stop a machine, or end a run",
        "tpu stop --run gs://my-bucket/runs/mine",
    ),
    "tpu delete": Command(
        "cloud.settings:NodeSettings",
        "delete a machine",
        "tpu delete my-slice",
    ),
    "tpu run": Command(
        "cloud.settings:RunSettings",
        "a training run from a recipe to its end, on machines that come and go",
        "tpu run --recipe spot.toml --spot --max_cost 50",
        resumes=True,
    ),
    "tpu watch": Command(
        "cloud.settings:RunPlaceSettings",
        "keep the machine of a run going: delete, create, resume",
        "tpu watch gs://my-bucket/runs/mine",
        resumes=True,
    ),
    "tpu status": Command(
        "cloud.settings:RunPlaceSettings",
        "how a run is doing, and what it has cost",
        "tpu status gs://my-bucket/runs/mine",
    ),
    "tpu logs": Command(
        "cloud.settings:LogsSettings",
        "what the machine of a run wrote",
        "tpu logs gs://my-bucket/runs/mine",
    ),
    "tpu sky": Command(
        "cloud.settings:SkySettings",
        "write a task for SkyPilot, a managed spot job",
        "tpu sky --recipe spot.toml --spot --out sky.yaml",
    ),
    "doctor": Command(
        "cloud.settings:DoctorSettings",
        "what was found on this machine, what is missing and how to fix it",
        "doctor",
    ),
    "completion": Command(
        "cli.shell_completion:CompletionSettings",
        "a script with which a shell completes commands and flags",
        "completion bash",
        function="cli.shell_completion:completion",
    ),
}


def function_of(name: str) -> str:
    """The function of a command, as module:name below cpplm."""
    first, _, verb = name.partition(" ")
    return COMMANDS[name].function or f"cli.{first}:{re.sub('[ -]', '_', verb or first)}"
