"""Small random models of the transformers library with a chat template, made on the spot."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from tests.evaluate.models.hf_dirs import byte_level, write_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = """{%- if tools %}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<call>' + call.function.name + ' ' + call.function.arguments | tojson + '</call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"""
# As CHATML, without tools: the blocks say what the assistant writes, but for the token that ends its turn.
BLOCKS = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' -%}
{%- generation -%}{{- message.content -}}{%- endgeneration -%}
{%- else -%}{{- message.content -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}"""


def llama(vocab_size: int) -> Any:
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.1,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2(vocab_size: int) -> Any:
    config = GPT2Config(
        vocab_size=vocab_size, n_embd=32, n_layer=2, n_head=2, n_positions=64, initializer_range=0.1,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def mamba(vocab_size: int) -> Any:
    config = MambaConfig(
        vocab_size=vocab_size, hidden_size=16, state_size=4, num_hidden_layers=2, initializer_range=0.5,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = MambaForCausalLM(config)
    model.config.max_position_embeddings = 64
    return model


FAMILIES = {"llama": llama, "gpt2": gpt2, "mamba": mamba}


def write_chat_model(folder: Path, family: str = "llama", template: str = CHATML) -> Path:
    """A whole directory; without a template there is none."""
    tokenizer = byte_level(SPECIAL)
    write_tokenizer(folder, tokenizer, eos_token="<|im_end|>")
    torch.manual_seed(0)
    FAMILIES[family](tokenizer.get_vocab_size()).save_pretrained(folder)
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return folder
