"""Lossless in both directions, special tokens apart, one verified file."""

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.tokenizer.pattern import PATTERN, split_bytes
from cpplm.tokenizer.special import BOS, NUM_SPECIAL, SPECIAL_TOKENS
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.tokenizer.train import learn_merges

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
    return Tokenizer(pattern=PATTERN, tokens=learn_merges(iter(SAMPLES), 512))


def reference_encode(tokenizer: Tokenizer, data: bytes) -> list[int]:
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


@settings(max_examples=300, deadline=None)
@given(text=st.text() | st.text(alphabet="<|bos>BOS/*\n\t #:x01 \r\"'"))
def test_text_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert all(id_ >= NUM_SPECIAL for id_ in ids)
    assert ids == reference_encode(tokenizer, text.encode())


@settings(max_examples=300, deadline=None)
@given(data=st.binary())
def test_any_bytes_round_trip(tokenizer: Tokenizer, data: bytes) -> None:
    ids = tokenizer.encode(data)
    assert tokenizer.decode_bytes(ids) == data
    assert ids == reference_encode(tokenizer, data)


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
    with pytest.raises(UserError, match="no special token '<NOPE>'"):
        tokenizer.encode_special("<NOPE>")


def test_token_bytes_sum_to_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(CODE, prepend="<BOS>")
    assert tokenizer.token_bytes[ids].sum() == len(CODE.encode())


def test_training_does_not_depend_on_order() -> None:
    shuffled = SAMPLES.copy()
    random.Random(0).shuffle(shuffled)
    assert learn_merges(iter(SAMPLES), 512) == learn_merges(iter(shuffled), 512)


def test_training_compresses(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode(CODE)) < len(CODE.encode()) / 2.5


def test_too_little_text() -> None:
    with pytest.raises(UserError, match="smaller vocabulary"):
        learn_merges(iter(["int x;"]), 4096)


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


def test_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="outside the vocabulary"):
        tokenizer.decode([tokenizer.vocab_size])


def test_every_byte_lies_in_one_piece() -> None:
    data = bytes(range(256)) * 3 + CODE.encode()
    assert b"".join(split_bytes(PATTERN, data)) == data
