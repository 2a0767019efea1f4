"""Settings of `cpplm export`; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.storage import is_hf_folder, require_path
from cpplm.train.checkpoint.format import check_run

GgufType = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]


@dataclass(frozen=True)
class ModelExportSettings:
    """Settings of `cpplm export`."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints; for compressed-tensors also
    hf:DIR of `cpplm compress quantize`."""
    out: Annotated[Path, Argument("PATH")]
    """Folder to write, for gguf a file; it appears when everything is in it."""
    to: Literal["hf", "llama", "gguf", "compressed-tensors"] = "hf"
    """hf: what `transformers` loads, with code of ours; llama: without; gguf: what llama.cpp loads;
    compressed-tensors: few bits, for `transformers` with that package. All but hf want --preset llama."""
    step: int = -1
    """Checkpoint step (-1 = the newest)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights for `transformers`; bfloat16 takes half the space and rounds them."""
    gguf_type: GgufType = "F16"
    """Of the matrices in GGUF; Q8_0 takes 8.5 bits per weight, Q4_0 4.5 and Q4_1 5."""
    license: str = ""
    """The model's license, an SPDX expression, for GGUF's metadata (empty = none is named)."""
    overwrite: bool = False
    """Replace an earlier export in --out."""
    push: Annotated[str, Argument("OWNER/NAME")] = ""
    """Also put it on the Hugging Face hub, into this repository, which is made if it is not there."""
    private: bool = False
    """With --push: the repository is yours alone."""
    revision: str = ""
    """With --push: the branch (empty = main)."""

    def __post_init__(self) -> None:
        if self.step < -1:
            raise UserError(f"--step {self.step}", fix="Use -1 for the newest checkpoint, or a step.")
        for name, used in (
            ("dtype", self.to != "gguf"),
            ("gguf_type", self.to == "gguf"),
            ("license", self.to == "gguf"),
        ):
            if not used and getattr(self, name) != getattr(type(self), name):
                raise UserError(f"--{name} does nothing with --to {self.to}", fix="Leave it out.")
        for name in ("private", "revision"):
            if getattr(self, name) and not self.push:
                raise UserError(f"--{name} does nothing without --push", fix="Leave it out.")
        if self.license:
            from license_expression import get_spdx_licensing  # noqa: PLC0415  (slow to import)

            if errors := get_spdx_licensing().validate(self.license).errors:
                raise UserError(f"--license {self.license}: {errors[0]}", fix="Use one such as Apache-2.0.")

    def check_paths(self) -> None:
        """Refuse a run that is not there."""
        if is_hf_folder(self.run) and self.to == "compressed-tensors":
            require_path(self.run)
        else:
            check_run(self.run, None if self.step < 0 else self.step)
