"""Checkpoints: a folder per step, in a local folder or a bucket, without pickle.

    step_000200/model.safetensors      weights
                optimizer.safetensors  its state, by parameter name
                config.json            ModelConfig
                settings.json          TrainSettings of the run
                tokenizer.json         the tokenizer, whole
                state.json             step, tokens, seconds, loader position
                manifest.json          sizes and sha256 of all of these, written last

A folder without a valid manifest does not exist: a kill at any moment leaves the older checkpoints as they
are. Every file is checked against the manifest before it is used.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.runlog import LOG, read_run_log
from cpplm.core.settings import from_dict
from cpplm.core.storage import Storage, is_bucket, sha256
from cpplm.model.config import ModelConfig
from cpplm.model.settings import DEFAULT_KERNELS, KernelSettings
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.tokenizer import Tokenizer

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint, read lazily: each file is verified when asked for."""

    storage: Storage
    step: int
    files: dict[str, dict[str, Any]]

    def read(self, name: str) -> bytes:
        """One file, after comparing size and hash with the manifest.

        Raises:
            UserError: missing or damaged; the message names the file.
        """
        path = f"{folder(self.step)}/{name}"
        data = self.storage.read(path)
        if name not in self.files or sha256(data) != self.files[name]["sha256"]:
            raise UserError(
                f"{self.storage.path(path)} is damaged: it is not the file that the manifest describes",
                fix="Delete this step's folder to go on from the checkpoint before it.",
            )
        return data

    def json(self, name: str) -> Any:
        """A verified JSON file."""
        return json.loads(self.read(name))

    def tensors(self, name: str) -> dict[str, Tensor]:
        """A verified safetensors file, on the CPU."""
        try:
            return safetensors.torch.load(self.read(name))
        except safetensors.SafetensorError as error:
            raise UserError(f"{self.storage.path(folder(self.step))}/{name}: {error}") from error

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the model was trained with."""
        return Tokenizer.from_json(self.read("tokenizer.json"), where=self.storage.path(folder(self.step)))

    def config(self) -> ModelConfig:
        """The shape of the model."""
        where = f"{self.storage.path(folder(self.step))}/config.json"
        return from_dict(ModelConfig, self.json("config.json"), where=where)

    def model(
        self, *, device: torch.device, compute_dtype: torch.dtype, kernels: KernelSettings = DEFAULT_KERNELS
    ) -> Transformer:
        """The model with its weights, on `device`.

        Raises:
            UserError: the weights are not those of the configuration.
        """
        where = self.storage.path(folder(self.step))
        with torch.device("meta"):
            model = Transformer(self.config(), compute_dtype=compute_dtype, kernels=kernels)
        model.to_empty(device=device)
        try:
            model.load_state_dict(self.tensors("model.safetensors"), strict=True)
        except RuntimeError as error:
            raise UserError(f"{where}: weights do not fit the configuration: {error}") from error
        return model


def folder(step: int) -> str:
    """The folder of a step; names sort as numbers do."""
    return f"step_{step:06d}"


def save_checkpoint(storage: Storage, step: int, files: dict[str, bytes], *, keep_last: int) -> None:
    """Write all files, then the manifest; then delete what is older or was never finished.

    Raises:
        UserError: no space or no permission; the checkpoints before are intact.
    """
    manifest = {name: {"bytes": len(data), "sha256": sha256(data)} for name, data in files.items()}
    manifest_name = f"{folder(step)}/{MANIFEST}"
    storage.delete([manifest_name])  # the same step again: gone first, so that it never covers a mixture
    for name, data in files.items():
        storage.write(f"{folder(step)}/{name}", data)
    storage.write_json(manifest_name, {"version": 1, "step": step, "files": manifest})
    kept = {folder(s) for s in committed_steps(storage)[-keep_last:]} | {folder(step)}
    names = [
        name for name in storage.names() if re.match(r"step_\d+/", name) and name.split("/")[0] not in kept
    ]
    manifests_first = sorted(names, key=lambda name: (not name.endswith(MANIFEST), name))
    storage.delete(manifests_first)
    storage.remove_leftovers()


def committed_steps(storage: Storage) -> list[int]:
    """Steps whose manifest is there, ascending. A failing listing raises; it never reads as "none"."""
    found = (re.fullmatch(rf"step_(\d+)/{MANIFEST}", name) for name in storage.names())
    return sorted(int(match.group(1)) for match in found if match)


def open_checkpoint(storage: Storage, step: int | None = None) -> Checkpoint:
    """The newest checkpoint, or that of `step`.

    Raises:
        UserError: there is none.
    """
    steps = committed_steps(storage)
    if not steps:
        raise UserError(
            f"no checkpoint in {storage.location}", fix="Run 'cpplm train' until it has saved one."
        )
    if step is None:
        step = steps[-1]
    if step not in steps:
        raise UserError(f"no checkpoint of step {step} in {storage.location}", fix=f"There are: {steps}.")
    manifest = storage.read_json(f"{folder(step)}/{MANIFEST}")
    return Checkpoint(storage, step, manifest["files"])


def open_run(run: str | Path, step: int | None = None) -> Checkpoint:
    """The checkpoint of a run folder, or of a folder or bucket URL that holds checkpoints itself."""
    storage = Storage(run)
    sessions = [] if is_bucket(run) else read_run_log(Path(storage.location) / LOG)
    elsewhere = [r["settings"]["checkpoint_dir"] for r in sessions if r["event"] == "session"][-1:]
    inner = Path(storage.location) / "checkpoints"
    if elsewhere and elsewhere[0]:
        storage = Storage(elsewhere[0])
    elif inner.is_dir():
        storage = Storage(inner)
    return open_checkpoint(storage, step)


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """Tensors as one safetensors file."""
    return safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    )
