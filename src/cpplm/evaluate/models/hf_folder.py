"""Checks of a Hugging Face directory that need none of the libraries that load it."""

from __future__ import annotations

import json
from pathlib import Path

from cpplm.core.errors import UserError


def has_chat_template(folder: Path) -> bool:
    """True if a directory says how conversations are written."""
    if (folder / "chat_template.jinja").is_file():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.is_file() and "chat_template" in settings.read_text(encoding="utf-8", errors="replace")


def require_readable(folder: Path) -> None:
    """Refuse what is no directory of a model, adapters, pickled weights, and our own exports that bring code.

    Raises:
        UserError: names what is missing or refused, and what to do instead.
    """
    folder = folder.expanduser()
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} is not the directory of a Hugging Face model (no config.json)",
            fix="Name a local directory; nothing is downloaded.",
        )
    if (folder / "adapter_config.json").exists():
        raise UserError(f"{folder} holds an adapter for another model", fix="Merge it into that model first.")
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder} has no weights in safetensors, and pickled ones are never loaded",
            fix="Convert them: safetensors.torch.save_file, or save_pretrained where you trust them.",
        )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} cannot be loaded: config.json: {error}") from error
    if isinstance(config, dict) and config.get("model_type") == "cpplm":
        raise UserError(
            f"{folder} is an export of cpplm that needs Python code of its own, which is never run here",
            fix="Evaluate the run that it was exported from: --run RUN; fine-tune it: --init_from RUN.",
        )
