"""Settings of `cpplm evaluate`: which model, what is measured, and the commands that these make up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, Precision, group
from cpplm.core.storage import require_path
from cpplm.evaluate.models.hf_folder import require_readable
from cpplm.evaluate.problems import load_problems
from cpplm.generate.settings import SamplingSettings, require_at_least
from cpplm.train.checkpoint.format import check_run

_ONLY_FOR = {
    "run": ("step",),
    "url": ("model_name", "api_key_env", "supports_fim", "timeout"),
}
_NOT_FOR_URL = ("device_type", "precision")


@dataclass(frozen=True)
class EvaluatedModel:
    """Exactly one of --run, --hf_dir and --url."""

    run: Annotated[str, Argument("RUN", positional=True)] = ""
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints."""
    step: int = -1
    """Checkpoint step of --run (-1 = the newest)."""
    hf_dir: Path | None = None
    """Directory of a causal model as Hugging Face's libraries save it, with its tokenizer and safetensors."""
    url: str = ""
    """OpenAI-compatible server, such as http://localhost:8000/v1."""
    model_name: str = ""
    """The server's name of the model (empty = the only one it has)."""
    api_key_env: str = ""
    """Environment variable that holds the server's key (empty = none is sent)."""
    supports_fim: bool = False
    """The server's model takes a `suffix`: what follows the text to be written."""
    timeout: float = 120.0
    """Seconds without a byte from the server after which an attempt is given up."""
    eval_batch_size: int = 8
    """Rows per forward pass, or requests to a server at the same time."""
    device_type: Literal["", "cuda", "mps", "cpu"] = ""
    """Device of --run and --hf_dir (empty = the best one present)."""
    precision: Precision = "auto"
    """Number format of matrix products; auto = bf16 where the hardware has it."""

    def __post_init__(self) -> None:
        given = [name for name in ("run", "hf_dir", "url") if getattr(self, name) not in ("", None)]
        if len(given) != 1:
            what = "no model was named" if not given else f"--{' and --'.join(given)} exclude each other"
            raise UserError(what, fix="Give a RUN, or one of --hf_dir and --url.")
        for owner, names in _ONLY_FOR.items():
            self._refuse_unused(names, given != [owner], f"only means something with --{owner}")
        self._refuse_unused(_NOT_FOR_URL, given == ["url"], "is the server's affair")
        if self.step < -1:
            raise UserError(f"--step {self.step}", fix="Use -1 for the newest checkpoint, or a step.")
        require_at_least(self, eval_batch_size=1)
        if not 0 < self.timeout < float("inf"):
            raise UserError(f"--timeout {self.timeout}", fix="Use a positive number of seconds.")

    def check_paths(self) -> None:
        """Refuse a model that is not there, or of a kind that is not read."""
        if self.run:
            check_run(self.run, None if self.step < 0 else self.step)
        if self.hf_dir is not None:
            require_readable(self.hf_dir)

    def _refuse_unused(self, names: tuple[str, ...], unused: bool, why: str) -> None:
        for name in names:
            if unused and getattr(self, name) != getattr(type(self), name):
                raise UserError(f"--{name} {why}", fix="Leave it out.")


@dataclass(frozen=True)
class BpbSettings:
    """The texts that bits per byte are measured on."""

    data_dir: Annotated[str, Argument("CORPUS")]
    """Corpus whose validation documents are read, a parquet file or folder, or a folder of C++ files;
    corpora and parquet folders may be bucket URLs."""
    text_column: str = "text"
    """Column of parquet files that are no corpus."""
    eval_bytes: int = -1
    """Measure only so many bytes of documents, the same for every model (-1 = all)."""
    context: int = -1
    """Tokens in view at most (-1 = as many as the model can have)."""
    context_bytes: int = 32768
    """Measure so many bytes with half, a quarter, ... of the context too (0 = none)."""

    def __post_init__(self) -> None:
        for name in ("eval_bytes", "context"):
            if getattr(self, name) == 0 or getattr(self, name) < -1:
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a positive number, or -1 for all."
                )
        require_at_least(self, context_bytes=0)

    def check_paths(self) -> None:
        """Refuse data that are not there."""
        require_path(self.data_dir)


@dataclass(frozen=True)
class LikelihoodSettings:
    """The problems whose solutions are compared."""

    problems: str = "humaneval"
    """"small" (21 problems of ours), "humaneval" (164, HumanEvalPack) or the path of a JSON Lines file."""

    def check_paths(self) -> None:
        """Refuse problems that are not there."""
        load_problems(self.problems)


@dataclass(frozen=True)
class CppEvalSettings:
    """Sampling and judging of C++ problems."""

    problems: str = "small"
    """"small" (21 problems of ours), "humaneval" (164, HumanEvalPack) or the path of a JSON Lines file."""
    num_samples: int = 1
    """Completions per problem or hole; pass@10 needs at least 10."""
    temperature: float = 0.0
    """0 takes the likeliest token (greedy); 0.2 to 0.8 is usual with several samples."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0 means all."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that have this share of the probability together (0.95 is usual)."""
    max_new_tokens: int = 256
    """Length of a completion in tokens."""
    seed: int = 0
    """Seed of the sampling."""
    workers: int = 0
    """Programs compiled and run at the same time; 0 means one per core."""
    unsafe: bool = False
    """Run generated programs WITHOUT isolation. Never do this on a machine you care about."""

    def __post_init__(self) -> None:
        require_at_least(self, num_samples=1, workers=0)
        _ = self.sampling
        if self.temperature == 0 and self.num_samples > 1:
            raise UserError(
                f"--num_samples {self.num_samples} at --temperature 0 would draw equal samples",
                fix="Set --temperature 0.2 or more, or --num_samples 1.",
            )
        if self.temperature == 0 and (self.top_k > 0 or self.top_p < 1):
            raise UserError(
                "--top_k and --top_p have no effect at --temperature 0",
                fix="Set a temperature or leave them out.",
            )

    def check_paths(self) -> None:
        """Refuse problems that are not there."""
        load_problems(self.problems)

    @property
    def sampling(self) -> SamplingSettings:
        """The sampling of completions."""
        return SamplingSettings(
            self.max_new_tokens, self.temperature, self.top_k, self.seed, top_p=self.top_p
        )


HoleKind = Literal["single", "multi", "body", "statement", "block", "arguments"]


@dataclass(frozen=True)
class FimEvalSettings(CppEvalSettings):
    """Choice of holes, sampling and judging."""

    problems: str = "small"
    """Cut the solutions of these problems: "small", "humaneval" (164), or the path of a JSON Lines file;
    empty = none."""
    files: str = ""
    """Cut held-out code: the validation documents of a corpus, or a folder of C++ files; empty = none."""
    holes_per_problem: int = 2
    """Single lines per problem, and as many runs of lines; the function's body is one more."""
    holes_per_kind: int = 50
    """Holes of each kind in --files."""
    kinds: tuple[HoleKind, ...] = ()
    """Kinds of holes, such as single multi; none = all."""
    hole_seed: int = 0
    """Seed of the choice of holes; scores on different holes cannot be compared."""
    prefix_chars: int = 800
    """Characters of a file that the model sees before a hole; of a problem it sees everything."""
    suffix_chars: int = 400
    """Characters of a file that it sees behind a hole; together about as much as 512 tokens hold."""
    fim_order: Literal["psm", "spm"] = "spm"
    """For a RUN: psm puts the prefix first in the model's input, spm the suffix; a model trained at
    --fim_spm_rate 0 needs psm."""
    valid: Literal["", "cpp"] = ""
    """Of a RUN: draw tokens again that break the syntax of C++, as `cpplm generate --valid cpp`."""
    project_context: bool = False
    """Text of the project in front of each hole of --files, a folder of C++ projects, as `cpplm serve
    --project` puts it there."""
    compile_files: bool = False
    """Also compile the filled documents of --files that compile on their own before they are cut."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, holes_per_problem=1, holes_per_kind=1, prefix_chars=1)
        require_at_least(self, hole_seed=0, suffix_chars=0)
        if not self.problems and not self.files:
            raise UserError("no holes: --problems and --files are both empty", fix="Name one of them.")
        if self.compile_files and not self.files:
            raise UserError("--compile_files has no effect without --files", fix="Name files or drop it.")
        if self.project_context and not self.files:
            raise UserError("--project_context has no effect without --files", fix="Name files or drop it.")

    def check_paths(self) -> None:
        """Refuse problems and files that are not there."""
        if self.problems:
            load_problems(self.problems)
        if self.files:
            require_path(self.files)


@dataclass(frozen=True)
class SelfTestSettings:
    """Settings of `cpplm evaluate self_test`."""

    problems: tuple[str, ...] = ("small", "humaneval")
    """Sets of problems: "small", "humaneval", or paths of JSON Lines files."""
    workers: int = 0
    """Programs compiled and run at the same time; 0 means one per core."""

    def __post_init__(self) -> None:
        if not self.problems:
            raise UserError("no problems to judge the harness by", fix='Use "small" or "humaneval".')
        require_at_least(self, workers=0)

    def check_paths(self) -> None:
        """Refuse problems that are not there."""
        for problems in self.problems:
            load_problems(problems)


@dataclass(frozen=True)
class EvalTarget:
    """Whose figures, and where they go."""

    model: EvaluatedModel
    out: str = ""
    """Folder for the results (empty = the run's own; of another model than a run, none are kept)."""


@dataclass(frozen=True)
class BpbCommand:
    """Settings of `cpplm evaluate bpb`."""

    target: Annotated[EvalTarget, group("")]
    bpb: Annotated[BpbSettings, group("bits per byte")]


@dataclass(frozen=True)
class LikelihoodCommand:
    """Settings of `cpplm evaluate likelihood`."""

    target: Annotated[EvalTarget, group("")]
    likelihood: LikelihoodSettings = field(default_factory=LikelihoodSettings)


@dataclass(frozen=True)
class CppCommand:
    """Settings of `cpplm evaluate cpp`."""

    target: Annotated[EvalTarget, group("")]
    cpp: Annotated[CppEvalSettings, group("C++ problem")] = field(default_factory=CppEvalSettings)


@dataclass(frozen=True)
class FimCommand:
    """Settings of `cpplm evaluate fim`."""

    target: Annotated[EvalTarget, group("")]
    fim: Annotated[FimEvalSettings, group("fill in the middle")] = field(default_factory=FimEvalSettings)


@dataclass(frozen=True)
class EvaluateCommand:
    """Settings of `cpplm evaluate`."""

    target: Annotated[EvalTarget, group("")]
    bpb: Annotated[BpbSettings, group("bits per byte")]
    cpp: Annotated[CppEvalSettings, group("C++ problem")] = field(default_factory=CppEvalSettings)
