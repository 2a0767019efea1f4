"""Tokens per second of decoding, against generate of transformers and llama.cpp.

    python benchmarks/decode.py [--depth 12] [--batches 1 16] [--dtype auto] [--threads 2] [--turns 5]
                                [--contenders NAME ...] [--reading 512] [--device cuda]

Each contender has a process of its own and takes turns: our scheduler on the preset "seed", which has no
tables, and on the default preset; the very same weights as `cpplm export --to hf` writes them; and
`LlamaForCausalLM` with as many layers, heads and parameters as the preset "seed", untied. All have the same
number format, and transformers runs its own with `generate`. Weights are random, prompts are random tokens
of one length, the likeliest token is taken. The time of one token is that of all minus that of the first, so
that reading the prompt does not count.

Where llama-cpp-python is installed, if only in a folder that PYTHONPATH names, the preset "llama" takes turns
too: by our scheduler, in bfloat16 and packed in 4 bits, and, the same weights, by llama.cpp in several of its
number formats. For these, tokens per second of reading a prompt of `--reading` tokens are a figure of their
own.

    python benchmarks/decode.py --run RUN --data CORPUS --drafts lookup:2 heads:1 [--prompt 128]

measures what drafts save instead: one completion at a time of the newest checkpoint of a run, with so many
tokens drafted at a time, against the same without drafts. Prompts are the beginnings of held-out documents
of a corpus, up to `--prompt` tokens; contenders write behind the same prompt in turn, in one process.

The share of the memory's bandwidth is what a token has to read (weights of matrix products, keys and values
in reach) times tokens per second, over the bandwidth of a copy, reads and writes added up, measured in turn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from decode_drafts import draft_settings, measure_drafts
from llama_cpp_peer import IS_INSTALLED, llama_cpp_generator
from measuring import (
    THREADS,
    Spread,
    command_line,
    make_llama,
    prepare_environment,
    progress,
    publish,
    ratios,
)

from cpplm.core.hardware import choose_device, choose_dtype
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.core.workers import worker_pool
from cpplm.export.hf import ENDS, export_to_hf
from cpplm.export.settings import GgufType
from cpplm.generate.grammar import GrammarCompiler, GrammarSpec
from cpplm.generate.load import prepare_for_inference
from cpplm.generate.scheduler import Scheduler
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.model.config import ModelConfig
from cpplm.model.kv_cache.view import KVCacheSpec
from cpplm.model.quantized.layers import quantize_layers
from cpplm.model.quantized.packing import (
    dense_weights,
    packed_tensors,
    quantization_record,
    quantized_weights,
)
from cpplm.model.quantized.recipe import Recipe
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import BOS, EOS, NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.save import write_checkpoint

if TYPE_CHECKING:
    from transformers import GenerationMixin

Write = Callable[[torch.Tensor, int], None]
"""Read prompts BT and write so many tokens behind each."""

COPIED = 2**28
"""Bytes of the copy that the bandwidth is measured with."""


def random_model(config: ModelConfig, dtype: torch.dtype) -> Transformer:
    """The same for every process that asks."""
    torch.manual_seed(0)
    model = Transformer(config, compute_dtype=dtype)
    model.init_weights()
    with torch.no_grad():
        model.lm_head.weight[list(ENDS)] = 0  # never the likeliest: nothing ends early
    return model


def our_writer(
    config: ModelConfig, tokenizer: Tokenizer, dtype: torch.dtype, *, recipe: str = "", schema: str = ""
) -> tuple[Write, dict[str, int]]:
    """Our scheduler, and what it reads per token.

    With a recipe the weights are packed by it; with a schema JSON of that form is written.
    """
    model = random_model(config, dtype).to(_device)
    facts = {**sizes(model, dtype), "cache_bytes": cache_bytes(model.cache_specs(), config, dtype)}
    packed = None
    if recipe:
        formats = quantize_layers(model, Recipe.parse(recipe), init="absmax")
        tensors, record = packed_tensors(model), quantization_record(model, recipe, packed=True)
        facts["weight_bytes"] = sum(
            tensor.nbytes
            for name, tensor in tensors.items()
            if name.rpartition(".")[0] in formats and "embed" not in name
        )
        model = Transformer(config, compute_dtype=dtype).to(_device)
        packed = quantized_weights(tensors, record, where=recipe)
        model.load_state_dict(dense_weights(tensors, packed))
    prepare_for_inference(model, packed)
    grammar = GrammarCompiler(tokenizer).compile(GrammarSpec("json_schema", schema)) if schema else None

    def write(ids_BT: torch.Tensor, count: int) -> None:
        scheduler = Scheduler(model, tokenizer, SchedulerLimits(max_batch=len(ids_BT), prefix_cache_tokens=0))
        for ids in ids_BT.tolist():
            settings = SamplingSettings(count, temperature=0)
            scheduler.submit(GenerationRequest(tuple(ids), settings, grammar=grammar))
        written = 0
        while not scheduler.idle:
            written += len(scheduler.step())
        assert written == len(ids_BT) * count  # a model that stops early would look fast

    return write, facts


def sizes(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, int]:
    """Parameters of all kinds, and bytes of those that every token is multiplied with."""
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weight_bytes": weights * dtype.itemsize,
    }


def cache_bytes(remembered: list[KVCacheSpec], config: ModelConfig, dtype: torch.dtype) -> int:
    """What the last token reads of the cache."""
    total = 0
    for each in remembered:
        reach = config.max_seq_len if each.lookback is None else min(each.lookback, config.max_seq_len)
        total += reach * torch.Size(each.shape).numel() * (each.dtype or dtype).itemsize
    return total


def exported_writer(
    config: ModelConfig, tokenizer: Tokenizer, dtype: torch.dtype
) -> tuple[Write, dict[str, int]]:
    """The same weights in transformers."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  (slow to import)

    files = {"config.json": json.dumps(to_dict(config)).encode(), "tokenizer.json": tokenizer.to_json()}
    with tempfile.TemporaryDirectory() as folder:
        run, exported = Path(folder, "run"), Path(folder, "exported")
        weights = {"model.safetensors": random_model(config, dtype).state_dict()}
        export_to_hf(write_checkpoint(Storage(run, create=True), 0, weights, files), exported)
        model = AutoModelForCausalLM.from_pretrained(exported, dtype=dtype, trust_remote_code=True).eval()
        model = model.to(_device)
    return partial(generate, model), sizes(model, dtype)


def llama_writer(
    config: ModelConfig, tokenizer: Tokenizer, dtype: torch.dtype
) -> tuple[Write, dict[str, int]]:
    """What transformers is at home with."""
    del tokenizer
    peer = make_llama(
        config.padded_vocab_size, config.num_layers, config.model_dim, config.num_heads,
        kv_heads=config.num_kv_heads, max_position_embeddings=config.max_seq_len,
        bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    model = peer.to(_device, dtype).eval()
    return partial(generate, model), sizes(model, dtype)


def generate(model: GenerationMixin, ids_BT: torch.Tensor, count: int) -> None:
    """`count` tokens, whatever they are."""
    from transformers import GenerationConfig  # noqa: PLC0415  (slow to import)

    settings = GenerationConfig(
        max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=EOS
    )
    mask_BT = torch.ones_like(ids_BT, device=_device)
    written = model.generate(input_ids=ids_BT.to(_device), attention_mask=mask_BT, generation_config=settings)
    assert written.size(1) == ids_BT.size(1) + count


def llama_cpp_writer(
    config: ModelConfig, tokenizer: Tokenizer, dtype: torch.dtype, *, gguf_type: GgufType
) -> tuple[Write, dict[str, int]]:
    """The same weights in llama.cpp."""
    return llama_cpp_generator(random_model(config, dtype), tokenizer, gguf_type, torch.get_num_threads())


LLAMA = "Llama of transformers"
OURS = {"cpplm": "exported", "cpplm, default preset": "exported, default preset"}
"""And who has the same weights."""
CONTENDERS: dict[str, tuple[Callable[..., tuple[Write, dict[str, int]]], Callable[..., ModelConfig]]] = {
    "cpplm": (our_writer, ModelConfig.seed),
    "exported": (exported_writer, ModelConfig.seed),
    "cpplm, default preset": (our_writer, ModelConfig.from_depth),
    "exported, default preset": (exported_writer, ModelConfig.from_depth),
    LLAMA: (llama_writer, ModelConfig.seed),
}
OUR_LLAMA, OUR_INT4, OUR_JSON = "cpplm, llama", "cpplm, llama int4", "cpplm, llama JSON"
SCHEMA = """{"type": "array", "minItems": 1000, "items": {"type": "object", "additionalProperties": false,
"required": ["name", "kind", "line", "tags", "place"], "properties": {
  "name": {"type": "string", "maxLength": 24}, "kind": {"enum": ["class", "struct", "enum"]},
  "line": {"type": "integer", "minimum": 1, "maximum": 99999},
  "tags": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 12}},
  "place": {"type": "object", "required": ["x"], "properties": {
    "x": {"type": "number", "maximum": 1e6}, "y": {"type": "boolean"}}}}}}"""
"""It never ends within a benchmark."""
CONTENDERS[OUR_LLAMA] = (our_writer, ModelConfig.llama)
CONTENDERS[OUR_JSON] = (partial(our_writer, schema=SCHEMA), ModelConfig.llama)
LLAMA_CPP: dict[str, GgufType] = {f"llama.cpp {kind}": kind for kind in ("BF16", "F16", "Q8_0", "Q4_0")}
if IS_INSTALLED:
    CONTENDERS[OUR_INT4] = (partial(our_writer, recipe="int4"), ModelConfig.llama)
    for _name, _type in LLAMA_CPP.items():
        CONTENDERS[_name] = (partial(llama_cpp_writer, gguf_type=_type), ModelConfig.llama)

_write: Write
_device: torch.device


def _prepare(name: str, arguments: argparse.Namespace, dtype: torch.dtype) -> dict[str, int]:
    """In the contender's process: build and warm up."""
    global _write, _device  # noqa: PLW0603  (this process is one contender)
    _device = torch.device(arguments.device)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    tokenizer = Tokenizer.load("cpp-32k")
    build, preset = CONTENDERS[name]
    config = preset(
        arguments.depth, vocab_size=tokenizer.vocab_size, head_dim=arguments.head_dim,
        max_seq_len=max(arguments.prompt + arguments.tokens, _reading(name, arguments) + 1),
    )  # fmt: skip
    _write, facts = build(config, tokenizer, dtype)
    for batch in arguments.batches:
        _measure(batch, arguments.prompt, 3, arguments.clock)
    if _reading(name, arguments):
        _measure_reading(arguments.reading)
    return facts


def _reading(name: str, arguments: argparse.Namespace) -> int:
    """Tokens of the prompt whose reading is measured."""
    return arguments.reading if name in (OUR_LLAMA, OUR_INT4, *LLAMA_CPP) else 0


def _measure_reading(length: int) -> float:
    """Tokens of a prompt per second, and the first token behind it is written."""
    ids_BT = torch.randint(NUM_SPECIAL, 30_000, (1, length))
    begin = time.perf_counter()
    _write(ids_BT, 1)
    return length / (time.perf_counter() - begin)


def _measure(batch: int, prompt: int, tokens: int, clock: str) -> float:
    """Tokens per second, of all rows together, behind the first."""
    now = time.process_time if clock == "processor" else time.perf_counter
    ids_BT = torch.randint(NUM_SPECIAL, 30_000, (batch, prompt))
    seconds = []
    for count in (1, tokens):
        begin = now()
        _write(ids_BT, count)
        seconds.append(now() - begin)
    return batch * (tokens - 1) / (seconds[1] - seconds[0])


def _copy_bandwidth(threads: int) -> float:
    """Bytes per second that a copy reads and writes: the best of three."""
    torch.set_num_threads(threads)
    # Written to once, both: what was never written is one page of zeros, which is read from a cache.
    source, target = torch.ones(COPIED, dtype=torch.uint8), torch.ones(COPIED, dtype=torch.uint8)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - begin)
    return 2 * COPIED / min(seconds)


# ---- the command ------------------------------------------------------------------------------------------


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = command_line(
        __doc__, depth=12, head_dim=64, batches=[1, 16], prompt=128, tokens=48, threads=THREADS, turns=5,
        reading=512,
    )  # fmt: skip
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--dtype", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--clock", choices=["wall", "processor"], default="wall",
        help="processor: seconds of the process's threads, where others use the machine",
    )  # fmt: skip
    parser.add_argument("--run", help="of --drafts")
    parser.add_argument("--data", help="of --drafts: the corpus")
    parser.add_argument("--drafts", type=draft_settings, nargs="+", default=[])
    parser.add_argument("--prompts", type=int, default=20, help="of --drafts")
    arguments = parser.parse_args()
    if arguments.drafts and not (arguments.run and arguments.data):
        parser.error("--drafts needs --run and --data")
    return arguments


def main() -> None:
    """Take turns, print."""
    arguments = parsed()
    prepare_environment(threads=arguments.threads)
    if arguments.drafts:
        drafts = [f"{draft.kind}:{draft.tokens}" for draft in arguments.drafts]
        publish("decode", {"settings": {**vars(arguments), "drafts": drafts}, **measure_drafts(arguments)})
        return
    dtype = choose_dtype(arguments.dtype, choose_device(arguments.device))
    names = arguments.contenders
    rates: dict[str, dict[int, list[float]]] = {n: {b: [] for b in arguments.batches} for n in names}
    reading: dict[str, list[float]] = {name: [] for name in names if _reading(name, arguments)}
    bandwidths: list[float] = []
    with ExitStack() as stack:
        pools = {name: stack.enter_context(worker_pool(1)) for name in names}
        copier = stack.enter_context(worker_pool(1))
        facts = {name: pool.submit(_prepare, name, arguments, dtype).result() for name, pool in pools.items()}
        for turn in range(arguments.turns):
            bandwidths.append(copier.submit(_copy_bandwidth, arguments.threads).result())
            for batch in arguments.batches:
                for name, pool in pools.items():
                    lengths = batch, arguments.prompt, arguments.tokens
                    measured = pool.submit(_measure, *lengths, arguments.clock)
                    rates[name][batch].append(measured.result())
                    progress(
                        f"{turn + 1}/{arguments.turns} {name}, {batch}: {rates[name][batch][-1]:.1f} tokens/s"
                    )
            for name, of_turns in reading.items():
                of_turns.append(pools[name].submit(_measure_reading, arguments.reading).result())
                progress(f"{turn + 1}/{arguments.turns} {name} reads {of_turns[-1]:.1f} tokens/s")
    read = {name: Spread.of(of_turns, 1) for name, of_turns in reading.items()}
    found = figures(arguments, dtype, facts, rates, bandwidths)
    publish("decode", {**found, "tokens_read_per_second": read})


def figures(
    arguments: argparse.Namespace,
    dtype: torch.dtype,
    facts: dict[str, dict[str, int]],
    rates: dict[str, dict[int, list[float]]],
    bandwidths: list[float],
) -> dict[str, Any]:
    """What was measured, said on stderr too."""
    faster: dict[str, dict[int, Spread]] = {}
    pairs = [*OURS.items(), ("cpplm", LLAMA), (OUR_INT4, OUR_LLAMA), (OUR_JSON, OUR_LLAMA)]
    pairs += [(ours, peer) for ours in (OUR_LLAMA, OUR_INT4) for peer in LLAMA_CPP]
    for name, peer in (pair for pair in pairs if {*pair} <= {*rates}):
        faster[f"{name} / {peer}"] = {b: ratios(rates[name][b], rates[peer][b]) for b in arguments.batches}
        for batch, ratio in faster[f"{name} / {peer}"].items():
            progress(f"{batch} at a time: {name} is {ratio} times as fast as {peer}")
    shares = {}
    if 1 in arguments.batches:
        for name in (name for name in (*OURS, OUR_LLAMA, OUR_INT4) if name in rates):
            read = facts[name]["weight_bytes"] + facts[name]["cache_bytes"]
            turns = zip(rates[name][1], bandwidths, strict=True)
            shares[name] = Spread.of(read * rate / bandwidth for rate, bandwidth in turns)
            progress(f"one at a time: {name} reads {shares[name]} of what a copy moves")
    return {
        "settings": vars(arguments),
        "dtype": str(dtype),
        "facts": facts,
        "copy_bytes_per_second": Spread.of(bandwidths, 0),
        "share_of_bandwidth": shares,
        "tokens_per_second": {n: {b: Spread.of(r, 1) for b, r in of.items()} for n, of in rates.items()},
        "times_as_fast": faster,
    }


if __name__ == "__main__":
    main()
