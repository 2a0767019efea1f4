"""A checkpoint of a plain Llama as a GGUF file, which llama.cpp and what is built on it run.

Matrices have the type that was asked for, embedding and output head too; norms are float32. The format is
described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cpplm.core.errors import UserError, import_extra
from cpplm.core.locking import exclusive_lock
from cpplm.export import llama
from cpplm.export.card import model_name
from cpplm.export.hf import ExportResult, left_out
from cpplm.export.settings import GgufType
from cpplm.model.config import NORM_EPSILON, ModelConfig
from cpplm.tokenizer.export import chat_template, merges, token_names
from cpplm.tokenizer.special_tokens import (
    BOS,
    EOS,
    FIM_MIDDLE,
    FIM_PREFIX,
    FIM_SUFFIX,
    NAMED_TOKENS,
    NUM_SPECIAL,
    PAD,
    SPECIAL_IDS,
)
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.weights import load_model

if TYPE_CHECKING:
    from gguf import GGUFWriter

PRETOKENIZER = "superbpe"
"""Of those that llama.cpp has the one that cuts C++ most nearly as ours does (docs/export.md)."""
BLOCK = 32  # weights of a row that are quantized together
_QUANTIZED = ("Q8_0", "Q4_0", "Q4_1")
_NAMES = {
    "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def export_to_gguf(
    checkpoint: Checkpoint,
    out: Path,
    *,
    run: str = "",
    gguf_type: GgufType = "F16",
    license_expression: str = "",
    overwrite: bool = False,
) -> ExportResult:
    """Write the file, whole or not at all.

    Args:
        checkpoint: of the model.
        out: the file.
        run: where the checkpoint is from, for the model's name.
        gguf_type: of the matrices.
        license_expression: of the model, for the metadata.
        overwrite: replace an earlier file.

    Raises:
        UserError: the model is no plain Llama, `out` may not be written, the disk is full, the checkpoint is
            damaged, or the package is missing.
    """
    config = checkpoint.config()
    llama.refuse_other_models(config)
    _refuse_widths(config, gguf_type)
    out = out.expanduser().resolve()
    unfinished = out.with_name(f".{out.name}.unfinished")
    with exclusive_lock(out):
        if out.is_dir() or (out.exists() and not overwrite):
            raise UserError(f"{out} exists", fix="Name another file as --out, or add --overwrite.")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            writer = _writer(unfinished)
            writer.add_name(model_name(run))
            if license_expression:
                writer.add_license(license_expression)
            _add_shape(writer, config)
            _add_tokenizer(writer, checkpoint.tokenizer(), supports_fim=checkpoint.supports_fim)
            parameters, size = _add_weights(writer, checkpoint, gguf_type)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            with unfinished.open("rb+") as file:
                os.fsync(file.fileno())
            unfinished.replace(out)
        except OSError as error:
            raise UserError(
                f"cannot write {out}: {error.strerror or error}",
                fix="Free some space or check the permissions, then run the same command again.",
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)
    return ExportResult(out, checkpoint.step, left_out(config), size, parameters)


def _writer(path: Path) -> GGUFWriter:
    return import_extra("gguf", "--to gguf needs", "compress").GGUFWriter(path, "llama")


def _refuse_widths(config: ModelConfig, gguf_type: GgufType) -> None:
    """Rows are quantized in whole blocks."""
    widths = (config.model_dim, config.num_heads * config.head_dim, config.mlp_dim)
    if gguf_type in _QUANTIZED and any(width % BLOCK for width in widths):
        raise UserError(
            f"{gguf_type} wants widths that are multiples of {BLOCK}; this model's are {widths}",
            fix="Use --gguf_type F16.",
        )


def _add_shape(writer: GGUFWriter, config: ModelConfig) -> None:
    writer.add_type("model")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.model_dim)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.mlp_dim)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)


def _add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer, *, supports_fim: bool) -> None:
    """Byte-pair merges in the form of GPT-2's tokenizer."""
    from gguf import TokenType  # noqa: PLC0415  (an optional package)

    names = token_names(tokenizer)
    types = [TokenType.CONTROL] * len(NAMED_TOKENS) + [TokenType.UNUSED] * (NUM_SPECIAL - len(NAMED_TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRETOKENIZER)
    writer.add_token_list(names)
    writer.add_token_types(types + [TokenType.NORMAL] * (len(names) - NUM_SPECIAL))
    writer.add_token_merges([f"{left} {right}" for left, right in merges(names[NUM_SPECIAL:])])
    writer.add_add_bos_token(True)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(SPECIAL_IDS["<|assistant_end|>"])
    writer.add_eom_token_id(BOS)  # begins the next document, so it ends a text, too
    writer.add_pad_token_id(PAD)
    if supports_fim:
        for part, id_ in (("pre", FIM_PREFIX), ("suf", FIM_SUFFIX), ("mid", FIM_MIDDLE)):
            writer.add_uint32(f"tokenizer.ggml.fim_{part}_token_id", id_)
    writer.add_chat_template(chat_template())


def _add_weights(writer: GGUFWriter, checkpoint: Checkpoint, gguf_type: GgufType) -> tuple[int, int]:
    """Returns the number of parameters and their bytes."""
    from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, LlamaFileType, quants  # noqa: PLC0415  (as above)

    of_all = "ALL_F32" if gguf_type == "F32" else f"MOSTLY_{gguf_type}"
    writer.add_file_type(LlamaFileType[of_all])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    model = load_model(checkpoint, device=torch.device("cpu"), compute_dtype=torch.float32)
    parameters = size = 0
    for name, weight in llama.exported_weights(model.config, model.state_dict()).items():
        kind = GGMLQuantizationType[gguf_type if weight.dim() > 1 else "F32"]
        data: Any = quants.quantize(_as_in_llama_cpp(model.config, name, weight).numpy(), kind)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
        parameters, size = parameters + weight.numel(), size + data.nbytes
    return parameters, size


def _as_in_llama_cpp(config: ModelConfig, name: str, weight: Tensor) -> Tensor:
    rotated = name.endswith(("q_proj.weight", "k_proj.weight"))
    return (llama.interleaved(config, weight) if rotated else weight).contiguous()


def _gguf_name(name: str) -> str:
    """That of llama.cpp: `model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight`."""
    module = name.removesuffix(".weight")
    if not module.startswith("model.layers."):
        return f"{_NAMES[module]}.weight"
    layer, _, part = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_NAMES[part]}.weight"
