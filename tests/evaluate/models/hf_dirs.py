"""Small directories of Hugging Face models, made on the spot: a random Llama and a tokenizer of one kind."""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from tests.texts import cpp_document

STARCODER = ["<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>"]
TEXTS = [cpp_document(number) for number in range(50)]


def byte_level(
    special: list[str] = STARCODER, vocab_size: int = 400, normalizer: Any = None, prefix_space: bool = False
) -> tokenizers.Tokenizer:
    """As GPT-2, StarCoder, Qwen and others have it."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def sentence_piece() -> tokenizers.Tokenizer:
    """As Llama 2 and CodeLlama have it: a space before the text, spaces as a letter, bytes for the rest."""
    trained = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.normalizer = spaces
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    trained.train_from_iterator(TEXTS, trainer)
    record = json.loads(trained.to_str())
    vocab = record["model"]["vocab"]
    for value in range(256):
        vocab.setdefault(f"<0x{value:02X}>", len(vocab))
    record["model"] |= {"byte_fallback": True, "fuse_unk": True}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(record))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def llama(vocab_size: int, context: int = 64, seed: int = 0) -> LlamaForCausalLM:
    """Random weights, large enough that its answers are decided."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=context, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def write_tokenizer(folder: Path, tokenizer: tokenizers.Tokenizer, **named: Any) -> Path:
    """`tokenizer.json`, and the settings that name special tokens by their roles."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def write_hf_dir(folder: Path, context: int = 64) -> Path:
    """A whole directory with a byte-level tokenizer."""
    tokenizer = byte_level()
    write_tokenizer(folder, tokenizer, bos_token="<|endoftext|>", eos_token={"content": "<|endoftext|>"})
    llama(tokenizer.get_vocab_size(), context).save_pretrained(folder)
    return folder
