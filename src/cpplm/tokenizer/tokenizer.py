"""The tokenizer: byte-level BPE over C++-aware pieces, exact in both directions.

    tokenizer = Tokenizer.load("tokenizer.json")
    ids = tokenizer.encode("int main() {", prepend="<BOS>")
    text = tokenizer.decode(ids[1:])

Invariants: `decode_bytes(encode(x)) == x` for every text and every byte string; ordinary text never gives a
special id; one JSON file holds everything, and its hash names the tokenizer in shards and checkpoints. Id
layout: 0-63 special tokens, 64-319 the bytes, then merges in the order in which they were learned, and at the
end the core names of C++ that no merge gave. Encoding is tiktoken's, with our ranks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage, is_bucket, restore_url, sha256
from cpplm.tokenizer.pretokenizer import split_bytes
from cpplm.tokenizer.special_tokens import ALIASES, NAMED_TOKENS, NUM_SPECIAL, SPECIAL_IDS, SPECIAL_TOKENS

FILE = "tokenizer.json"
FORMAT = "cpplm-tokenizer"
VERSION = 1
# Trained on 300 MB and more of C++, see docs/tokenizer.md; files in the folder `published`.
PUBLISHED = ("cpp-32k", "cpp-65k", "cpp-32k-dense", "cpp-65k-dense")
_PICKLE = b"\x80"  # how every pickle of protocol 2 or later begins


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary with its pretokenizer.

    Attributes:
        pattern: the pre-tokenizing expression (see `cpplm.tokenizer.pretokenizer`).
        tokens: the bytes of ids 64, 65, ...; the first 256 are the single bytes.
        provenance: what it was trained on; not part of the hash.
    """

    pattern: str
    tokens: tuple[bytes, ...]
    provenance: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return NUM_SPECIAL + len(self.tokens)

    @cached_property
    def hash(self) -> str:
        """Hex sha256 of all that decides ids; equal hashes give equal ids."""
        return sha256(
            json.dumps([VERSION, self.pattern, SPECIAL_TOKENS, [t.hex() for t in self.tokens]]).encode()
        )

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The id of every token that is not special, by its bytes."""
        return {token: id_ for id_, token in enumerate(self.tokens, NUM_SPECIAL)}

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        return tiktoken.Encoding(
            name=f"cpplm-{self.hash[:12]}",
            pat_str=self.pattern,
            mergeable_ranks=self.ids,
            special_tokens=SPECIAL_IDS,
        )

    # ---- text to ids ----------------------------------------------------------------------------------

    def encode(
        self, text: str | bytes, *, prepend: int | str | None = None, append: int | str | None = None
    ) -> list[int]:
        """Ids of one text; bytes need not be valid UTF-8.

        Args:
            text: what to encode. Names of special tokens inside it are ordinary characters.
            prepend: special token, by id or name, to put before.
            append: special token, by id or name, to put after.
        """
        ids = self._encode(text)
        if prepend is not None:
            ids.insert(0, self.encode_special(prepend))
        if append is not None:
            ids.append(self.encode_special(append))
        return ids

    def encode_batch(
        self, texts: Sequence[str | bytes], *, prepend: int | str | None = None, threads: int = 2
    ) -> list[list[int]]:
        """Ids of many texts, on `threads` threads (the encoder releases Python's lock); see `encode`."""
        if threads == 1:  # a pool costs more than a short text
            return [self.encode(text, prepend=prepend) for text in texts]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda text: self.encode(text, prepend=prepend), texts))

    def _encode(self, text: str | bytes) -> list[int]:
        # tiktoken replaces what is not UTF-8; such text is cut here, so that bytes stay what they are.
        try:
            valid = text.decode() if isinstance(text, bytes) else text
            valid.encode()  # fails on half of a surrogate pair
        except UnicodeError:
            pieces = split_bytes(self.pattern, _to_bytes(text))
            return [id_ for piece in pieces for id_ in self._encoding._encode_single_piece(piece)]
        return self._encoding.encode_ordinary(valid)

    def encode_with_special(self, text: str) -> list[int]:
        """Ids of a text in which the names of special tokens (`<BOS>`) stand for these tokens."""
        return self._encoding.encode(text, allowed_special="all")

    def encode_special(self, token: int | str) -> int:
        """The id of a special token given by id, name (`<BOS>`) or alias (`<|bos|>`).

        Raises:
            UserError: no special token of that name or id.
        """
        if isinstance(token, int):
            if 0 <= token < NUM_SPECIAL:
                return token
        elif (name := ALIASES.get(token, token)) in SPECIAL_IDS:
            return SPECIAL_IDS[name]
        raise UserError(f"no special token {token!r}", fix=f"Known: {', '.join(NAMED_TOKENS)}.")

    # ---- ids to text ----------------------------------------------------------------------------------

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The exact bytes; special tokens appear by name.

        Raises:
            UserError: an id outside the vocabulary.
        """
        try:
            return self._encoding.decode_bytes(ids)
        except (KeyError, OverflowError) as error:
            raise UserError(f"token id {error} is outside the vocabulary of {self.vocab_size:,}") from error

    def decode(self, ids: Sequence[int]) -> str:
        """Text; bytes that are not valid UTF-8 (a generated half character) become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    @cached_property
    def token_bytes(self) -> npt.NDArray[np.int32]:
        """Length in bytes of each id, shape (vocab_size,); special tokens count 0."""
        return np.array([0] * NUM_SPECIAL + [len(token) for token in self.tokens], dtype=np.int32)

    @cached_property
    def sorted_tokens(self) -> tuple[list[bytes], npt.NDArray[np.int64]]:
        """All tokens that are not special in the order of their bytes, and their ids."""
        pairs = sorted(self.ids.items())
        return [token for token, _ in pairs], np.array([id_ for _, id_ in pairs], dtype=np.int64)

    # ---- file -----------------------------------------------------------------------------------------

    def to_json(self) -> bytes:
        """The one file that holds everything."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "hash": self.hash,
            "pattern": self.pattern,
            "special_tokens": SPECIAL_TOKENS,
            "provenance": self.provenance,
            "tokens": [token.hex() for token in self.tokens],
        }
        return (json.dumps(content, indent=0) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, *, where: str) -> Tokenizer:
        """Parse and verify a tokenizer file; `where` names it in errors.

        Raises:
            UserError: not such a file, of a newer version, truncated, or edited by hand.
        """
        if data.startswith(_PICKLE):
            raise UserError(
                f"{where} is a pickle, such as nanochat's tokenizer.pkl; loading one runs what its author "
                "put into it, so cpplm never does",
                fix="Train a tokenizer on the same text: 'cpplm tokenizer train' (see docs/tokenizer.md).",
            )
        try:
            content = json.loads(data)
            if "pre_tokenizer" in content:
                from cpplm.tokenizer.export import import_hf  # noqa: PLC0415  (which needs this class)

                return import_hf(content, where)
            if content["format"] != FORMAT or content["version"] != VERSION:
                raise UserError(f"{where} is not a {FORMAT} file of version {VERSION}")
            tokenizer = cls(
                pattern=content["pattern"],
                tokens=tuple(bytes.fromhex(token) for token in content["tokens"]),
                provenance=content["provenance"],
            )
            stored, specials = content["hash"], tuple(content["special_tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{where} is not a tokenizer file: {error!r}", fix="Train it again.") from error
        is_bytes = tokenizer.tokens[:256] == tuple(bytes([value]) for value in range(256))
        unique = len(tokenizer.ids) == len(tokenizer.tokens)
        if tokenizer.hash != stored or specials != SPECIAL_TOKENS or not is_bytes or not unique:
            raise UserError(
                f"{where} was altered after training: the hash is {tokenizer.hash[:12]}, not {stored[:12]}",
                fix="Restore the file or train again.",
            )
        return tokenizer

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer file, or one that comes with cpplm, by its name (`PUBLISHED`).

        A URL leads to the file in a bucket or on the hub, or to the folder with its `tokenizer.json`.

        Raises:
            UserError: missing, unreadable, or anything `from_json` refuses.
        """
        if str(path) in PUBLISHED:
            data = files("cpplm.tokenizer").joinpath("published", f"{path}.json").read_bytes()
            return cls.from_json(data, where=str(path))
        location = restore_url(path)
        if is_bucket(location):
            folder, _, name = location.rpartition("/") if location.endswith(".json") else (location, "", FILE)
            return cls.from_json(Storage(folder).read(name), where=location)
        try:
            data = Path(path).expanduser().read_bytes()
        except OSError as error:
            raise UserError(
                f"cannot read the tokenizer {path}: {error}",
                fix=f"Run 'cpplm tokenizer train', or use one that comes with cpplm: {', '.join(PUBLISHED)}.",
            ) from error
        return cls.from_json(data, where=str(path))


def _to_bytes(text: str | bytes) -> bytes:
    """UTF-8, with undecodable bytes that `errors="surrogateescape"` hid in a string brought back."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair: kept as the three bytes it would take
        return text.encode("utf-8", "surrogatepass")
