"""Checkpoints: a folder per step, in a local folder or a bucket, without pickle.

    step_000200/model.safetensors      weights
                optimizer.safetensors  its state, by parameter name
                config.json            ModelConfig
                settings.json          TrainSettings of the run
                tokenizer.json         the tokenizer, whole
                state.json             step, tokens, seconds, loader position
                parent.json            of a run that started from another one: that, and its own parents
                adapter_model.safetensors, adapter_config.json  LoRA in PEFT's format, instead of weights
                quantization.json      of quantised weights: what `model.quantized.packing` says of them
                imported.json          of an imported model instead of settings and state
                manifest.json          sizes and sha256 of all of these, written last

Large tensors files are split: `model-00001-of-00002.safetensors` and so on; the manifest names the parts.
A folder without a manifest does not exist: a kill at any moment leaves the older checkpoints as they are.
Every file is checked against the manifest before it is used, and the manifest against its own hash.

This file reads all but the tensors, and does without torch. `cpplm.train.checkpoint.weights` reads those, and
`cpplm.train.checkpoint.save` writes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from cpplm.core.errors import UserError
from cpplm.core.run_log import LOG, read_run_log
from cpplm.core.settings import from_dict
from cpplm.core.storage import Storage, is_bucket, sha256
from cpplm.model.config import ModelConfig
from cpplm.model.hf_config import refuse_hf_checkpoint
from cpplm.tokenizer.tokenizer import Tokenizer

MANIFEST = "manifest.json"
QUANTIZATION = "quantization.json"
VERSION = 2  # of the manifest; 1 had no hash of its own and no split files
Stage = Literal["base", "mid", "sft", "rl"]
"""Stages of training, in their order; `base` is pre-training on documents alone, without conversations."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class DamagedError(UserError):
    """A file of a checkpoint is not what was saved; the message names it."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is damaged: it is not the file that the manifest describes",
            fix="Delete this step's folder to go on from the checkpoint before it.",
        )


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint, read lazily: each file is verified when asked for."""

    storage: Storage
    step: int
    files: dict[str, dict[str, Any]]
    """Per file name, its "bytes" and "sha256"."""

    def path(self, name: str = "") -> str:
        """Full path or URL of a file, or of the folder, for messages."""
        return self.storage.path(f"{step_folder(self.step)}/{name}").rstrip("/")

    @property
    def size(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(entry["bytes"] for entry in self.files.values())

    def chunks(self, name: str) -> Iterator[bytes]:
        """One file, piece by piece; only after the last piece is it known to be right.

        Raises:
            DamagedError: then, when size or hash are not those of the manifest; or the file is gone.
            UserError: this checkpoint never had it.
        """
        digest, size = hashlib.sha256(), 0
        inside = f"{step_folder(self.step)}/{name}"
        if name not in self.files:
            raise UserError(f"{self.path()} has no {name}")
        if not self.storage.exists(inside):
            raise DamagedError(self.path(name))
        for chunk in self.storage.chunks(inside):
            digest.update(chunk)
            size += len(chunk)
            yield chunk
        if self.files[name] != {"bytes": size, "sha256": digest.hexdigest()}:
            raise DamagedError(self.path(name))

    def read(self, name: str) -> bytes:
        """One file, after comparing size and hash with the manifest.

        Raises:
            DamagedError: missing or not the file that was saved.
        """
        return b"".join(self.chunks(name))

    def verify(self) -> None:
        """Read every file, keeping none.

        Raises:
            DamagedError: names the first one that is missing or not the file that was saved.
        """
        for name in self.files:
            for _ in self.chunks(name):
                pass

    def json(self, name: str) -> Any:
        """A verified JSON file."""
        return json.loads(self.read(name))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the model was trained with."""
        return Tokenizer.from_json(self.read("tokenizer.json"), where=self.path())

    def config(self) -> ModelConfig:
        """The shape of the model."""
        return from_dict(ModelConfig, self.json("config.json"), where=self.path("config.json"))

    @property
    def stage(self) -> Stage:
        """The last stage of training that the model went through; `base` where no other is recorded.

        Raises:
            UserError: the record names a stage that is not known.
        """
        record = "imported.json" if "imported.json" in self.files else "settings.json"
        found: Any = self.json(record).get("stage", "base") if record in self.files else "base"
        if found in get_args(Stage):
            return found
        raise UserError(f"{self.path(record)}: unknown stage {found!r}", fix="Read it with a newer cpplm.")

    @property
    def parent(self) -> dict[str, Any] | None:
        """The checkpoint that its run started from, as `checkpoint.parent.parent_record` says, if any."""
        return self.json("parent.json") if "parent.json" in self.files else None

    @property
    def manifest_hash(self) -> str:
        """The sha256 of the manifest, and so of everything."""
        return sha256(self.storage.read(f"{step_folder(self.step)}/{MANIFEST}"))

    @property
    def is_adapter(self) -> bool:
        """True for a LoRA adapter, whose weights are those of `open_base` and a little beside them."""
        return "adapter_config.json" in self.files

    @property
    def is_packed(self) -> bool:
        """True if the weights take the bits of their formats, as `cpplm compress quantize` writes them."""
        return QUANTIZATION in self.files and bool(self.json(QUANTIZATION)["packed"])

    @property
    def supports_fim(self) -> bool:
        """True if documents were rearranged for fill-in-the-middle, in this run or before; False for an
        imported model."""
        if "settings.json" not in self.files:
            return False
        fim = self.json("settings.json").get("fim", {})
        here = any(fim.get(rate, 0) > 0 for rate in ("fim_rate", "structured_fim_rate"))
        return here or bool((self.parent or {}).get("supports_fim"))

    @property
    def supports_chat(self) -> bool:
        """True if this run, or one before it, was trained on conversations; reinforcement learning may begin
        without."""
        stages, parent = [self.stage], self.parent
        if self.stage == "rl" and parent is None:
            return True  # imported: nanochat has conversations before
        while parent is not None:
            stages.append(parent["stage"])
            parent = parent["parent"]
        return "sft" in stages


def step_folder(step: int) -> str:
    """The folder of a step; names sort as numbers do."""
    return f"step_{step:06d}"


def manifest_bytes(step: int, files: dict[str, dict[str, Any]]) -> bytes:
    """The manifest of a step, with the hash of what it says; equal checkpoints have equal ones."""
    content = {"version": VERSION, "step": step, "files": files}
    return json_bytes({**content, "sha256": sha256(json_bytes(content))})


def json_bytes(value: Any) -> bytes:
    """JSON as the files of checkpoints hold it: equal values give equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def committed_steps(storage: Storage) -> list[int]:
    """Steps whose manifest is there, ascending. A failing listing raises; it never reads as "none"."""
    found = (re.fullmatch(rf"step_(\d+)/{MANIFEST}", name) for name in storage.list_names())
    return sorted(int(match.group(1)) for match in found if match)


def open_checkpoint(storage: Storage, step: int | None = None) -> Checkpoint:
    """The newest checkpoint, or that of `step`.

    Raises:
        UserError: there is none, or it was written by a later cpplm.
        DamagedError: its manifest is not what was saved.
    """
    steps = committed_steps(storage)
    if not steps and storage.exists("config.json"):
        raise UserError(
            f"{storage.location} is a model for Hugging Face's libraries, not a run with checkpoints",
            fix="Name the run that it was exported from; 'cpplm evaluate --hf_dir' reads such models.",
        )
    if not steps:
        raise UserError(
            f"no checkpoint in {storage.location}", fix="Run 'cpplm train' until it has saved one."
        )
    if step is None:
        step = steps[-1]
    if step not in steps:
        raise UserError(f"no checkpoint of step {step} in {storage.location}", fix=f"There are: {steps}.")
    return Checkpoint(storage, step, _read_manifest(storage, step))


def _read_manifest(storage: Storage, step: int) -> dict[str, dict[str, Any]]:
    """The entries of the files. Any changed byte is found: the text must be just what we would write."""
    name = f"{step_folder(step)}/{MANIFEST}"
    data = storage.read(name)
    try:
        manifest = json.loads(data)
        version, files = manifest["version"], manifest["files"]
        if isinstance(version, int) and version > VERSION:
            raise UserError(f"{storage.path(name)} has format {version}", fix="Read it with a newer cpplm.")
        first = {"version": 1, "step": step, "files": files}
        expected = json_bytes(first) if version == 1 else manifest_bytes(step, files)
        sound = all(_FILE_NAME.fullmatch(file) and isinstance(files[file]["bytes"], int) for file in files)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(storage.path(name)) from error
    if data != expected or not sound:
        raise DamagedError(storage.path(name))
    return dict(files)


def checkpoint_storage(run: str | Path) -> Storage:
    """The place of the checkpoints of a run folder, or a folder or bucket URL that holds checkpoints itself.

    Raises:
        UserError: no such folder.
    """
    storage = Storage(run)
    sessions = [] if is_bucket(run) else read_run_log(Path(storage.location) / LOG)
    elsewhere = [r["settings"]["checkpoint_dir"] for r in sessions if r["event"] == "session"][-1:]
    inner = Path(storage.location) / "checkpoints"
    if elsewhere and elsewhere[0]:
        return Storage(elsewhere[0])
    return Storage(inner) if inner.is_dir() else storage


def check_run(run: str | Path, step: int | None = None) -> None:
    """Refuse what `open_run` would, as far as that shows without a network.

    Raises:
        UserError: no such folder, no checkpoint in it, or a damaged manifest.
    """
    if not is_bucket(run):
        storage = checkpoint_storage(run)
        if not is_bucket(storage.location):
            checkpoint = open_checkpoint(storage, step)
            _refuse_hf(checkpoint)
            if checkpoint.is_adapter and not is_bucket(checkpoint.json("parent.json")["location"]):
                open_base(checkpoint)


def open_run(run: str | Path, step: int | None = None) -> Checkpoint:
    """The newest checkpoint of a run, or that of `step`; see `checkpoint_storage`.

    Raises:
        UserError: there is none, or its model is not one of ours.
    """
    checkpoint = open_checkpoint(checkpoint_storage(run), step)
    _refuse_hf(checkpoint)
    return checkpoint


def _refuse_hf(checkpoint: Checkpoint) -> None:
    if "config.json" in checkpoint.files:
        refuse_hf_checkpoint(checkpoint.json("config.json"), checkpoint.path())


def open_base(adapter: Checkpoint) -> Checkpoint:
    """The checkpoint that an adapter adapts, by the record of its parent.

    Raises:
        UserError: it is not there any more, or another one is.
    """
    record = adapter.json("parent.json")
    where = f"{record['location']}, step {record['step']:,}"
    try:
        base = open_checkpoint(Storage(record["location"]), record["step"])
    except DamagedError:
        raise
    except UserError as error:
        raise UserError(
            f"{adapter.path()} is an adapter of {where}, which is not there", fix="Put its base back."
        ) from error
    if base.manifest_hash != record["manifest"]:
        raise UserError(
            f"{adapter.path()} is an adapter of another model than the one in {where}",
            fix="Put its base back.",
        )
    return base
