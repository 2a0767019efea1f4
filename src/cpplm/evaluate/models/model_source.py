"""Which model is measured: one way to name it on the command line, whatever kind it is of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cpplm.core.errors import UserError
from cpplm.core.hardware import Precision
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.models.code_model import CodeModel
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.evaluate.models.url_model import UrlModel
from cpplm.generate.load import ModelSource

_ONLY_FOR = {
    "run": ("step",),
    "url": ("model_name", "api_key_env", "fills_in", "timeout"),
}
_NOT_FOR_URL = ("device_type", "precision")


@dataclass(frozen=True)
class EvaluatedModel:
    """Exactly one of --run, --hf_dir and --url."""

    run: str = ""
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
    fills_in: bool = False
    """The server's model takes a `suffix`: what follows the text to be written."""
    timeout: float = 120.0
    """Seconds without a byte from the server after which an attempt is given up."""
    eval_batch_size: int = 8
    """Rows per forward pass, or requests to a server at the same time."""
    device_type: Literal["", "cuda", "mps", "cpu"] = ""
    """Device of --run and --hf_dir (empty = the best one present)."""
    precision: Precision = "auto"
    """Of matrix products; auto = bf16 where the hardware has it."""

    def __post_init__(self) -> None:
        given = [name for name in ("run", "hf_dir", "url") if getattr(self, name) not in ("", None)]
        if len(given) != 1:
            what = "no model was named" if not given else f"--{' and --'.join(given)} exclude each other"
            raise UserError(what, fix="Give one of --run, --hf_dir and --url.")
        for owner, names in _ONLY_FOR.items():
            self._refuse_unused(names, given != [owner], f"only means something with --{owner}")
        self._refuse_unused(_NOT_FOR_URL, given == ["url"], "is the server's affair")
        if self.step < -1:
            raise UserError(f"--step {self.step}", fix="Use -1 for the newest checkpoint, or a step.")
        if self.eval_batch_size < 1:
            raise UserError(f"--eval_batch_size {self.eval_batch_size} must be at least 1")
        if not 0 < self.timeout < float("inf"):
            raise UserError(f"--timeout {self.timeout}", fix="Use a positive number of seconds.")

    def _refuse_unused(self, names: tuple[str, ...], unused: bool, why: str) -> None:
        for name in names:
            if unused and getattr(self, name) != getattr(type(self), name):
                raise UserError(f"--{name} {why}", fix="Leave it out.")

    def load(self) -> CodeModel:
        """The model, ready to be asked.

        Raises:
            UserError: there is none, it cannot be loaded, or the server does not answer.
        """
        if self.url:
            return UrlModel.connect(
                self.url, self.model_name, api_key_env=self.api_key_env, fills_in=self.fills_in,
                timeout=self.timeout, at_once=self.eval_batch_size,
            )  # fmt: skip
        if self.hf_dir is not None:
            return HfModel.load(
                self.hf_dir, device_type=self.device_type, precision=self.precision, rows=self.eval_batch_size
            )
        source = ModelSource(self.run, self.step, self.device_type, self.precision)
        return CheckpointModel.load(source, rows=self.eval_batch_size)
