"""POST /tokenize and /detokenize and GET /props, in the form of llama.cpp's server.

Fields as in the README of llama.cpp's `tools/server`, with one difference: names of special tokens in a text
are text unless `parse_special` is set, which is true by default there.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from cpplm import __version__
from cpplm.generate.settings import SamplingSettings
from cpplm.serve.errors import response_docs
from cpplm.serve.request_builder import RequestBuilder, off_event_loop
from cpplm.serve.request_models import BasicSampling, RequestBody, TokenId
from cpplm.serve.structured_output_params import Loose
from cpplm.tokenizer.export import chat_template
from cpplm.tokenizer.special_tokens import BOS, EOS, SPECIAL_TOKENS


class TokenizeRequest(Loose, RequestBody):
    """POST /tokenize."""

    content: str
    add_special: bool = Field(default=False, description="Put <BOS> in front.")
    parse_special: bool = Field(default=False, description="Names of special tokens become these tokens.")
    with_pieces: bool = Field(default=False, description="Give the text of each token, too.")


class TokenPiece(BaseModel):
    """A token with its text."""

    id: int
    piece: str | list[int]
    """Its bytes where they are no whole characters."""


class TokenizeResponse(BaseModel):
    """Response of POST /tokenize."""

    tokens: list[int] | list[TokenPiece]


class DetokenizeRequest(Loose, RequestBody):
    """POST /detokenize."""

    tokens: list[TokenId]


class DetokenizeResponse(BaseModel):
    """Response of POST /detokenize."""

    content: str


class GenerationDefaults(BaseModel):
    """Settings of a request that gives none."""

    n_ctx: int
    params: dict[str, Any]


class Props(BaseModel):
    """Response of GET /props."""

    default_generation_settings: GenerationDefaults
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str


def generation_settings(settings: SamplingSettings) -> dict[str, Any]:
    """Sampling settings by llama.cpp's names."""
    return {
        "n_predict": settings.max_new_tokens, "seed": settings.seed, "temperature": settings.temperature,
        "top_k": settings.top_k, "top_p": settings.top_p, "min_p": settings.min_p,
        "repeat_penalty": settings.repetition_penalty, "stop": list(settings.stop),
    }  # fmt: skip


def add_llama_cpp(routes: APIRouter, builder: RequestBuilder, *, slots: int) -> None:
    """Add the three routes; `slots` is how many completions are written at a time."""
    tokenizer = builder.model.engine.tokenizer

    def encode(request: TokenizeRequest) -> list[int]:
        to_ids = tokenizer.encode_with_special if request.parse_special else tokenizer.encode
        return [BOS] * request.add_special + to_ids(request.content)

    @routes.post("/tokenize", responses=response_docs(TokenizeResponse), summary="The tokens of a text")
    async def tokenize(request: TokenizeRequest) -> TokenizeResponse:
        """Tokenize a text of any length."""
        ids = await off_event_loop(lambda: encode(request), len(request.content))
        if not request.with_pieces:
            return TokenizeResponse(tokens=ids)
        return TokenizeResponse(
            tokens=[TokenPiece(id=id_, piece=_piece(tokenizer.decode_bytes([id_]))) for id_ in ids]
        )

    @routes.post("/detokenize", responses=response_docs(DetokenizeResponse), summary="The text of tokens")
    async def detokenize(request: DetokenizeRequest) -> DetokenizeResponse:
        """Special tokens appear by name, bytes that are no character as U+FFFD."""
        builder.check_ids(request.tokens, "tokens")
        return DetokenizeResponse(content=tokenizer.decode(request.tokens))

    @routes.get("/props", responses=response_docs(Props), summary="The server's properties")
    async def props() -> Props:
        """Context, defaults and the format of conversations."""
        defaults = builder.sampling(BasicSampling.model_validate({"seed": -1}))
        return Props(
            default_generation_settings=GenerationDefaults(
                n_ctx=builder.model.context, params=generation_settings(defaults)
            ),
            total_slots=slots,
            model_alias=builder.model.name,
            model_path=builder.model.path,
            chat_template=chat_template(),
            modalities={"vision": False, "audio": False},
            bos_token=SPECIAL_TOKENS[BOS],
            eos_token=SPECIAL_TOKENS[EOS],
            build_info=f"cpplm {__version__}",
        )


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
