"""The commands, by name: `main.py` imports no more than what the one that was asked for needs."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """What runs it, what it is told (both as module:name below cpplm), and what it is for."""

    function: str
    settings: str
    summary: str
    resumes: bool = False
    """Stopped half-way, the same command goes on from what is kept."""


COMMANDS: dict[str, Command] = {
    "corpus build": Command(
        "cli.corpus:build",
        "corpus.settings:CorpusSettings",
        "C++ projects to ordered training documents in parquet shards",
        resumes=True,
    ),
    "corpus inspect": Command(
        "cli.corpus:inspect",
        "corpus.inspect:InspectSettings",
        "show documents of a corpus and its figures",
    ),
    "corpus check": Command(
        "cli.corpus:check",
        "corpus.check:CheckSettings",
        "compile a sample of the documents, in the sandbox",
    ),
    "corpus export": Command(
        "cli.corpus:export",
        "corpus.export:ExportSettings",
        "documents or docstring pairs as JSON lines",
    ),
    "tokenizer train": Command(
        "cli.tokenizer:train",
        "tokenizer.train:TokenizerSettings",
        "train a lossless C++ tokenizer on a corpus",
    ),
    "tokenizer evaluate": Command(
        "cli.tokenizer:evaluate",
        "tokenizer.measure:MeasureSettings",
        "bytes per token and encoding speed on held-out code",
    ),
    "tokenizer show": Command(
        "cli.tokenizer:show",
        "cli.tokenizer:ShowSettings",
        "where tokens begin and end, in colours",
    ),
    "tokenizer export": Command(
        "cli.tokenizer:export",
        "cli.tokenizer:TokenizerExportSettings",
        "a tokenizer for Hugging Face's libraries",
    ),
    "train": Command("cli.train:train", "train.settings:TrainSettings", "pre-train a model", resumes=True),
    "evaluate": Command(
        "cli.evaluate:everything",
        "evaluate.settings:EvaluateCommand",
        "bits per byte, likelihood, then the C++ problems",
        resumes=True,
    ),
    "evaluate bpb": Command(
        "cli.evaluate:bpb",
        "evaluate.settings:BpbCommand",
        "bits per byte of held-out code, by project and context",
        resumes=True,
    ),
    "evaluate likelihood": Command(
        "cli.evaluate:likelihood",
        "evaluate.settings:LikelihoodCommand",
        "how likely right solutions of the C++ problems are, also against buggy ones",
        resumes=True,
    ),
    "evaluate fim": Command(
        "cli.evaluate_fim:fim",
        "evaluate.settings:FimCommand",
        "holes in code filled: exact, compiling, passing",
        resumes=True,
    ),
    "evaluate cpp": Command(
        "cli.evaluate:cpp",
        "evaluate.settings:CppCommand",
        "C++ problems: compile rate and pass rate, in the sandbox",
        resumes=True,
    ),
    "evaluate self_test": Command(
        "cli.evaluate:self_test",
        "evaluate.settings:SelfTestSettings",
        "the harness itself: right solutions must pass, buggy ones fail",
    ),
    "generate": Command(
        "cli.generate:generate",
        "cli.settings:GenerateSettings",
        "complete a prompt, or fill in between two texts",
    ),
    "chat": Command("cli.chat:chat", "cli.settings:ChatSettings", "talk with a model, which may use tools"),
    "export": Command(
        "cli.export:export",
        "cli.settings:ModelExportSettings",
        "a model for Hugging Face's transformers",
    ),
    "serve": Command(
        "cli.serve:serve",
        "serve.settings:ServeSettings",
        "a server for editors, OpenAI's clients and the web page",
    ),
    "runs page": Command(
        "cli.runs:page",
        "cli.settings:RunPageSettings",
        "one self-contained HTML page about a run",
    ),
    "runs compare": Command(
        "cli.runs:compare",
        "cli.settings:RunCompareSettings",
        "runs side by side: figures, settings, curves",
    ),
    "runs list": Command(
        "cli.runs:list_runs",
        "cli.settings:RunListSettings",
        "a table of the runs below a folder",
    ),
    "checkpoints list": Command(
        "cli.checkpoints:list_checkpoints",
        "cli.settings:CheckpointListSettings",
        "the checkpoints of a run",
    ),
    "checkpoints verify": Command(
        "cli.checkpoints:verify",
        "cli.settings:VerifySettings",
        "compare every file of the checkpoints with its hash",
    ),
    "checkpoints import": Command(
        "cli.checkpoints:import_checkpoint",
        "cli.settings:ImportSettings",
        "a model trained by nanochat",
    ),
    "tpu check": Command(
        "cli.tpu:check",
        "jax.asked:CheckSettings",
        "compile the training step for TPUs that are not here: does it fit?",
    ),
    "tpu bench": Command(
        "cli.tpu:bench",
        "jax.asked:BenchSettings",
        "tokens per second of the training step on the devices here",
    ),
    "doctor": Command(
        "cli.doctor:doctor",
        "cli.settings:DoctorSettings",
        "what was found on this machine, what is missing and how to mend it",
    ),
}
