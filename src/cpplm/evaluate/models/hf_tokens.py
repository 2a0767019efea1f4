"""The tokenizer of a Hugging Face directory, exact to the byte.

`tokenizer.json` is read as it is, by the library that it was written for: none of the directory's code runs,
and no class of `transformers` changes what it says. Texts that spell a special token are text.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpplm.core.errors import UserError
from cpplm.core.storage import sha256
from cpplm.evaluate.sliding_window import EncodedText
from cpplm.tokenizer.export import byte_characters

# What stands before the prefix, before the suffix and before what is written.
SENTINELS = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001  (their characters)
    ("<FIM_PREFIX>", "<FIM_SUFFIX>", "<FIM_MIDDLE>"),  # ours, exported
)
# Names that never stand for text, also where a tokenizer does not call them special (Qwen's <|fim_prefix|>).
_MARK = re.compile(r"<[|｜].*[|｜]>")  # noqa: RUF001
_SPACE = "▁"  # how SentencePiece writes a space
_PROBE = "int main() {\n\treturn 0;  // probe\n}\n"
# Splits off what a tokenizer puts before a text: no vocabulary joins this character with another.
_GUARD = "\u263a"


class HfTokens:
    """Text to ids and back."""

    def __init__(self, folder: Path) -> None:
        """Read the tokenizer of a directory.

        Raises:
            UserError: there is none, or it cannot give back the text that it was given.
        """
        record, settings = _read(folder / "tokenizer.json"), {}
        if (folder / "tokenizer_config.json").exists():
            settings = _read(folder / "tokenizer_config.json")
        tokenizers = importlib.import_module("tokenizers")
        try:
            added = {token["content"]: token for token in record["added_tokens"]}
            known = {name for names in SENTINELS for name in names}
            for name, token in added.items():
                token["special"] = token["special"] or name in known or bool(_MARK.fullmatch(name))
            self._backend = tokenizers.Tokenizer.from_str(json.dumps(record))
        except Exception as error:  # the library raises plain Exception
            raise UserError(f"{folder / 'tokenizer.json'} is no tokenizer: {error!r}") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self.hash = sha256(self._backend.to_str().encode())
        self.ids: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        self.end_ids = frozenset(token["id"] for token in added.values() if token["special"])
        """Special tokens: none of them is text, so each ends what is being written."""
        self.bos_id = self._named(settings, "bos_token")
        self.eos_id = self._named(settings, "eos_token")
        self._bytes = _bytes_of_ids(self.ids, added, record)
        self._puts_space = self.bytes_of(self._encode(["x"])[0].ids) == b" x"
        if self.bytes_of(self._encode([_PROBE])[0].ids).removeprefix(b" ") != _PROBE.encode():
            raise UserError(f"the tokenizer in {folder} does not give back the text that it is given")

    def _named(self, settings: dict[str, Any], role: str) -> int | None:
        """The id of a token that the settings give a role, as text or as a record."""
        named = settings.get(role)
        name = named.get("content") if isinstance(named, dict) else named
        return self.ids.get(name) if isinstance(name, str) else None

    # ---- text to ids ----------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Ids without any special token, and where each of them ends in its text."""
        encodings = self._encode(texts)
        return [
            EncodedText(encoding.ids, self._ends(text, encoding))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def encode_inside(self, text: str) -> list[int]:
        """Ids of a text that does not begin a document: no tokenizer puts a space before it."""
        if not self._puts_space:
            return list(self._encode([text])[0].ids)
        encoding = self._encode([_GUARD + text])[0]
        return [id_ for id_, (_, end) in zip(encoding.ids, encoding.offsets, strict=True) if end > 1]

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        return self._backend.encode_batch(list(texts), add_special_tokens=False)

    def _ends(self, text: str, encoding: Any) -> NDArray[np.int64]:
        """From the tokens' bytes where they spell the text, as they do for every byte-level tokenizer.

        Else, as where a tokenizer normalises Unicode, from the characters that each token came from: a token
        that only begins a character ends where the character begins.
        """
        data = text.encode()
        sizes = np.array([len(self._bytes.get(id_, b"")) for id_ in encoding.ids], dtype=np.int64)
        spelt = self.bytes_of(encoding.ids)
        if spelt == data:
            return np.cumsum(sizes)
        if spelt == b" " + data:
            return np.maximum(np.cumsum(sizes) - 1, 0)
        edges = np.cumsum([0, *(len(character.encode()) for character in text)])
        starts, stops = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
        later = np.append(np.minimum.accumulate(starts[::-1])[::-1][1:], len(text))
        ends: NDArray[np.int64] = edges[np.minimum(stops, later)]
        ends[-1:] = len(data)
        return np.maximum.accumulate(ends)

    # ---- ids to text ----------------------------------------------------------------------------------

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """The bytes that these tokens stand for behind other text; an id without a token has none."""
        return b"".join(self._bytes.get(id_, b"") for id_ in ids)

    # ---- fill-in-the-middle ---------------------------------------------------------------------------

    def sentinels(self) -> tuple[int, int, int] | None:
        """The ids before prefix, suffix and middle, where the tokenizer has such tokens."""
        for names in SENTINELS:
            if all(name in self.ids for name in names):
                first, second, third = (self.ids[name] for name in names)
                return first, second, third
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot read {path}: {error}",
            fix="AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) makes it for older models.",
        ) from error
    if not isinstance(record, dict):
        raise UserError(f"{path} is not a JSON object")
    return record


def _bytes_of_ids(
    ids: dict[str, int], added: dict[str, dict[str, Any]], record: dict[str, Any]
) -> dict[int, bytes]:
    """The bytes of each token, in the alphabet of the decoder that the tokenizer names."""
    if "ByteLevel" in json.dumps([record.get("decoder"), record.get("pre_tokenizer")]):
        spell: Callable[[str], bytes] = partial(
            _byte_level, byte_of={character: value for value, character in byte_characters().items()}
        )
    else:
        spell = _sentence_piece
    return {id_: name.encode() if name in added else spell(name) for name, id_ in ids.items()}


def _byte_level(name: str, byte_of: dict[str, int]) -> bytes:
    try:
        return bytes(byte_of[character] for character in name)
    except KeyError:  # no token of the byte-level kind
        return name.encode()


def _sentence_piece(name: str) -> bytes:
    if re.fullmatch("<0x[0-9A-F]{2}>", name):
        return bytes([int(name[3:5], 16)])
    return name.replace(_SPACE, " ").encode()
