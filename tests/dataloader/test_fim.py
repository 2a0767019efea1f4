"""Nothing is lost, holes are what they say, shares are met, and a document's draws are its own."""

import copy
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.core.spans import SpanKind, pack_spans, unpack_spans
from cpplm.cpp.doc_comments import shift_pairs
from cpplm.cpp.syntax_spans import join_spans
from cpplm.dataloader.encoding import RawDocument, TokenIds
from cpplm.dataloader.fim import FimEncoder, FimSettings, invert, render_fim_prompt
from cpplm.dataloader.fim_holes import cut_segments
from cpplm.tokenizer.pretokenizer import PATTERNS
from cpplm.tokenizer.special_tokens import BOS, EOS, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.corpus.parsed import parsed
from tests.texts import cpp_document, make_tokenizer

FUNCTION = """\
// Gives back größe{n}, shifted {n} times.
int shift_{n}(const Größe& größe) {{
    if (größe.empty_or_unknown()) {{
        report("<FIM_MIDDLE> 面積 🙂", größe.name(), {n});
    }}
    return größe.width() << {n};
}}

"""


def document(functions: int, number: int = 0) -> RawDocument:
    """A document as the corpus makes it; `functions` of them, each with its comment."""
    source = "".join(FUNCTION.format(n=n) for n in range(number, number + functions))
    pieces = list(parsed(source.encode()))
    starts = list(itertools.accumulate((len(piece.text) for piece in pieces), initial=0))
    pairs = [np.array(piece.pairs, dtype=np.int32).tobytes() for piece in pieces]
    return RawDocument(
        b"".join(piece.text for piece in pieces).decode(),
        (0, 0, number),
        pack_spans(join_spans(zip((piece.spans for piece in pieces), starts[:-1], strict=True))),
        shift_pairs(zip(pairs, starts[:-1], strict=True)),
    )


@pytest.fixture(scope="module", params=["lines", pytest.param("dense", marks=pytest.mark.slow)])
def tokenizer_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [cpp_document(number) for number in range(100)] + [document(3, 7).text]
    path = tmp_path_factory.mktemp("fim") / f"{request.param}.json"
    path.write_bytes(make_tokenizer(texts, 600, request.param).to_json())
    return path


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_path)


def encoder(path: Path, seq_len: int = 128, **options: Any) -> FimEncoder:
    return FimEncoder(str(path), Tokenizer.load(path).hash, FimSettings(**options), seq_len)


def is_rearranged(piece: TokenIds) -> bool:
    return len(piece) > 1 and piece[1] == FIM_PREFIX


def parts(piece: TokenIds, tokenizer: Tokenizer) -> tuple[str, str, str]:
    """Prefix, middle and suffix of a piece in the order PSM; each has to be whole characters."""
    ids = piece.tolist()
    suffix, middle = ids.index(FIM_SUFFIX), ids.index(FIM_MIDDLE)
    assert ids[:2] == [BOS, FIM_PREFIX]
    assert ids[-1] == EOS
    cut = ids[2:suffix], ids[middle + 1 : -1], ids[suffix + 1 : middle]
    first, second, third = (tokenizer.decode_bytes(part).decode() for part in cut)
    return first, second, third


def holes(encoder: FimEncoder, document: RawDocument, tokenizer: Tokenizer) -> Iterator[tuple[int, int, str]]:
    """Start, end (in bytes) and text of all holes of a document; the order must be PSM."""
    offset = 0
    for piece in encoder.encode([document])[0]:
        if is_rearranged(piece):
            prefix, middle, _ = (part.encode() for part in parts(piece, tokenizer))
            yield offset + len(prefix), offset + len(prefix) + len(middle), middle.decode()
        offset += len(invert(piece, tokenizer))


CHARACTERS = st.characters(codec="utf-8")
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=40),
    st.text('<FIM_PREFIX>\r\n\0 x{}("é面🙂', max_size=40),
    st.sampled_from([document(1).text, document(4).text, "<FIM_PREFIX><FIM_SUFFIX><FIM_MIDDLE><EOS>"]),
)
RATES = st.floats(0.05, 1)


@settings(max_examples=50)
@given(
    text=st.builds(str.__mul__, TEXTS, st.integers(1, 60)),
    seq_len=st.integers(64, 300),
    rates=st.tuples(RATES, RATES, RATES),
    key=st.tuples(*[st.integers(0, 2**40)] * 3),
    ends=st.lists(st.integers(0, 2000), min_size=2, max_size=12),
)
def test_the_pieces_of_a_document_give_it_back(
    tokenizer_path: Path,
    tokenizer: Tokenizer,
    text: str,
    seq_len: int,
    rates: tuple[float, float, float],
    key: tuple[int, int, int],
    ends: list[int],
) -> None:
    places = [len(text[:end].encode()) for end in ends]
    table = [(a, b, n % 6) for n, (a, b) in enumerate(itertools.pairwise(places)) if a < b]
    given = RawDocument(text, key, pack_spans(np.array(table, dtype=np.int32).reshape(-1, 3)))
    options = {"fim_rate": rates[0], "syntax_fim_rate": rates[1], "fim_spm_rate": rates[2]}
    options["line_fim_rate"] = (1 - rates[1]) * rates[2]
    pieces = encoder(tokenizer_path, seq_len, **options).encode([given])[0]
    assert b"".join(invert(piece, tokenizer) for piece in pieces) == text.encode()
    for piece in pieces:
        assert piece.dtype == np.int32
        assert piece[0] == BOS
        if is_rearranged(piece):
            assert len(piece) <= seq_len
            parts(piece, tokenizer)  # whole characters
        else:
            assert set(piece.tolist()) & {EOS, FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX} == set()
    plain = [is_rearranged(piece) for piece in pieces]
    assert all(a or b for a, b in itertools.pairwise(plain))  # what stays plain stays together


@pytest.mark.parametrize("spm", [False, True])
def test_a_prompt_is_what_training_showed_up_to_the_middle(
    tokenizer_path: Path, tokenizer: Tokenizer, spm: bool
) -> None:
    fim = encoder(tokenizer_path, fim_rate=1.0, syntax_fim_rate=0.0, fim_spm_rate=float(spm))
    inside = 0
    for number in range(60):
        given = RawDocument(cpp_document(0)[number:], (0, 0, number))
        (piece,) = fim.encode([given])[0]
        (start, end, middle) = next(holes(encoder(tokenizer_path, fim_rate=1.0, syntax_fim_rate=0.0,
                                                  fim_spm_rate=0.0), given, tokenizer))  # fmt: skip
        prefix, suffix = given.text[:start], given.text[end:]
        prompt = render_fim_prompt(tokenizer, prefix, suffix, spm=spm)
        assert piece.tolist() == [*prompt, *tokenizer.encode(middle), EOS]
        inside += tokenizer.encode(prefix) + tokenizer.encode(middle) != tokenizer.encode(prefix + middle)
    assert inside > 10  # holes that begin inside what would be one token


def test_syntax_holes_are_spans_of_the_document(tokenizer_path: Path, tokenizer: Tokenizer) -> None:
    fim = encoder(tokenizer_path, 256, fim_rate=1.0, syntax_fim_rate=1.0, fim_spm_rate=0.0)
    kinds = set()
    for number in range(40):
        given = document(1 + number % 9, number)
        spans = {(start, end): kind for start, end, kind in unpack_spans(given.spans).tolist()}
        for start, end, _ in holes(fim, given, tokenizer):
            kinds.add(spans[start, end])
    assert kinds == set(SpanKind)


def test_line_holes_end_with_a_line_and_half_begin_with_one(
    tokenizer_path: Path, tokenizer: Tokenizer
) -> None:
    fim = encoder(tokenizer_path, 512, fim_rate=1.0, syntax_fim_rate=0.0, line_fim_rate=1.0, fim_spm_rate=0.0)
    found = []
    for number in range(300):
        given = document(1 + number % 2, number)  # one segment: others may end inside a line
        data = given.text.encode()
        for start, end, middle in holes(fim, given, tokenizer):
            assert data[end : end + 1] == b"\n"
            assert middle
            assert any(map(str.isalnum, data[data.rfind(b"\n", 0, end) + 1 : end].decode()))
            found.append((start == 0 or data[start - 1 : start] == b"\n", middle.count("\n")))
    begin, breaks = np.array(found).T
    assert 0.5 < begin.mean() < 0.62  # some begin there by chance
    assert (breaks == 0).mean() == pytest.approx(0.75, abs=0.08)
    assert 1 < breaks.max() <= 7
    blank = RawDocument("\n\n  \n{}\n", (0, 0, 0), b"")
    assert all(is_rearranged(piece) for piece in fim.encode([blank])[0])  # with a random hole


def test_structured_holes_are_bodies_of_documented_functions(
    tokenizer_path: Path, tokenizer: Tokenizer
) -> None:
    fim = encoder(tokenizer_path, 256, structured_fim_rate=1.0, fim_spm_rate=0.0)
    found = 0
    for number in range(20):
        given = document(1 + number % 9, number)
        assert given.docstrings
        bodies = {pair["body_start"] + 1: pair for pair in given.docstrings}
        data = given.text.encode()
        for start, end, middle in holes(fim, given, tokenizer):
            pair = bodies[start]
            assert end == pair["body_end"] - 1
            described = data[pair["doc_start"] : start].decode()
            assert described.startswith("// Gives back größe")
            assert described.endswith("(const Größe& größe) {")
            assert data[end:].startswith(b"}")
            assert middle.strip().startswith("if (")
            found += 1
    assert found >= 20
    undocumented = RawDocument(document(3).text, (0, 0, 0), None, [])
    assert [is_rearranged(piece) for piece in fim.encode([undocumented])[0]] == [False]


def test_where_a_document_has_no_spans_the_hole_is_random(tokenizer_path: Path) -> None:
    fim = encoder(tokenizer_path, fim_rate=1.0, syntax_fim_rate=1.0)
    for spans in (None, b""):
        assert all(is_rearranged(p) for p in fim.encode([RawDocument("int x = 1;", (0, 0, 0), spans)])[0])


def test_shares_are_met(tokenizer_path: Path, tokenizer: Tokenizer) -> None:
    fim = encoder(
        tokenizer_path, 512, fim_rate=0.4, syntax_fim_rate=0.6, structured_fim_rate=0.25, fim_spm_rate=0.3
    )
    one = document(1)
    assert len(tokenizer.encode(one.text)) < 400  # one segment
    count = 1500
    documents = [RawDocument(one.text, (0, 1, n), one.spans, one.docstrings) for n in range(count)]
    pieces = [piece for pieces in fim.encode(documents) for piece in pieces]
    assert len(pieces) == count
    rearranged = [piece for piece in pieces if is_rearranged(piece)]
    psm = [parts(piece, tokenizer) for piece in rearranged if piece[2] != FIM_SUFFIX]
    # A random hole at the very start of the text, one in a hundred, looks like SPM.
    assert len(rearranged) / count == pytest.approx(0.65, abs=0.04)
    assert 1 - len(psm) / len(rearranged) == pytest.approx(0.3, abs=0.04)
    spans = {(start, end) for start, end, _ in unpack_spans(one.spans).tolist()}
    (pair,) = one.docstrings or []
    body = (pair["body_start"] + 1, pair["body_end"] - 1)
    places = [(len(p.encode()), len((p + m).encode())) for p, m, _ in psm]
    assert sum(place in spans for place in places) / len(psm) == pytest.approx(0.6 * 0.4 / 0.65, abs=0.06)
    assert places.count(body) / len(psm) == pytest.approx(0.25 / 0.65, abs=0.06)


def test_a_long_document_has_holes_in_a_share_of_its_segments(tokenizer_path: Path) -> None:
    given = [document(60, number) for number in range(0, 240, 60)]
    every = encoder(tokenizer_path, fim_rate=1.0).encode(given)
    assert all(is_rearranged(piece) for pieces in every for piece in pieces)
    segments = sum(map(len, every))
    some = encoder(tokenizer_path, fim_rate=0.3).encode(given)
    found = sum(is_rearranged(piece) for pieces in some for piece in pieces)
    assert segments > 200
    assert found / segments == pytest.approx(0.3, abs=0.1)


def test_draws_depend_on_seed_and_key_alone(tokenizer_path: Path) -> None:
    documents = [document(1 + number % 7, number) for number in range(30)]
    fim = encoder(tokenizer_path, fim_rate=0.5, structured_fim_rate=0.2)

    def ids(encoded: list[list[TokenIds]]) -> list[list[list[int]]]:
        return [[piece.tolist() for piece in pieces] for pieces in encoded]

    together = ids(fim.encode(documents))
    assert ids(fim.encode(documents[::-1])) == together[::-1]
    assert [ids(fim.encode([one]))[0] for one in documents] == together
    assert pickle.dumps(fim)  # for workers
    elsewhere = copy.deepcopy(fim)
    assert elsewhere == fim
    assert hash(elsewhere) == hash(fim)
    assert ids(elsewhere.encode(documents)) == together
    reseeded = encoder(tokenizer_path, fim_rate=0.5, structured_fim_rate=0.2, fim_seed=1)
    assert ids(reseeded.encode(documents)) != together
    next_epoch = [RawDocument(d.text, (1, *d.key[1:]), d.spans, d.docstrings) for d in documents]
    assert ids(fim.encode(next_epoch)) != together


def test_segments_end_between_functions_where_they_can() -> None:
    function = b"int f() {\n    return 1;\n}\n"
    data = function * 100
    edges = np.arange(len(data) + 1)
    spans = [(n * len(function), (n + 1) * len(function) - 1, SpanKind.FUNCTION) for n in range(100)]
    cuts = cut_segments(data, edges, np.array(spans, dtype=np.int32), 400)
    assert [cut % len(function) for cut in cuts] == [0] * len(cuts)
    lengths = np.diff(cuts)
    assert lengths.sum() == len(data)
    assert lengths.max() <= 400
    assert lengths.min() > 300
    without = cut_segments(data, edges, np.empty((0, 3), dtype=np.int32), 400)
    assert all(data[cut - 1 : cut] == b"\n" for cut in without[1:])


def test_no_segment_ends_inside_a_character() -> None:
    data = "🙂".encode() * 500
    cuts = cut_segments(data, np.arange(len(data) + 1), np.empty((0, 3), dtype=np.int32), 64)
    assert [cut % 4 for cut in cuts] == [0] * len(cuts)
    assert np.diff(cuts).max() <= 64
    # Tokens that all end inside one: such a document is not cut at all.
    inside = np.array([0, *range(1, len(data), 4), len(data)])
    assert cut_segments(data, inside, np.empty((0, 3), dtype=np.int32), 64) == [0, len(inside) - 1]


def test_a_segment_whose_parts_do_not_fit_stays_plain(tmp_path: Path) -> None:
    """A word of 64 letters is a token here, and 64 tokens when a hole begins or ends inside it."""
    tokenizer = Tokenizer(PATTERNS["lines"], (*(bytes([value]) for value in range(256)), b"x" * 64))
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer.to_json())
    text = ("x" * 64 + "\n" * 16) * 20
    fim = encoder(path, 112, fim_rate=1.0, syntax_fim_rate=0.0)
    kept = [fim.encode([RawDocument(text, (0, 0, number))])[0] for number in range(200)]
    assert {is_rearranged(piece) for pieces in kept for piece in pieces} == {True, False}
    for pieces in kept:
        assert b"".join(invert(piece, tokenizer) for piece in pieces) == text.encode()
        assert all(len(piece) <= 112 for piece in pieces if is_rearranged(piece))


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({}, ()),
        ({"fim_rate": 0.5}, ("spans",)),
        ({"fim_rate": 0.5, "syntax_fim_rate": 0.0}, ()),
        ({"structured_fim_rate": 0.5}, ("docstrings",)),
        ({"fim_rate": 0.5, "structured_fim_rate": 0.5}, ("spans", "docstrings")),
    ],
)
def test_it_asks_for_the_columns_that_it_reads(
    tokenizer_path: Path, options: dict[str, Any], columns: tuple[str, ...]
) -> None:
    assert encoder(tokenizer_path, **options).columns == ("borrowed", *columns)
    assert FimSettings(**options).enabled == bool(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fim_rate": 1.5}, "--fim_rate 1.5 is not a share"),
        ({"fim_spm_rate": -0.1}, "--fim_spm_rate -0.1 is not a share"),
        ({"fim_rate": float("nan")}, "not a share"),
        ({"fim_rate": 0.7, "structured_fim_rate": 0.4}, "may be at most 1"),
        ({"fim_rate": 0.5, "line_fim_rate": 0.6}, "share the same places"),
        ({"line_fim_rate": 0.5}, "--line_fim_rate has no effect at --fim_rate 0"),
        ({"fim_rate": 0.5, "fim_seed": -1}, "--fim_seed -1 is negative"),
        ({"fim_spm_rate": 0.2}, "--fim_spm_rate has no effect"),
        ({"fim_seed": 3}, "--fim_seed has no effect"),
        (
            {"structured_fim_rate": 0.2, "syntax_fim_rate": 0.2},
            "--syntax_fim_rate has no effect at --fim_rate 0",
        ),
    ],
)
def test_contradictions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FimSettings(**options)


def test_a_context_that_is_too_short(tokenizer_path: Path) -> None:
    with pytest.raises(UserError, match="--max_seq_len 64 or more"):
        encoder(tokenizer_path, 63, fim_rate=0.5)


@pytest.mark.parametrize("ids", [[], [5, 6], [BOS, FIM_PREFIX, FIM_SUFFIX, EOS], [BOS, FIM_PREFIX, 70]])
def test_what_is_no_piece_is_not_inverted(tokenizer: Tokenizer, ids: list[int]) -> None:
    with pytest.raises(ValueError, match="piece"):
        invert(ids, tokenizer)
