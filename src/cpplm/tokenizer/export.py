"""A tokenizer in the form that Hugging Face's libraries load.

    FOLDER/tokenizer.json          the `tokenizers` library's file: vocabulary, merges, pretokenizer
    FOLDER/tokenizer_config.json   for `transformers`: special tokens by role, the chat template

Ids are the same, with one difference that is their convention: there, the name of a special token inside a
text gives that token. With `split_special_tokens=True` it is text, as here.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.tokenizer.special_tokens import NUM_SPECIAL, SPECIAL_TOKENS
from cpplm.tokenizer.tokenizer import Tokenizer

_NUM_BYTES = 256
FILES = ("tokenizer.json", "tokenizer_config.json")


def export_hf(tokenizer: Tokenizer, folder: Path) -> list[str]:
    """Write both files; returns their paths.

    Raises:
        UserError: the folder holds such files already.
    """
    storage = Storage(folder, create=True)
    for name in FILES:
        if storage.exists(name):
            raise UserError(f"{storage.path(name)} exists", fix="Delete it or name another --out.")
    for name, content in zip(FILES, (_tokenizer_file(tokenizer), _config_file()), strict=True):
        storage.write(name, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())
    return [storage.path(name) for name in FILES]


def import_hf(record: dict[str, Any], where: str) -> Tokenizer:
    """The tokenizer of cpplm that a `tokenizer.json` for Hugging Face's libraries is an export of.

    Args:
        record: content of the file.
        where: names it in errors.

    Raises:
        UserError: it is another tokenizer.
    """
    try:
        vocab: dict[str, int] = record["model"]["vocab"]
        byte_of = {character: byte for byte, character in byte_characters().items()}
        names = sorted(vocab, key=vocab.__getitem__)
        tokens = (bytes(byte_of[character] for character in name) for name in names[NUM_SPECIAL:])
        pattern = record["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        tokenizer = Tokenizer(pattern, tuple(tokens))
        is_ours = _decides(record) == _decides(json.loads(json.dumps(_tokenizer_file(tokenizer))))
    except (ValueError, KeyError, TypeError, IndexError):
        is_ours = False
    if not is_ours:
        raise UserError(f"{where} is no tokenizer of cpplm")
    return tokenizer


def _decides(record: dict[str, Any]) -> tuple[Any, ...]:
    """Part of a `tokenizer.json` that decides ids; the libraries write the rest in several ways."""
    model, steps = record["model"], record["pre_tokenizer"]["pretokenizers"]
    pairs = {tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]}
    added = {token["content"]: token["id"] for token in record["added_tokens"]}
    split, (byte_level,) = steps[0], steps[1:]
    options = [byte_level["add_prefix_space"], byte_level["use_regex"], split["behavior"], split["invert"]]
    return model["vocab"], pairs, model["ignore_merges"], added, record["normalizer"], options


def _tokenizer_file(tokenizer: Tokenizer) -> dict[str, Any]:
    names = token_names(tokenizer)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    pattern = {"Regex": tokenizer.pattern}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": id_,
                "content": name,
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
                "special": True,
            }
            for id_, name in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
            **dict.fromkeys(("fuse_unk", "byte_fallback"), False),
            "ignore_merges": True,  # a piece that is a token is that token, whether or not merges lead to it
            "vocab": {name: id_ for id_, name in enumerate(names)},
            "merges": merges(names[NUM_SPECIAL:]),
        },
    }


def token_names(tokenizer: Tokenizer) -> list[str]:
    """All tokens by id, bytes in the GPT-2 alphabet."""
    character_of = byte_characters()
    return [*SPECIAL_TOKENS, *("".join(character_of[byte] for byte in token) for token in tokenizer.tokens)]


def merges(names: list[str]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, by the id that it makes; `names` are without special ones.

    The encoder joins any two neighbours that together are a token; this format wants each such pair named.
    """
    ids = {name: id_ for id_, name in enumerate(names)}
    return [
        (name[:cut], name[cut:])
        for name in names[_NUM_BYTES:]
        for cut in range(1, len(name))
        if name[:cut] in ids and name[cut:] in ids
    ]


def chat_template() -> str:
    """The Jinja template by which `transformers` renders conversations, as `conversations.py` does."""
    return files("cpplm.tokenizer").joinpath("chat_template.jinja").read_text(encoding="utf-8")


def _config_file() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<BOS>",
        "eos_token": "<EOS>",
        "pad_token": "<PAD>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**30,  # the model's own configuration knows
        "chat_template": chat_template(),
    }


def byte_characters() -> dict[int, str]:
    """The printable character by which this format writes each byte (the GPT-2 alphabet)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [value for value in range(_NUM_BYTES) if value not in printable]
    return {value: chr(value) for value in printable} | {
        value: chr(_NUM_BYTES + number) for number, value in enumerate(others)
    }
