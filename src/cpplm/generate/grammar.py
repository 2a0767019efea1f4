"""Constrained decoding: completions that match a JSON schema, a regular expression or a grammar.

    grammar = engine.grammars.compile(GrammarSpec("regex", "[0-9]+"))
    request = engine.request("int answer = ", grammar=grammar)

llguidance (optional: `pip install 'cpplm[grammar]'`) parses what is written byte by byte and says which
tokens may come next. A grammar comes from anyone, so its limits are low: where a mask would take much longer
than others, the sample is cut as at its limit of tokens. Grammars match text: no byte comes that is no UTF-8.

Shapes: V vocabulary of the tokenizer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from cpplm.core.errors import UserError, import_extra
from cpplm.tokenizer.healing import PrefixConstraint
from cpplm.tokenizer.special_tokens import BOS, EOS, NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

GrammarKind = Literal["json_schema", "regex", "grammar", "choice"]
"""A JSON schema, a regular expression (Rust's), a grammar (Lark's or GBNF), or a JSON list of texts."""

_MAX_CHARACTERS: dict[GrammarKind, int] = {"grammar": 20_000}  # GBNF is read in quadratic time
_MAX_OTHERS = 200_000
_CACHED = 32  # compiled grammars that are kept
_WHITESPACE = r"[\n ] {0,16}"  # between tokens of JSON: any, but no model writes blanks for ever
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 100_000, "step_lexer_fuel": 100_000, "max_lexer_states": 20_000,
    "max_items_in_row": 500, "step_max_items": 20_000,
}  # fmt: skip
"""Of the defaults a half to a tenth: an ambiguous grammar takes 30 ms for a mask, not 3 seconds."""
_MOST_JOINED = 12  # patterns of which one text may have to match all: time doubles with each
_PROBED = 8  # tokens of one text that are tried before a grammar is taken
_TITLES = {"json_schema": "JSON schema", "regex": "regular expression", "choice": "list of texts"}


@dataclass(frozen=True)
class GrammarSpec:
    """Source of a grammar that a completion has to match."""

    kind: GrammarKind
    text: str


class GrammarCompiler:
    """Compiles grammars for one tokenizer; safe to use from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.compile = lru_cache(_CACHED)(self._compile)

    def _compile(self, spec: GrammarSpec) -> Grammar:
        """Compile a grammar, in milliseconds mostly; one that takes more than a second is refused.

        Raises:
            UserError: llguidance is not installed, or the grammar is wrong, too complex or matches no text.
        """
        title = _TITLES.get(spec.kind, "grammar")
        most = _MAX_CHARACTERS.get(spec.kind, _MAX_OTHERS)
        if len(spec.text) > most:
            raise UserError(f"the {title} has {len(spec.text):,} characters: the most is {most:,}")
        llguidance = import_extra("llguidance", "structured outputs need", "grammar")
        try:
            if spec.kind == "json_schema":
                options: Any = {"whitespace_pattern": _WHITESPACE}
                check_schema(json.loads(spec.text))
                text = llguidance.LLMatcher.grammar_from_json_schema(spec.text, overrides=options)
            else:
                _check_joins(spec)
                text = llguidance.grammar_from(spec.kind, spec.text)
            limits = llguidance.LLParserLimits(**_LIMITS, verbose_errors=False)
            matcher = llguidance.LLMatcher(self._ll_tokenizer, text, log_level=0, limits=limits)
            grammar = Grammar(self.tokenizer, matcher)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the {title} is not understood: {_one_line(str(error))}") from error
        if matcher.is_error():
            raise UserError(f"the {title} is not understood: {_one_line(matcher.get_error())}")
        probe = grammar.matcher()
        if probe.ended:
            raise UserError(f"the {title} matches no text that the model could write")
        for _ in range(_PROBED):
            if not probe.ended:
                probe.advance(int(probe.allowed(PrefixConstraint(self.tokenizer, b"")).nonzero()[0][-1]))
        if probe.ended and not probe.complete:
            raise UserError(f"the {title} is too complex", fix="Repeat less in it.")
        return grammar

    @cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        """The vocabulary as llguidance has it: tokens are bytes, special ones no text."""
        from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415  (optional)

        return LLTokenizer(TokenizerWrapper(_Vocabulary(self.tokenizer)))


class _Vocabulary:
    """A tokenizer with the names that llguidance looks for."""

    eos_token_id, bos_token_id = EOS, BOS
    special_token_ids = range(NUM_SPECIAL)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokens = [*(b"\xff<%d>" % id_ for id_ in range(NUM_SPECIAL)), *tokenizer.tokens]

    def __call__(self, data: bytes) -> list[int]:
        return self._tokenizer.encode(data)


class Grammar:
    """A compiled grammar; every sample gets a matcher of its own."""

    def __init__(self, tokenizer: Tokenizer, matcher: LLMatcher) -> None:
        """Keep `matcher` as it is before the first token."""
        self.tokenizer, self._template = tokenizer, matcher

    def matcher(self) -> Matcher:
        """Begin a text."""
        return Matcher(self.tokenizer, self._template.deep_copy())


class Matcher:
    """The state of one text under a grammar.

    Attributes:
        ended: no token may follow.
        complete: the text matches the grammar as it is.
    """

    def __init__(self, tokenizer: Tokenizer, matcher: LLMatcher) -> None:
        self._tokenizer, self._matcher = tokenizer, matcher
        self._look()

    def advance(self, token: int, skip: int = 0) -> None:
        """Take a token that is no special one, without so many bytes at its beginning."""
        ids = self._tokenizer.encode(self._tokenizer.decode_bytes([token])[skip:]) if skip else [token]
        if ids:
            self._matcher.consume_tokens(ids)
            self._look()

    def _look(self) -> None:
        """Compute which tokens may come next, and whether that is any."""
        data = b"" if self._matcher.is_stopped() else self._matcher.compute_bitmask()
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        vocab_size = self._tokenizer.vocab_size
        self._allowed_V = np.zeros(vocab_size, dtype=bool)
        self._allowed_V[: len(bits)] = bits[:vocab_size]
        self.ended = not self._allowed_V[NUM_SPECIAL:].any()
        self.complete = not self._matcher.is_error() and self._matcher.is_accepting()
        # Which special tokens end a text is the request's matter; here, whether it may end.
        self._allowed_V[:NUM_SPECIAL] = self.complete

    def allowed(self, prefix: PrefixConstraint) -> npt.NDArray[np.bool_]:
        """Mask of the tokens that may come, shape V: first those that spell `prefix`.

        One that goes beyond its end begins the text.
        """
        if prefix.done:
            return self._allowed_V
        mask_V = np.zeros_like(self._allowed_V)
        mask_V[[id_ for id_ in prefix.allowed().tolist() if self._may_begin(id_, len(prefix.rest))]] = True
        return mask_V

    def _may_begin(self, token: int, skip: int) -> bool:
        """True if what is behind so many bytes of a token may come next."""
        behind = self._tokenizer.decode_bytes([token])[skip:]
        if not behind:
            return True
        if (id_ := self._tokenizer.ids.get(behind)) is not None:
            return bool(self._allowed_V[id_])
        ids = self._tokenizer.encode(behind)
        return self._matcher.validate_tokens(ids) == len(ids)


# ---- JSON schemas and errors ------------------------------------------------------------------------------

_SCHEMA = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else",
           "propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema")  # fmt: skip
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_KEYWORDS = {
    *_SCHEMA, *_SCHEMAS, *_NAMED_SCHEMAS, "$anchor", "$comment", "$id", "$ref", "$schema", "const",
    "contentEncoding", "contentMediaType", "default", "dependentRequired", "deprecated", "description",
    "discriminator", "enum", "example", "examples", "exclusiveMaximum", "exclusiveMinimum", "format",
    "maxContains", "maximum", "maxItems", "maxLength", "maxProperties", "minContains", "minimum", "minItems",
    "minLength", "minProperties", "multipleOf", "nullable", "pattern", "readOnly", "required", "title",
    "type", "uniqueItems", "writeOnly",
}  # fmt: skip


def check_schema(root: Any) -> None:
    """Check that all keywords of a JSON schema are known, all references its own, else ValueError."""
    patterns, joins = 0, False
    for schema in _schemas(root):
        keyed = schema.get("patternProperties")
        patterns += ("pattern" in schema) + (len(keyed) if isinstance(keyed, dict) else 0)
        joins |= "allOf" in schema or keyed is not None or {"$ref", "pattern"} <= schema.keys()
        if unknown := [name for name in schema if name not in _KEYWORDS]:
            raise ValueError(f"unknown keyword {unknown[0]!r}")
        if not str(reference := schema.get("$ref", "#")).startswith("#"):
            raise ValueError(f"$ref {reference!r} leads out of the schema, and nothing is fetched")
    if joins and patterns > _MOST_JOINED:
        raise ValueError(f"it may have {_MOST_JOINED} patterns at most, since it joins some")


def _check_joins(spec: GrammarSpec) -> None:
    """Refuse with ValueError a grammar that could join too many patterns by `&`, or by a schema in it."""
    if spec.kind == "grammar" and sum(map(spec.text.count, ("&", "attern", "\\u"))) > _MOST_JOINED:
        raise ValueError(f"it may have {_MOST_JOINED} patterns or & at most")


def _schemas(root: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema that is an object, itself too."""
    if not isinstance(root, dict | bool):
        raise ValueError("a schema is a JSON object")  # noqa: TRY004  (the caller's error)
    pending = [root]
    while pending:
        schema = pending.pop()
        if not isinstance(schema, dict):  # true and false, or what llguidance refuses
            continue
        yield schema
        pending += [schema[name] for name in _SCHEMA if name in schema]
        for name in _SCHEMAS:
            pending += schema[name] if isinstance(schema.get(name), list) else []
        for name in _NAMED_SCHEMAS:
            pending += schema[name].values() if isinstance(schema.get(name), dict) else []


def _one_line(error: str) -> str:
    """The line of a message of llguidance that says what is wrong."""
    found = re.search(r"^error: (.+)$", error, re.MULTILINE)
    line = found[1] if found else error.strip().split("\n")[0]
    return line if len(line) <= 200 else f"{line[:200]}..."
