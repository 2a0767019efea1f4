"""llama.cpp as a contender of `decode.py`, through llama-cpp-python: rows side by side, the likeliest token.

It runs the weights of a model of ours with the preset "llama", from a file of `cpplm export --to gguf`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.export.gguf import export_to_gguf
from cpplm.export.settings import GgufType
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.save import write_checkpoint

IS_INSTALLED = importlib.util.find_spec("llama_cpp") is not None
Generate = Callable[[torch.Tensor, int], None]


def llama_cpp_generator(
    model: Transformer, tokenizer: Tokenizer, gguf_type: GgufType, threads: int
) -> tuple[Generate, dict[str, int]]:
    """Reads prompts BT and writes so many tokens behind each; and the size of the weights."""
    import llama_cpp  # noqa: PLC0415  (not there everywhere)

    files = {"config.json": json.dumps(to_dict(model.config)).encode(), "tokenizer.json": tokenizer.to_json()}
    with tempfile.TemporaryDirectory() as folder:
        weights = {"model.safetensors": model.state_dict()}
        checkpoint = write_checkpoint(Storage(Path(folder, "run"), create=True), 0, weights, files)
        exported = export_to_gguf(checkpoint, Path(folder, "model.gguf"), gguf_type=gguf_type)
        parameters = llama_cpp.llama_model_default_params()
        parameters.use_mmap = False  # the file is deleted
        llama_cpp.llama_log_set(_silent(llama_cpp), ctypes.c_void_p())
        theirs = llama_cpp.llama_model_load_from_file(str(exported.out).encode(), parameters)
    assert theirs is not None
    size, vocab_size = model.config.max_seq_len, model.config.vocab_size

    @cache
    def context(rows: int) -> Any:
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_seq_max = rows * size, rows
        options.n_batch = max(rows * size, options.n_batch)
        options.n_threads = options.n_threads_batch = threads
        options.no_perf = True
        return llama_cpp.llama_init_from_model(theirs, options)

    def generate(ids_BT: torch.Tensor, count: int) -> None:
        rows, length = ids_BT.shape
        of_rows = context(rows)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(of_rows), True)
        batch = llama_cpp.llama_batch_init(rows * length, 0, 1)
        tokens = ids_BT.tolist()
        for position in range(length, length + count):
            entries = [(row, at) for row in range(rows) for at in range(len(tokens[row]))]
            batch.n_tokens = len(entries)
            for index, (row, at) in enumerate(entries):
                last = at == len(tokens[row]) - 1
                batch.token[index] = tokens[row][at]
                batch.pos[index] = position - len(tokens[row]) + at
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
                batch.logits[index] = last
            assert llama_cpp.llama_decode(of_rows, batch) == 0
            ends = [index for index, (row, at) in enumerate(entries) if at == len(tokens[row]) - 1]
            tokens = [[_likeliest(llama_cpp, of_rows, end, vocab_size)] for end in ends]
        llama_cpp.llama_batch_free(batch)

    return generate, {"parameters": exported.parameters, "tensor_bytes": exported.bytes}


def _likeliest(llama_cpp: Any, context: Any, index: int, vocab_size: int) -> int:
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, index), (vocab_size,))
    return int(logits.argmax())


@cache
def _silent(llama_cpp: Any) -> Any:
    """A log that drops everything; it has to stay alive."""
    return llama_cpp.llama_log_callback(lambda level, text, data: None)
