"""Lossless in both directions, special tokens apart, one verified file."""

import itertools
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.tokenizer.pretokenizer import PATTERNS, split_bytes
from cpplm.tokenizer.special_tokens import BOS, NUM_SPECIAL, SPECIAL_TOKENS
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.texts import make_tokenizer

CODE = """\
#include <vector>
namespace shapes {
// Area of a polygon, by the shoelace formula.
template <typename T>
double area(const std::vector<T>& xs, const std::vector<T>& ys) {
\tdouble sum = 0x1F + 3.14e-10;
    for (std::size_t i = 0; i + 1 < xs.size(); ++i) { sum += xs[i] * ys[i + 1] - xs[i + 1] * ys[i]; }
    return sum / 2;   // na\u00efve, \u4e2d\u6587 \U0001f600
}
}  // namespace shapes\r\n
"""
SAMPLES = [CODE.replace("area", f"area_{i}").replace("sum", f"total{i % 7}") for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer(SAMPLES, 512)


def defined_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """Byte-pair encoding as the definition says it: merge the pair of lowest rank until none is left."""
    rank = {token: NUM_SPECIAL + index for index, token in enumerate(tokenizer.tokens)}
    ids = []
    for piece in split_bytes(tokenizer.pattern, data):
        parts = [bytes([value]) for value in piece]
        if piece in rank:
            parts = [piece]
        while True:
            pairs = [(rank[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in rank]
            if not pairs:
                break
            _, i = min(pairs)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids += [rank[part] for part in parts]
    return ids


@settings(max_examples=100)
@given(text=st.text() | st.text(alphabet="<|bos>BOS/*\n\t #:x01 \r\"'"))
def test_text_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert all(id_ >= NUM_SPECIAL for id_ in ids)
    assert ids == defined_ids(tokenizer, text.encode())


@settings(max_examples=100)
@given(data=st.binary())
def test_any_bytes_round_trip(tokenizer: Tokenizer, data: bytes) -> None:
    ids = tokenizer.encode(data)
    assert tokenizer.decode_bytes(ids) == data
    assert ids == defined_ids(tokenizer, data)


def test_bytes_and_text_give_the_same_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(CODE) == tokenizer.encode(CODE.encode())
    assert tokenizer.encode_batch(SAMPLES, prepend="<BOS>") == [
        tokenizer.encode(s, prepend=BOS) for s in SAMPLES
    ]


def test_lone_surrogates_do_not_crash(tokenizer: Tokenizer) -> None:
    text = b"int \xff;".decode("utf-8", "surrogateescape")
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == b"int \xff;"


def test_special_names_in_text_stay_text(tokenizer: Tokenizer) -> None:
    for name in SPECIAL_TOKENS:
        assert min(tokenizer.encode(name)) >= NUM_SPECIAL
    assert tokenizer.encode("x", prepend="<|bos|>", append="<EOS>")[0] == BOS
    assert tokenizer.encode_special("<|fim_middle|>") == 5
    parsed = tokenizer.encode_with_special("int <BOS>x<BOS><|reserved_63|>é<NOPE>")
    assert [id_ for id_ in parsed if id_ < NUM_SPECIAL] == [BOS, BOS, 63]
    assert tokenizer.decode(parsed) == "int <BOS>x<BOS><|reserved_63|>é<NOPE>"
    with pytest.raises(UserError, match="no special token '<NOPE>'"):
        tokenizer.encode_special("<NOPE>")


def test_token_bytes_sum_to_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(CODE, prepend="<BOS>")
    assert tokenizer.token_bytes[ids].sum() == len(CODE.encode())


def test_file_round_trip_and_damage(tokenizer: Tokenizer, tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer.to_json())
    assert Tokenizer.load(path) == tokenizer
    assert Tokenizer.load(path).hash == tokenizer.hash
    content = json.loads(path.read_text())
    content["tokens"][300], content["tokens"][301] = content["tokens"][301], content["tokens"][300]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="altered"):
        Tokenizer.load(path)
    content = json.loads(tokenizer.to_json())
    content["special_tokens"][2] = "<END>"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="altered"):
        Tokenizer.load(path)
    path.write_bytes(tokenizer.to_json()[:1000])
    with pytest.raises(UserError, match="not a tokenizer file"):
        Tokenizer.load(path)
    with pytest.raises(UserError, match="cannot read"):
        Tokenizer.load(tmp_path / "absent.json")
    content = json.loads(tokenizer.to_json())
    content["tokens"][300] = content["tokens"][299]
    twice = Tokenizer(tokenizer.pattern, tuple(bytes.fromhex(token) for token in content["tokens"]))
    path.write_text(json.dumps(content | {"hash": twice.hash}))
    with pytest.raises(UserError, match="altered"):
        Tokenizer.load(path)


def test_a_pickle_is_refused_unread(tmp_path) -> None:
    path = tmp_path / "tokenizer.pkl"
    for protocol in (2, 3, 4, 5):
        path.write_bytes(pickle.dumps(Trap(tmp_path / "opened"), protocol=protocol))
        with pytest.raises(UserError, match=r"is a pickle.*tokenizer train"):
            Tokenizer.load(path)
    assert not (tmp_path / "opened").exists()


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    for id_ in (tokenizer.vocab_size, -1, 2**40):
        with pytest.raises(UserError, match="outside the vocabulary"):
            tokenizer.decode([id_])


def test_every_byte_lies_in_one_piece() -> None:
    data = bytes(range(256)) * 3 + CODE.encode()
    for pattern in PATTERNS.values():
        assert b"".join(split_bytes(pattern, data)) == data


@pytest.mark.parametrize(
    "unit", ["a", " ", "\n", "-", "/", "\t", "0", "a::", "- ", " \n", "\n#", "\n*", "\u4e2d"]
)
def test_the_time_for_a_monotonous_text_grows_with_its_length_only(tokenizer: Tokenizer, unit: str) -> None:
    """No piece is long, so neither the engine's automaton nor the merging of a piece can take long."""
    for pattern in PATTERNS.values():
        assert max(map(len, split_bytes(pattern, (unit * 20_000).encode()))) < 4_500
    text = unit * (1_000_000 // len(unit))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
