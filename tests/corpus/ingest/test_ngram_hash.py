import hypothesis.strategies as st
from hypothesis import given

from cpplm.corpus.ingest import ngram_hash
from cpplm.corpus.ingest.ngram_hash import hash_words, ngram_hashes

BYTES = st.lists(st.sampled_from([b"a", b"b1", b"_x", b" ", b"\n", b"(", "é".encode(), b"zz9"])).map(b"".join)


def split(text: bytes) -> list[bytes]:
    words = hash_words(text)
    return [text[start:end] for start, end in zip(words.starts, words.ends, strict=True)]


def test_words_are_runs_of_letters_digits_and_underscores():
    text = "int f_1(std::vector<é> x){return 0x1F;}".encode()
    expected = ["int", "f_1", "std", "vector", "é", "x", "return", "0x1F"]
    assert [word.decode() for word in split(text)] == expected
    assert split(b"") == split(b" ;") == []


def test_equal_words_have_equal_hashes_wherever_they_stand():
    hashes = hash_words(b"ab ba ab\n(ab) a b aab").hashes
    assert hashes[0] == hashes[2] == hashes[3]
    assert len(set(hashes.tolist())) == 5


def mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


@given(st.binary(min_size=1, max_size=9).map(lambda word: word.hex().encode()))
def test_the_hash_is_the_polynomial_that_it_says(word):
    values = [mix((byte + 1) * 0xD6E8FEB86659FD93 % 2**64) for byte in word]
    total = sum(value * pow(0x9E3779B97F4A7C15, place, 2**64) for place, value in enumerate(values))
    assert hash_words(b"x (" + word + b")").hashes[1] == mix(total % 2**64)


@given(BYTES)
def test_blocks_change_nothing(text):
    whole = hash_words(text)
    pieces = [text[start:end] for start, end in ngram_hash._blocks(text)]
    assert b"".join(pieces) == text
    assert len(whole.hashes) == len(whole.starts) == len(whole.ends)


def test_a_long_text_is_hashed_in_blocks_as_a_short_one():
    lines = [f"word_{i} = {i % 7};\n".encode() for i in range(60_000)]
    text = b"".join(lines)
    assert len(ngram_hash._blocks(text)) > 2
    words = hash_words(text)
    assert len(words.hashes) == 120_000
    for line in (0, 30_000, 59_999):
        assert (words.hashes[2 * line : 2 * line + 2] == hash_words(lines[line]).hashes).all()
    start, end = words.starts[2 * 59_999], words.ends[2 * 59_999]
    assert text[start:end] == b"word_59999"


def test_runs_depend_on_order_and_length():
    abc, acb = hash_words(b"a b c").hashes, hash_words(b"a c b").hashes
    assert len(ngram_hashes(abc, 3)) == 1
    assert ngram_hashes(abc, 3) != ngram_hashes(acb, 3)
    assert len(ngram_hashes(abc, 2)) == 2
    assert len(ngram_hashes(abc, 4)) == 0
    assert ngram_hashes(hash_words(b"x a b c y").hashes, 3)[1] == ngram_hashes(abc, 3)[0]
