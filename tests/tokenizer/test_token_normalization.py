"""Which tokens share what n-gram memories know."""

import numpy as np

from cpplm.tokenizer.special_tokens import NUM_SPECIAL
from cpplm.tokenizer.token_normalization import canonical_ids
from cpplm.tokenizer.tokenizer import Tokenizer


def test_case_and_blanks_do_not_matter_line_breaks_do() -> None:
    tokenizer = Tokenizer.load("cpp-32k")
    canonical, ids = canonical_ids(tokenizer), tokenizer.ids

    def same(*texts: bytes) -> bool:
        return len({int(canonical[ids[text]]) for text in texts}) == 1

    assert same(b"size", b" size", b"Size", b"SIZE")
    assert same(b"int", b" int")
    assert not same(b"size", b"int")
    assert not same(b"{", b"{\n") if b"{\n" in ids else True


def test_everything_else_stands_for_itself() -> None:
    tokenizer = Tokenizer.load("cpp-32k")
    canonical = canonical_ids(tokenizer)
    assert canonical.shape == (tokenizer.vocab_size,)
    assert np.array_equal(canonical[:NUM_SPECIAL], np.arange(NUM_SPECIAL))
    assert np.array_equal(canonical[canonical], canonical)  # who stands for others stands for itself
    for text, token in tokenizer.ids.items():
        if not text.strip():
            assert canonical[token] == token
    assert 0.5 < np.unique(canonical).size / tokenizer.vocab_size < 0.95
