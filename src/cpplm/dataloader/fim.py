"""Fill-in-the-middle: documents rearranged so that a model learns to write what is missing inside a text.

    PSM   <BOS><FIM_PREFIX> prefix <FIM_SUFFIX> suffix <FIM_MIDDLE> middle <EOS>
    SPM   <BOS><FIM_PREFIX><FIM_SUFFIX> suffix <FIM_MIDDLE> prefix middle <EOS>

Both orders are those of Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle";
as there (context-level), what is rearranged fits a row as a whole: a longer document is cut into segments
first.

Invariants: the pieces of a document, each through `invert`, give its bytes in order. Prefix, middle and
suffix are encoded alone, each from its first byte to its last, so a hole may begin and end inside what would
be one token. A prompt of `render_fim_prompt`, wherever its prefix ends, is therefore what training showed and
needs no token healing. What is drawn for a document depends on the seed and its key alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from cpplm.core.errors import UserError
from cpplm.core.spans import BORROWED_COLUMN, DOCSTRINGS_COLUMN, SPANS_COLUMN, SpanTable, unpack_spans
from cpplm.dataloader.borrowed import training_stretches
from cpplm.dataloader.encoding import RawDocument, TokenIds, load_tokenizer, token_edges, with_bos
from cpplm.dataloader.fim_holes import ByteRange, body_hole, cut_segments, line_hole, random_hole, syntax_hole
from cpplm.tokenizer.special_tokens import BOS, EOS, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX
from cpplm.tokenizer.tokenizer import Tokenizer

MIN_SEQ_LEN = 64
# Of a row: five special tokens, and what a text takes more in three parts than as a whole.
RESERVED_TOKENS = 16


@dataclass(frozen=True)
class FimSettings:
    """Fill-in-the-middle: how many segments are rearranged and how. A segment fits a row of the context; a
    document that does is one segment, a longer one is cut into several.
    """

    fim_rate: float = 0.0
    """Share of all segments that get a hole, random or syntactic (0 = none)."""
    syntax_fim_rate: float = 0.5
    """The share of these whose hole is a whole statement, block, body, function, condition or argument list;
    where a segment has none, the hole is random."""
    line_fim_rate: float = 0.0
    """Experimental: the share of --fim_rate's holes that are a line or the rest of one, sometimes with lines
    behind it, as editors ask for. --syntax_fim_rate has its share of the same holes."""
    structured_fim_rate: float = 0.0
    """Share of the segments with a documented function in which the hole is that function's body; taken from
    the segments that --fim_rate leaves."""
    fim_spm_rate: float = 0.5
    """The share of all rearranged segments in the order suffix, prefix, middle; the rest are prefix, suffix,
    middle."""
    fim_seed: int = 0
    """Seed of the choice of segments, holes and orders."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "fim_seed"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(
                    f"--{name} {getattr(self, name)} is not a share", fix="Use a number from 0 to 1."
                )
        for one, other in (("fim_rate", "structured_fim_rate"), ("syntax_fim_rate", "line_fim_rate")):
            if getattr(self, one) + getattr(self, other) > 1:
                given = f"--{one} {getattr(self, one)} and --{other} {getattr(self, other)}"
                raise UserError(f"{given} share the same places", fix="Their sum may be at most 1.")
        if self.fim_seed < 0:
            raise UserError(f"--fim_seed {self.fim_seed} is negative")
        unused = [] if self.fim_rate else ["syntax_fim_rate", "line_fim_rate"]
        unused += [] if self.enabled else ["fim_spm_rate", "fim_seed"]
        for name in unused:
            if getattr(self, name) != getattr(FimSettings, name):
                raise UserError(
                    f"--{name} has no effect at --fim_rate 0", fix="Give a rate, or leave it out."
                )

    @property
    def enabled(self) -> bool:
        """True if anything is rearranged."""
        return self.fim_rate > 0 or self.structured_fim_rate > 0


def render_fim_prompt(
    tokenizer: Tokenizer, prefix: str | bytes, suffix: str | bytes, *, spm: bool = True
) -> list[int]:
    """The prompt after which a model writes the text between `prefix` and `suffix` and then <EOS>.

    The ids are those of training up to the middle, so the prefix's end is not to be taken back (healed).
    """
    return _prompt(tokenizer.encode(prefix), tokenizer.encode(suffix), spm=spm)


def _prompt(prefix: list[int], suffix: list[int], *, spm: bool) -> list[int]:
    if spm:
        return [BOS, FIM_PREFIX, FIM_SUFFIX, *suffix, FIM_MIDDLE, *prefix]
    return [BOS, FIM_PREFIX, *prefix, FIM_SUFFIX, *suffix, FIM_MIDDLE]


def invert(ids: Sequence[int] | TokenIds, tokenizer: Tokenizer) -> bytes:
    """The stretch of a document that a piece was made of, whether it was rearranged or not.

    Raises:
        ValueError: no piece that `FimEncoder` makes.
    """
    tokens = [int(id_) for id_ in ids]
    if tokens[:1] != [BOS]:
        raise ValueError("a piece begins with <BOS>")
    if tokens[1:2] != [FIM_PREFIX]:
        return tokenizer.decode_bytes(tokens[1:])
    if tokens[-1] != EOS or FIM_SUFFIX not in tokens or FIM_MIDDLE not in tokens:
        raise ValueError("a rearranged piece has <FIM_SUFFIX> and <FIM_MIDDLE>, and ends with <EOS>")
    suffix, middle = tokens.index(FIM_SUFFIX), tokens.index(FIM_MIDDLE)
    # In SPM nothing stands in the prefix's place, and prefix and middle follow each other.
    order = tokens[2:suffix], tokens[middle + 1 : -1], tokens[suffix + 1 : middle]
    return b"".join(tokenizer.decode_bytes(part) for part in order)


@dataclass(frozen=True)
class _Hole:
    """A segment, as tokens `first` to `last` (exclusive) of its document, and its text in three parts."""

    first: int
    last: int
    parts: tuple[bytes, bytes, bytes]  # prefix, middle, suffix
    spm: bool


@dataclass(frozen=True)
class FimEncoder:
    """Rearranges segments of documents; what lies between them stays plain and as long as it can.

    A document without holes is one piece, however long. Plain pieces beside holes keep the tokens that they
    have in the whole document.

    Attributes:
        tokenizer: path of the file, or the name of a published tokenizer.
        tokenizer_hash: `Tokenizer.hash` of it.
        settings: which segments are rearranged, and how.
        seq_len: tokens of a row; no rearranged piece is longer. At least MIN_SEQ_LEN.
        threads: that encode at the same time.
    """

    tokenizer: str
    tokenizer_hash: str
    settings: FimSettings
    seq_len: int
    threads: int = 1

    def __post_init__(self) -> None:
        if self.seq_len < MIN_SEQ_LEN:
            raise UserError(
                f"a context of {self.seq_len} tokens is too short for fill-in-the-middle",
                fix=f"Use --max_seq_len {MIN_SEQ_LEN} or more, or --fim_rate 0 --structured_fim_rate 0.",
            )

    packs_whole: ClassVar[bool] = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the settings need beyond the text."""
        spans = self.settings.fim_rate > 0 and self.settings.syntax_fim_rate > 0
        docstrings = self.settings.structured_fim_rate > 0
        return (BORROWED_COLUMN,) + (SPANS_COLUMN,) * spans + (DOCSTRINGS_COLUMN,) * docstrings

    def encode(self, documents: list[RawDocument]) -> list[list[TokenIds]]:
        """Per document its pieces, plain and rearranged, in order."""
        tokenizer = load_tokenizer(self.tokenizer, self.tokenizer_hash)
        rows = tokenizer.encode_batch([document.text for document in documents], threads=self.threads)
        plain = [np.array(row, dtype=np.int32) for row in rows]
        edges = [token_edges(tokenizer, ids) for ids in plain]
        stretches = [
            training_stretches(document.borrowed or [], each, self.seq_len)
            for document, each in zip(documents, edges, strict=True)
        ]
        holes = [list(self._holes(*each)) for each in zip(documents, edges, stretches, strict=True)]
        parts = [part for of_document in holes for hole in of_document for part in hole.parts]
        encoded = iter(tokenizer.encode_batch(parts, threads=self.threads))
        return [
            self._pieces(ids, kept, [(hole, self._rearranged(hole, encoded)) for hole in of_document])
            for ids, kept, of_document in zip(plain, stretches, holes, strict=True)
        ]

    def _holes(
        self, document: RawDocument, edges: npt.NDArray[np.int64], stretches: list[tuple[int, int]]
    ) -> Iterator[_Hole]:
        """The segments of a document that are to be rearranged, in order.

        `edges` as in `cut_segments`; segments are made of each of the `stretches` of tokens alone.
        """
        data = document.text.encode()
        rng = np.random.default_rng([self.settings.fim_seed, *document.key])
        spans = unpack_spans(document.spans or b"")
        longest = self.seq_len - RESERVED_TOKENS
        segments = [
            (begin + first, begin + last)
            for begin, end in stretches
            for first, last in itertools.pairwise(cut_segments(data, edges[begin : end + 1], spans, longest))
        ]
        for first, last in segments:
            start, end = edges[[first, last]].tolist()
            hole = self._hole(document, data, spans, ByteRange(start, end), rng)
            if hole is not None:
                parts = data[start : hole.start], data[hole.start : hole.end], data[hole.end : end]
                yield _Hole(first, last, parts, spm=rng.random() < self.settings.fim_spm_rate)

    def _hole(
        self,
        document: RawDocument,
        data: bytes,
        spans: SpanTable,
        segment: ByteRange,
        rng: np.random.Generator,
    ) -> ByteRange | None:
        """The hole of a segment; None where it stays plain."""
        settings, roll = self.settings, rng.random()
        if roll < settings.fim_rate:
            hole, kind = None, rng.random()
            if kind < settings.syntax_fim_rate:
                hole = syntax_hole(spans, segment, rng)
            elif kind < settings.syntax_fim_rate + settings.line_fim_rate:
                hole = line_hole(data, segment, rng)
            return hole or random_hole(data, segment, rng)
        if roll < settings.fim_rate + settings.structured_fim_rate:
            return body_hole(document.docstrings or [], segment, rng)
        return None

    @staticmethod
    def _rearranged(hole: _Hole, encoded: Iterator[list[int]]) -> TokenIds:
        prefix, middle, suffix = next(encoded), next(encoded), next(encoded)
        return np.array([*_prompt(prefix, suffix, spm=hole.spm), *middle, EOS], dtype=np.int32)

    def _pieces(
        self, ids: TokenIds, stretches: list[tuple[int, int]], rearranged: list[tuple[_Hole, TokenIds]]
    ) -> list[TokenIds]:
        """A document's pieces. A segment whose parts do not fit a row after all stays plain (rare)."""
        pieces = []
        for begin, end in stretches:
            done = begin
            for hole, piece in rearranged:
                if begin <= hole.first < end and len(piece) <= self.seq_len:
                    if done < hole.first:
                        pieces.append(with_bos(ids[done : hole.first]))
                    pieces.append(piece)
                    done = hole.last
            if done < end or not pieces:
                pieces.append(with_bos(ids[done:end]))
        return pieces
