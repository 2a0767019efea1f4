"""The model card of an export: what is known from the checkpoint and its run, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpplm import __version__
from cpplm.core.html_page import render
from cpplm.core.run_log import LOG
from cpplm.core.storage import Storage, is_bucket
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_parameters
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.report.html_evaluation import evaluation_tiles
from cpplm.train.report.log_reader import RunHistory

EVALUATION = "evaluation.json"


def model_card(
    checkpoint: Checkpoint,
    run: str,
    *,
    architecture: str,
    remote_code: bool,
    left_out: Sequence[str],
    dtype: str,
    parameters: int,
) -> str:
    """README.md for a model hub.

    Args:
        checkpoint: of the model.
        run: where it is from; the log and the evaluation of a local run are read.
        architecture: the class that computes the model.
        remote_code: the folder brings that class.
        left_out: parts of the model that are not exported.
        dtype: of the weights.
        parameters: in the export.
    """
    folder = _local_folder(run)
    return render(
        "cpplm.export",
        "model_card.md.jinja",
        {},
        autoescape=False,  # Markdown, shown by nobody before its author has read it
        name=model_name(run),
        version=__version__,
        architecture=architecture,
        remote_code=remote_code,
        left_out=left_out,
        model=_shape(checkpoint.config(), parameters, dtype),
        training=_training(checkpoint),
        figures=_figures(folder, checkpoint.step),
        supports_fim=checkpoint.supports_fim,
        context=checkpoint.config().max_seq_len,
    )


def _local_folder(run: str) -> Path | None:
    return None if not run or is_bucket(run) else Path(run).expanduser().resolve()


def model_name(run: str) -> str:
    """That of the run's folder; what is only called "run" or "checkpoints" has its name above."""
    folder = _local_folder(run)
    parts = [part for part in (run.split("/") if folder is None else folder.parts) if part.strip("/")]
    named = [part for part in parts if part not in ("run", "checkpoints")]
    return named[-1] if named else "model"


def _shape(config: ModelConfig, parameters: int, dtype: str) -> dict[str, str]:
    counted = count_parameters(config)
    tables = counted["engram_tables"]
    of_tables = f", {tables:,} of them in tables of n-grams" if tables else ""
    return {
        "parameters": f"{parameters:,}{of_tables}",
        "layers": f"{config.num_layers}",
        "width": f"{config.model_dim}",
        "heads": f"{config.num_heads} for queries, {config.num_kv_heads} for keys and values, "
        f"{config.head_dim} wide",
        "context": f"{config.max_seq_len:,} tokens",
        "vocabulary": f"{config.vocab_size:,} tokens",
        "weights": dtype,
    }


def _training(checkpoint: Checkpoint) -> dict[str, str]:
    """Of a run of ours: how far it came and with what; of an imported model, from where."""
    found = {"step": f"{checkpoint.step:,}"}
    if "state.json" in checkpoint.files:
        state = checkpoint.json("state.json")
        found["tokens trained on"] = f"{state['tokens']:,}"
        found["time of training steps"] = f"{state['seconds']:,.0f} s"
        for name in ("corpus", "tokenizer"):
            if name in state:
                found[f"fingerprint of the {name}"] = f"`{state[name]}`"
    if "settings.json" in checkpoint.files:
        settings = checkpoint.json("settings.json")
        found["preset"] = settings.get("architecture", {}).get("preset", "")
        found["seed"] = str(settings.get("seed", ""))
    if "imported.json" in checkpoint.files:
        found["imported"] = f"from nanochat's `{checkpoint.json('imported.json')['from']}`"
    return {name: value for name, value in found.items() if value}


def _figures(folder: Path | None, step: int) -> list[tuple[str, str, str]]:
    """What was measured of just these weights: (what, value, remark)."""
    if folder is None:
        return []
    found: list[tuple[str, str, str]] = []
    if (folder / LOG).exists():
        here = [record for record in RunHistory(folder).validations if record["step"] == step]
        for record in here[-1:]:
            remark = f"of {record['bytes']:,} bytes of held-out code, during training"
            found.append(("bits per byte", f"{record['bits_per_byte']:.4f}", remark))
    if (folder / EVALUATION).exists():
        results = Storage(folder).read_json(EVALUATION)
        of_step = {name: result for name, result in results.items() if result.get("step") == step}
        found += _bits(of_step.get("bpb", {})) + evaluation_tiles(of_step)
    return found


def _bits(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    if "bits_per_byte" not in result:
        return []
    return [("bits per byte", f"{result['bits_per_byte']:.4f}", "of held-out code, `cpplm evaluate bpb`")]
