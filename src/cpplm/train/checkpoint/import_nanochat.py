"""nanochat's checkpoints as ours: `model_000650.pt` with `meta_000650.json` beside it.

Two layouts are known: the plain one (rotary base 10,000, windows of half the context), which is nanochat's of
2025 and that of the C++ fork which cpplm succeeds; and nanochat's of July 2026 (value embeddings, smear,
backout). The numbers that the files do not hold, such as the rotary base, come with the layout, as in
`ModelConfig.seed` and `ModelConfig.nanochat`. What lies between the two has other names or shapes, and is
refused.

The weights become float32; logits then agree with nanochat's own in float32 up to rounding. Optimizer state
is not taken over. Nothing is executed: the file is read by `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint, Stage, json_bytes
from cpplm.train.checkpoint.save import write_checkpoint

SIZES = {"vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd", "sequence_len"}
# Features of the fork that compute something else than ours of the same name.
FOREIGN = ("engram", "mhc", "dsa")
# Entries of the record that say how a model was trained, not what it computes.
IGNORED = {"gradient_checkpointing", "aux_loss_weight"}
ADDED_2026 = ("smear_gate.weight", "smear_lambda", "backout_lambda")

# nanochat's folders of checkpoints, which hold one folder per model.
STAGES: dict[str, Stage] = {
    "base_checkpoints": "base",
    "mid_checkpoints": "mid",
    "chatsft_checkpoints": "sft",
    "chatrl_checkpoints": "rl",
}

# Our names and theirs; {} is the layer.
NAMES = {
    "embedding.weight": "transformer.wte.weight",
    "lm_head.weight": "lm_head.weight",
    "residual_scales": "resid_lambdas",
    "embedding_scales": "x0_lambdas",
    "smear_gate.weight": "smear_gate.weight",
    "smear_scale": "smear_lambda",
    "backout_scale": "backout_lambda",
    "blocks.{}.attention.value_embedding.weight": "value_embeds.{}.weight",
    "blocks.{}.attention.query.weight": "transformer.h.{}.attn.c_q.weight",
    "blocks.{}.attention.key.weight": "transformer.h.{}.attn.c_k.weight",
    "blocks.{}.attention.value.weight": "transformer.h.{}.attn.c_v.weight",
    "blocks.{}.attention.output.weight": "transformer.h.{}.attn.c_proj.weight",
    "blocks.{}.attention.value_gate.weight": "transformer.h.{}.attn.ve_gate.weight",
    "blocks.{}.mlp.up.weight": "transformer.h.{}.mlp.c_fc.weight",
    "blocks.{}.mlp.down.weight": "transformer.h.{}.mlp.c_proj.weight",
}


def import_nanochat(
    source: Path, out: Path, tokenizer: Tokenizer, step: int | None = None, stage: Stage | None = None
) -> Checkpoint:
    """Read a checkpoint of nanochat and write it as ours.

    Args:
        source: the folder with `model_*.pt` and `meta_*.json`, or one `model_*.pt`.
        out: gets the folder of the step: model, config, tokenizer, and as `imported.json` the old record.
        tokenizer: must give the ids that the model was trained with; only its size can be checked.
        step: which of several (None = the newest).
        stage: of its training (None = by the folder in which nanochat put it, `base` in any other).

    Raises:
        UserError: nothing there, a damaged file, or a model that ours cannot compute; names what is wrong.
    """
    model_file, step = _find(source, step)
    meta_file = model_file.with_name(f"meta_{model_file.stem.removeprefix('model_')}.json")
    meta = _read_meta(meta_file)
    record = meta["model_config"]
    _refuse_foreign(record, meta_file)
    tensors = _completed(_read_tensors(model_file), record["n_layer"])
    config = _config(record, newer=any(name in tensors for name in ADDED_2026), where=meta_file)
    if tokenizer.vocab_size != config.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size:,} ids, the model {config.vocab_size:,}",
            fix="Give the --tokenizer that it was trained with, in cpplm's format.",
        )
    files = {
        "config.json": json_bytes(to_dict(config)),
        "tokenizer.json": tokenizer.to_json(),
        "imported.json": json_bytes(
            {"from": model_file.name, "stage": stage or _stage(model_file), "meta": meta}
        ),
    }
    weights = convert(tensors, config, where=str(model_file))
    return write_checkpoint(Storage(out, create=True), step, {"model.safetensors": weights}, files)


def convert(tensors: dict[str, Tensor], config: ModelConfig, *, where: str) -> dict[str, Tensor]:
    """Their weights by our names, float32.

    Args:
        tensors: of one `model_*.pt`.
        config: the model that they are of.
        where: names the file in errors.

    Raises:
        UserError: names tensors that are missing, unknown or of another shape.
    """
    with torch.device("meta"):
        expected = {
            _their_name(name): (name, like) for name, like in Transformer(config).state_dict().items()
        }
    missing = [name for name in expected if name not in tensors]
    unknown = [name for name in tensors if name not in expected]
    if missing or unknown:
        parts = (("without", missing), ("with unknown tensors", unknown))
        raise UserError(
            f"{where} is a model that is not known here: "
            + "; ".join(f"{what} {', '.join(names[:8])}" for what, names in parts if names)
        )
    weights = {}
    for theirs, (ours, like) in expected.items():
        tensor = tensors[theirs]
        weights[ours] = _fitted(tensor, like.shape, config)
        if weights[ours].shape != like.shape or not tensor.is_floating_point():
            raise UserError(
                f"{where}: {theirs} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"not floating-point of shape {tuple(like.shape)}"
            )
    return weights


def _stage(model_file: Path) -> Stage:
    """By nanochat's folders; its records do not name the stage."""
    folders = model_file.resolve().parts
    return next((stage for folder, stage in STAGES.items() if folder in folders), "base")


def _fitted(tensor: Tensor, shape: torch.Size, config: ModelConfig) -> Tensor:
    """Float32; single values without a dimension, unpadded vocabularies with zero rows as padding."""
    value = tensor.float().contiguous()
    if shape == () and value.shape == (1,):
        return value.reshape(())
    padding = config.padded_vocab_size - config.vocab_size
    if len(shape) == 2 and value.shape == (config.vocab_size, shape[1]) and shape[0] == len(value) + padding:
        return torch.cat((value, value.new_zeros(padding, shape[1])))
    return value


def _their_name(ours: str) -> str:
    layer = re.search(r"(?<=^blocks\.)\d+", ours)
    if layer is None:
        return NAMES[ours]
    return NAMES[ours.replace(layer.group(), "{}", 1)].format(layer.group())


def _completed(tensors: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Without the head that only training used; with the scales that early models lack, which do nothing."""
    scales = {"resid_lambdas": torch.ones(num_layers), "x0_lambdas": torch.zeros(num_layers)}
    return scales | {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}


def _config(record: dict[str, Any], *, newer: bool, where: Path) -> ModelConfig:
    """Our record of their model; `newer` is the layout of July 2026."""
    head_dim, rest = divmod(record["n_embd"], record["n_head"])
    if rest:
        raise UserError(f"{where}: n_embd {record['n_embd']} is not a multiple of n_head {record['n_head']}")
    preset = ModelConfig.nanochat if newer else ModelConfig.seed
    return replace(
        preset(record["n_layer"], vocab_size=record["vocab_size"], head_dim=head_dim),
        model_dim=record["n_embd"],
        num_heads=record["n_head"],
        num_kv_heads=record["n_kv_head"],
        max_seq_len=record["sequence_len"],
        window_pattern=record.get("window_pattern", "L").upper(),  # early models had no windows
    )


def _refuse_foreign(record: dict[str, Any], where: Path) -> None:
    missing = SIZES - set(record)
    if missing or not all(isinstance(record[name], int) and record[name] > 0 for name in SIZES):
        raise UserError(f"{where}: model_config lacks sizes", fix=f"It must have {', '.join(sorted(SIZES))}.")
    for feature in FOREIGN:
        if record.get(f"{feature}_enabled"):
            raise UserError(f"{where}: the model has {feature}, which computes something else in cpplm")
    known = (*FOREIGN, "mtp")
    unknown = [
        name for name in set(record) - SIZES - IGNORED - {"window_pattern"} if name.split("_")[0] not in known
    ]
    if unknown:
        raise UserError(f"{where}: unknown entries of model_config: {', '.join(sorted(unknown))}")


def _find(source: Path, step: int | None) -> tuple[Path, int]:
    """The file with the weights, and its step."""
    if not source.exists():
        raise UserError(f"no such file or folder: {source}")
    files = [source] if source.is_file() else sorted(source.glob("model_*.pt"))
    steps = {int(m.group(1)): file for file in files if (m := re.fullmatch(r"model_(\d+)\.pt", file.name))}
    if not steps:
        raise UserError(f"{source} holds no checkpoint of nanochat", fix="Its files are model_NNNNNN.pt.")
    step = max(steps) if step is None else step
    if step not in steps:
        raise UserError(f"no checkpoint of step {step} in {source}", fix=f"There are: {sorted(steps)}.")
    return steps[step], step


def _read_meta(path: Path) -> dict[str, Any]:
    meta = Storage(path.parent).read_json(path.name)
    if not isinstance(meta, dict) or not isinstance(meta.get("model_config"), dict):
        raise UserError(f"{path} has no model_config")
    return meta


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The state dictionary, without the prefix that compiled models get."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
    except Exception as error:  # torch has many for a file that is not its own
        raise UserError(
            f"{path} cannot be read: it is damaged, or holds objects other than tensors, which might run code"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} does not hold the weights of a model")
    return {str(name).removeprefix("_orig_mod."): value for name, value in state.items()}
