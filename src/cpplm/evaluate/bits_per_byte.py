"""Bits per byte of texts, by project, kind, and how much context stood before a token.

For a text x of n bytes, as tokens t_1 ... t_m behind a start token:

    bits per byte = -1/n * sum over i of log2 p(t_i | start token, t_1 ... t_(i-1))

with at least half of the model's context before each token, or all there is (see `sliding_window.py`). The
bits of several texts are added and divided by their bytes. Bytes belong to the text and not to the tokenizer,
so any two models can be compared; 8 is what plain text takes. The interval is the bootstrap's (Efron 1979):
texts are drawn with replacement as many times as there are, 1,000 times over, and 95 % of the figures lie in
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from cpplm.core.errors import UserError
from cpplm.core.jsonl import ResumableJsonl
from cpplm.core.progress import progress_bar
from cpplm.core.text import pluralize
from cpplm.evaluate.models.code_model import CodeModel, TokenBits
from cpplm.evaluate.settings import BpbSettings
from cpplm.evaluate.texts import Text

RESAMPLES = 1000
MIN_CONTEXT = 32
MAX_CONTEXTS = 5
_SHOWN_PROJECTS = 20


def resolve_context(settings: BpbSettings, model: CodeModel) -> int:
    """The context to measure with; UserError if the model has less."""
    if settings.context > model.max_context:
        raise UserError(
            f"--context {settings.context:,}: {model.name} has {model.max_context:,} tokens in view"
        )
    return settings.context if settings.context > 0 else model.max_context


def measure_texts(
    model: CodeModel, texts: Sequence[Text], *, context: int, context_bytes: int, store: ResumableJsonl
) -> dict[str, Any]:
    """All figures, as plain JSON.

    Args:
        model: to be measured.
        texts: none of them empty.
        context: tokens in view at most.
        context_bytes: how many bytes are scored with shorter contexts too.
        store: one record per text that was scored before, in order; gets the others.

    Raises:
        UserError: the model cannot score.
    """
    left = texts[len(store.records) :]
    with progress_bar(sum(_size(text) for text in texts), "bits per byte", "B", unit_scale=True) as bar:
        bar.update(sum(_size(text) for text in texts[: len(store.records)]))
        scored = model.score([text.text for text in left], context=context)
        for text, tokens in zip(left, scored, strict=True):
            store.append(_record(text, tokens))
            bar.update(_size(text))
    records: list[dict[str, Any]] = store.records
    return {
        **figures(records),
        "loss": math.log(2) * _total(records, "bits") / max(1, _total(records, "tokens")),
        "tokens": _total(records, "tokens"),
        "context": context,
        "by_project": _groups(records, "project"),
        "by_kind": _groups(records, "kind"),
        "by_context_length": _by_tokens_in_view(records, context),
        "shorter_contexts": measure_shorter_contexts(model, texts, records, context, context_bytes),
    }


def _size(text: Text) -> int:
    return len(text.text.encode())


def _record(text: Text, tokens: TokenBits) -> dict[str, Any]:
    """The stored figures of one text; per power of two of tokens in view, the bits and the bytes."""
    sizes = np.diff(tokens.ends, prepend=0)
    power = np.log2(tokens.context.clip(1)).astype(int)
    return {
        "project": text.project,
        "kind": text.kind,
        "bytes": _size(text),
        "tokens": len(tokens.bits),
        "bits": float(tokens.bits.sum()),
        "bits_by_power": np.bincount(power, tokens.bits).tolist(),
        "bytes_by_power": np.bincount(power, sizes).astype(int).tolist(),
    }


def _total(records: Iterable[dict[str, Any]], name: str) -> Any:
    return sum(record[name] for record in records)


def figures(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Bits per byte of texts with their `bits` and `bytes`, and the interval where there are several."""
    bits = np.array([record["bits"] for record in records])
    sizes = np.array([record["bytes"] for record in records])
    result = {
        "bits_per_byte": float(bits.sum() / sizes.sum()),
        "documents": len(records),
        "bytes": int(sizes.sum()),
    }
    if len(records) > 1:
        random = np.random.default_rng(0)
        draws = (random.integers(len(records), size=len(records)) for _ in range(RESAMPLES))
        values = [bits[drawn].sum() / sizes[drawn].sum() for drawn in draws]
        result["interval"] = np.quantile(values, [0.025, 0.975]).tolist()
    return result


def _groups(records: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Figures of each group, the one with most bytes first; none where the texts have no such name."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        parts.setdefault(record[name], []).append(record)
    if set(parts) == {""}:
        return {}
    result = {group: figures(part) for group, part in parts.items()}
    return dict(sorted(result.items(), key=lambda item: (-item[1]["bytes"], item[0])))


def _by_tokens_in_view(records: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Bits per byte of the tokens behind 1, 2-3, 4-7, ... tokens."""
    longest = max(len(record["bits_by_power"]) for record in records)
    bits, sizes = np.zeros(longest), np.zeros(longest, dtype=np.int64)
    for record in records:
        bits[: len(record["bits_by_power"])] += record["bits_by_power"]
        sizes[: len(record["bytes_by_power"])] += record["bytes_by_power"]
    return [
        {
            "from": 2**power,
            "to": min(2 ** (power + 1) - 1, most),
            "bits_per_byte": float(bits[power] / sizes[power]),
            "bytes": int(sizes[power]),
        }
        for power in np.flatnonzero(sizes).tolist()
    ]


# ---- does more context help? ------------------------------------------------------------------------------


def measure_shorter_contexts(
    model: CodeModel,
    texts: Sequence[Text],
    records: Sequence[dict[str, Any]],
    context: int,
    most_bytes: int,
) -> list[dict[str, Any]]:
    """Bits per byte of the same bytes with the whole context, half of it, a quarter, ...

    The bytes are those behind the first half context of texts that are longer: with a context of c, each of
    them has between c/2 and c tokens in view. Of a long text only the beginning is taken, for more variety.
    """
    contexts = [context >> halvings for halvings in range(MAX_CONTEXTS)]
    contexts = [length for length in contexts if length >= MIN_CONTEXT]
    chosen = _long_texts(texts, records, context, most_bytes)
    if len(contexts) < 2 or not chosen:
        return []
    first = list(model.score(chosen, context=context))
    begins = [int(tokens.ends[min(context // 2, len(tokens.ends)) - 1]) for tokens in first]
    rows = []
    for length in contexts:
        scored = first if length == context else model.score(chosen, context=length)
        behind = [_behind(tokens, begin) for tokens, begin in zip(scored, begins, strict=True)]
        bits, size = sum(bits for bits, _ in behind), sum(size for _, size in behind)
        rows.append({"context": length, "bits_per_byte": bits / max(1, size), "bytes": size})
    return rows


def _long_texts(
    texts: Sequence[Text], records: Sequence[dict[str, Any]], context: int, most_bytes: int
) -> list[str]:
    """Beginnings, about two contexts long, of texts of at least three quarters of one, by their hashes."""
    long = [pair for pair in zip(texts, records, strict=True) if pair[1]["tokens"] >= 0.75 * context]
    chosen: list[str] = []
    left = most_bytes
    for text, record in sorted(long, key=lambda pair: pair[0].digest):
        if left <= 0:
            break
        size = math.ceil(2 * context * record["bytes"] / record["tokens"])
        piece = text.text.encode()[:size].decode("utf-8", "ignore")
        left -= len(piece.encode())
        chosen.append(piece)
    return chosen


def _behind(tokens: TokenBits, begin: int) -> tuple[float, int]:
    """Bits and bytes of the tokens that end behind a place."""
    return float(tokens.bits[tokens.ends > begin].sum()), int(tokens.ends[-1] - begin)


# ---- as text ----------------------------------------------------------------------------------------------


def table(result: dict[str, Any]) -> str:
    """The figures of `measure_texts` for people."""
    parts = [headline(result)]
    for name in ("kind", "project"):
        groups = list(result[f"by_{name}"].items())
        if len(groups) > 1:
            rows = [(group or "(none)", row) for group, row in groups[:_SHOWN_PROJECTS]]
            parts.append(_rows(name, rows, lambda row: pluralize(row["documents"], "document")))
            if len(groups) > len(rows):
                parts[-1] += f"\n  and {len(groups) - len(rows)} more"
    view = [(f"{row['from']:,}-{row['to']:,}", row) for row in result["by_context_length"]]
    parts.append(_rows("tokens in view", view, lambda row: f"{row['bytes']:,} bytes"))
    if result["shorter_contexts"]:
        rows = [(f"{row['context']:,}", row) for row in result["shorter_contexts"]]
        parts.append(_rows("same bytes, context of", rows, lambda row: f"{row['bytes']:,} bytes"))
    return "\n\n".join(parts)


def headline(result: dict[str, Any]) -> str:
    """One line."""
    low, high = result.get("interval", [result["bits_per_byte"]] * 2)
    return (
        f"{result['bits_per_byte']:.4f} bits per byte, 95 % interval {low:.4f} to {high:.4f} "
        f"({pluralize(result['documents'], 'document')}, {result['bytes']:,} bytes, "
        f"{result['tokens']:,} tokens, context {result['context']:,})"
    )


def _rows(title: str, rows: list[tuple[str, dict[str, Any]]], remark: Callable[[dict[str, Any]], str]) -> str:
    width = max(len(title), *(len(name) for name, _ in rows)) + 2
    lines = [f"{title:<{width}}bits per byte"]
    lines += [f"{name:<{width}}{row['bits_per_byte']:>13.4f}  {remark(row)}" for name, row in rows]
    return "\n".join(lines)
