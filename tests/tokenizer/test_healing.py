"""A healed prompt begins the ids of every text that begins with the prompt, and the rest can be spelt."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.tokenizer.healing import PrefixConstraint, heal
from cpplm.tokenizer.pretokenizer import PATTERNS
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.texts import cpp_document, make_tokenizer

CODE = "\n".join(
    (
        cpp_document(7),
        "#  include <map>\n/* a\n * b\n */\nstd::map<int, a::b> m{{0x1F, 2}};   \n\n\t// x->y\r\n",
    )
)


@pytest.fixture(scope="module", params=["lines", "dense"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return make_tokenizer((cpp_document(number) for number in range(100)), 512, request.param)


@pytest.mark.parametrize("name", ["cpp-32k", "cpp-32k-dense"])
def test_every_cut_of_real_code(name: str) -> None:
    """Large vocabularies: only they have tokens such as a line break with a directive."""
    tokenizer = Tokenizer.load(name)
    whole = tokenizer.encode(CODE)
    for cut in range(len(CODE) + 1):
        healed = heal(tokenizer, CODE[:cut])
        assert tokenizer.decode(healed.ids) + healed.removed.decode() == CODE[:cut]
        assert whole[: len(healed.ids)] == healed.ids, CODE[:cut][-40:]


ALPHABET = 'a: \n\t#/*<"0x1F->_{}\r;'


@settings(max_examples=1000)
@given(prompt=st.text(ALPHABET, max_size=30), rest=st.text(ALPHABET, max_size=12))
def test_any_prompt_with_any_continuation(tokenizer: Tokenizer, prompt: str, rest: str) -> None:
    healed = heal(tokenizer, prompt)
    assert tokenizer.encode(prompt + rest)[: len(healed.ids)] == healed.ids


@given(data=st.binary(max_size=20))
def test_bytes(tokenizer: Tokenizer, data: bytes) -> None:
    healed = heal(tokenizer, data)
    assert tokenizer.decode_bytes(healed.ids) + healed.removed == data


def test_the_constraint_lets_through_what_spells_the_prefix_and_nothing_else(tokenizer: Tokenizer) -> None:
    choices = random.Random(0)
    for prefix in (b"", b"r", b"return", b"\n    return (va", "\xe9t".encode(), b"\xff\n#include"):
        constraint = PrefixConstraint(tokenizer, prefix)
        spelt = b""
        while not constraint.done:
            allowed = constraint.allowed().tolist()
            rest = prefix[len(spelt) :]
            expected = [
                id_
                for token, id_ in tokenizer.ids.items()
                if token.startswith(rest) or rest.startswith(token)
            ]
            assert allowed == sorted(expected)
            refused = tokenizer.encode_special("<EOS>")
            with pytest.raises(UserError, match="does not go on"):
                constraint.advance(refused)
            token = choices.choice(allowed)
            constraint.advance(token)
            spelt += tokenizer.decode_bytes([token])
        assert spelt.startswith(prefix)


def test_a_line_break_ends_a_token_unless_they_are_dense(tokenizer: Tokenizer) -> None:
    lines = tokenizer.pattern == PATTERNS["lines"]
    prompt, rest = "int f() {\n", "    return 1;\n}\n"
    apart = [*tokenizer.encode(prompt), *tokenizer.encode(rest)]
    assert (apart == tokenizer.encode(prompt + rest)) == lines
