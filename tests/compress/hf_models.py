"""Small random models of the transformers library: Qwen3 with tied embeddings, and Llama."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from cpplm.tokenizer.export import export_hf
from cpplm.tokenizer.tokenizer import Tokenizer

_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 64, "initializer_range": 0.15,
    "rms_norm_eps": 1e-6, "rope_theta": 5e5, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": None,
}  # fmt: skip
FAMILIES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM, True), "llama": (LlamaConfig, LlamaForCausalLM, False)}


def random_model(family: str, vocab_size: int, seed: int = 0) -> Any:
    """Every weight matters, those of norms too."""
    config_type, model_type, tied = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_type(config_type(**_SIZES, vocab_size=vocab_size, tie_word_embeddings=tied))
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model.eval()


def write_model(folder: Path, tokenizer: Tokenizer, family: str = "qwen3", seed: int = 0) -> Path:
    """A whole directory, with a tokenizer of ours."""
    export_hf(tokenizer, folder)
    random_model(family, tokenizer.vocab_size, seed).save_pretrained(folder)
    return folder
