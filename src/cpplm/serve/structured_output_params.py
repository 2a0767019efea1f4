"""The form of answers in requests: as OpenAI names it, and as vLLM and llama.cpp do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cpplm.generate.grammar import GrammarKind, GrammarSpec
from cpplm.generate.valid_cpp import CppContext, cpp_context

Schema = dict[str, Any] | bool


class Loose(BaseModel):
    """Fields that are not known mean nothing."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class NamedSchema(Loose):
    """A schema as OpenAI has it: answers keep to it, whatever `strict` says."""

    schema_: Schema = Field(alias="schema")


class ResponseFormat(Loose):
    """Any text, any JSON object, or JSON of a schema (in `schema`, llama.cpp's form, too)."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Schema | None = Field(None, alias="schema")

    @property
    def schema_or_none(self) -> Schema | None:
        """The schema of answers; None for any text."""
        if self.type == "text":
            return None
        named = self.json_schema.schema_ if self.json_schema is not None else self.schema_
        return {"type": "object"} if named is None else named

    @model_validator(mode="after")
    def has_schema(self) -> ResponseFormat:
        """Check that there is a schema where one is named, else ValueError."""
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise ValueError('needs "json_schema": {"name": "...", "schema": {...}}')
        return self


class FunctionName(Loose):
    """Name of a function."""

    name: str


class ToolChoice(Loose):
    """The function that an answer calls."""

    type: Literal["function"]
    function: FunctionName


class StructuredOutputs(BaseModel):
    """vLLM's form of it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    json_: Schema | str | None = Field(None, alias="json")
    regex: str | None = None
    grammar: str | None = None
    choice: list[str] | None = Field(None, min_length=1)
    json_object: bool | None = None

    @property
    def forms(self) -> tuple[tuple[GrammarKind, Any], ...]:
        """All forms, None for those that are not asked for."""
        any_object = {"type": "object"} if self.json_object else None
        return (
            ("json_schema", self.json_), ("json_schema", any_object), ("regex", self.regex),
            ("grammar", self.grammar), ("choice", self.choice),
        )  # fmt: skip


class SyntaxParams(BaseModel):
    """Syntax of completions."""

    valid: Literal["cpp"] | None = Field(None, description="Tokens that break C++'s syntax are drawn again.")

    def context(self, prompt: str, suffix: str | None) -> CppContext | None:
        """The text around a completion, where its syntax is watched."""
        return cpp_context(prompt, suffix or None) if self.valid else None


class FormParams(BaseModel):
    """Constraints on answers; one of these at most."""

    response_format: ResponseFormat | None = None
    regex: str | None = Field(None, description="Regular expression that all of the answer matches.")
    grammar: str | None = Field(None, description="Lark's form or llama.cpp's (GBNF).")
    json_schema: Schema | None = Field(None, description="llama.cpp's name.")
    guided_json: Schema | str | None = Field(None, description="vLLM's name.")
    guided_regex: str | None = Field(None, description="vLLM's name.")
    guided_grammar: str | None = Field(None, description="vLLM's name.")
    guided_choice: list[str] | None = Field(None, min_length=1, description="vLLM's name.")
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's.")

    @model_validator(mode="after")
    def has_one_form(self) -> FormParams:
        """Check that no two forms are asked for, else ValueError."""
        if len(list(self._forms())) > 1:
            raise ValueError("an answer has one form: ask for one schema, regex or grammar")
        return self

    @property
    def grammar_spec(self) -> GrammarSpec | None:
        """Grammar of answers; None for any text."""
        return next(self._forms(), None)

    def _forms(self) -> Iterator[GrammarSpec]:
        form = self.response_format.schema_or_none if self.response_format is not None else None
        values: list[tuple[GrammarKind, Any]] = [
            *(("json_schema", each) for each in (form, self.json_schema, self.guided_json)),
            *(("regex", each) for each in (self.regex, self.guided_regex)),
            *(("grammar", each) for each in (self.grammar, self.guided_grammar)),
            ("choice", self.guided_choice),
            *(self.structured_outputs.forms if self.structured_outputs is not None else ()),
        ]
        for kind, value in values:
            if value is not None:
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                yield GrammarSpec(kind, text)
