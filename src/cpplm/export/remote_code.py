"""Modeling code for `transformers`: the model's own source, generated for a flat folder, and an adapter.

`transformers` imports the Python files of a model's folder as one package, when a user trusts them
(`trust_remote_code=True`); it wants them side by side, with relative imports. So each file of `cpplm.model`
that decoding needs is copied, and its imports of cpplm are rewritten: `from cpplm.model.layers import norm`
becomes `from .layers_cpplm import norm`. Kernels are not copied: what is imported from them comes from
`modeling/kernels_cpplm.py`, in plain PyTorch.

The heads that predict further tokens are left out: they only draft what the model then checks, and
`transformers` would not ask them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from cpplm import __version__
from cpplm.core.settings import to_dict
from cpplm.model.config import ModelConfig

ARCHITECTURE = "CpplmForCausalLM"
_MODELING = "cpplm.export.modeling."
_KERNELS = "cpplm.model.kernels."
_COPIED = {
    f"cpplm.{name}": f"{name.removeprefix('model.').replace('.', '_')}_cpplm"
    for name in (
        "core.errors", "model.config", "model.layers", "model.kernels.masks", "model.kv_cache.view",
        "model.ngram_hash", "model.engram", "model.hyper_connections", "model.induction", "model.attention",
        "model.block", "model.decoder",
    )
}  # fmt: skip
_WRITTEN = ("configuration_cpplm", "modeling_cpplm", "cache_cpplm", "kernels_cpplm")
_FILES = _COPIED | {_MODELING + name: name for name in _WRITTEN}
SOURCES = tuple(f"{name}.py" for name in _FILES.values())
_ENTRIES = {
    "configuration_cpplm": ("core_errors_cpplm",),
    "modeling_cpplm": tuple(name for name in _FILES.values() if name != "modeling_cpplm"),
}
_FUTURE = "from __future__ import annotations\n"
_IMPORT = re.compile(r"^from (cpplm[\w.]*) import ", re.MULTILINE)


def source_files() -> dict[str, bytes]:
    """The Python files of an export, by name."""
    return {f"{name}.py": _standalone(module).encode() for module, name in _FILES.items()}


def _standalone(module: str) -> str:
    folder, _, name = module.rpartition(".")
    source = files(folder).joinpath(f"{name}.py").read_text(encoding="utf-8")
    # transformers 4 copies what a file that it loads imports by itself, and no further.
    imports = "".join(f"from .{other} import __name__ as _\n" for other in _ENTRIES.get(name, ()))
    source = source.replace(_FUTURE, f"{_FUTURE}\n{imports}" if imports else _FUTURE, 1)
    return f"# From cpplm {__version__}, {module} (Apache-2.0).\n" + _IMPORT.sub(_relative, source)


def _relative(line: re.Match[str]) -> str:
    module = line[1]
    if module not in _FILES and module.startswith(_KERNELS):
        module = f"{_MODELING}kernels_cpplm"
    return f"from .{_FILES[module]} import "


_OF_VOCABULARY = ("embedding.weight", "lm_head.weight")
_DECODER = "model.decoder."


def exported_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names of the modeling code, without the rows of padding that our tables have."""
    exported: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if not name.startswith("multi_token."):
            prefix = "" if name.startswith("lm_head.") else _DECODER
            exported[prefix + name] = weight[: config.vocab_size] if name.endswith(_OF_VOCABULARY) else weight
    return exported


def imported_weights(config: ModelConfig, exported: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by our names again, with rows of padding, which nothing reads."""
    padding = config.padded_vocab_size - config.vocab_size
    return {
        name.removeprefix(_DECODER): pad(weight, (0, 0, 0, padding))
        if name.endswith(_OF_VOCABULARY)
        else weight
        for name, weight in exported.items()
    }


def exported_config(config: ModelConfig) -> dict[str, Any]:
    """The architecture's part of `config.json`."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "cpplm",
        "auto_map": {
            "AutoConfig": "configuration_cpplm.CpplmConfig",
            "AutoModel": "modeling_cpplm.CpplmModel",
            "AutoModelForCausalLM": f"modeling_cpplm.{ARCHITECTURE}",
        },
        "shape": to_dict(dataclasses.replace(config, mtp=None)),
    }
