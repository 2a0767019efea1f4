"""Files of conversations, in the usual forms, to shards that `cpplm.dataloader` packs.

One JSON object per line:

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
                            as of OpenAI's API: roles system, user, assistant and tool, calls in `tool_calls`;
                            or an assistant's content in parts, as `cpplm.tokenizer.conversations` reads them
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
                            ShareGPT's: system, human, gpt
    {"ids": [5, ~7, ...]}   tokens, complemented where they are context: what 'cpplm rl' sampled

A `group` beside them (a project, a document) keeps records of one group on one side of the split; a `split`
of train or val says on which. Folders of `cpplm tasks build` are read too.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.shards import COMPLETE, MANIFEST, SPLITS, Shard, Split, write_manifest, write_shard
from cpplm.core.storage import Storage
from cpplm.generate.conversation import conversation_turns
from cpplm.tasks.item import read_tasks, require_task_folder
from cpplm.tokenizer.conversations import PARTS, RenderedConversation, render_conversation
from cpplm.tokenizer.tokenizer import Tokenizer

_SCHEMA = pa.schema({"text": pa.string(), "tokens": pa.int32(), "supervised": pa.int32()})
_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_LONGEST_LINE = 64_000_000
_SHARD_BYTES = 32_000_000
_FORMAT = 1  # raised when the same files give other shards


class ChatTokenizer(Protocol):
    """A tokenizer of another library, with a template for conversations."""

    hash: str
    """Of all that decides what it encodes."""

    def encode_record(self, record: Mapping[str, Any]) -> RenderedConversation:
        """The conversation of a record.

        Raises:
            UserError: it is none, or the template cannot tell it.
        """


@dataclass
class ConversationCounts:
    """Counts of the records of some files, kept and dropped.

    Attributes:
        conversations: by split.
        tokens, supervised: of those to train on; supervised are those that the assistant writes.
        dropped: by reason.
        examples: of each reason the first record, by file and line.
    """

    conversations: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    supervised: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, split: Split, row: Mapping[str, Any]) -> None:
        """Count a conversation."""
        self.conversations[split] += 1
        if split == "train":
            self.tokens += row["tokens"]
            self.supervised += row["supervised"]

    def drop(self, reason: str, where: str) -> None:
        """Count a record that is left out."""
        self.dropped[reason] += 1
        self.examples.setdefault(reason, where)


def prepare_conversations(
    files: Sequence[Path],
    folder: Path,
    tokenizer: Tokenizer | ChatTokenizer,
    *,
    max_tokens: int,
    val_share: float,
    skip_bad: bool,
) -> tuple[Path, ConversationCounts]:
    """Check conversations and write them as shards, unless that was done before.

    Args:
        files: JSON lines, plain or gzip.
        folder: for the shards, in a folder named after all that they depend on.
        tokenizer: of the model.
        max_tokens: longer conversations are dropped and counted: cut, they would teach to stop anywhere.
        val_share: of the conversations held out.
        skip_bad: whether what is no conversation is dropped and counted instead of refused.

    Returns:
        The folder of the shards, and what became of the records.

    Raises:
        UserError: a file cannot be read, a record is no conversation, or nothing is left to train on.
    """
    key = hashlib.sha256(f"{_FORMAT} {tokenizer.hash} {max_tokens} {val_share} {skip_bad}".encode())
    for tasks in filter(Path.is_dir, files):
        require_task_folder(tasks)
    for file in [part for each in files for part in (sorted(each.glob("*.parquet")) or [each])]:
        try:
            with _open(file) as lines:
                key.update(hashlib.file_digest(lines, "sha256").digest())
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"cannot read {file}: {error}", fix="Check the file.") from error
    out = folder / key.hexdigest()[:16]
    storage = Storage(out, create=True)
    if storage.exists(COMPLETE):
        found = storage.read_json(MANIFEST)["counts"]
        return out, ConversationCounts(**{**found, "dropped": Counter(found["dropped"])})
    counts = ConversationCounts()
    writer = _ShardWriter(storage)
    seen: set[bytes] = set()
    for where, record in _records(files, counts, skip_bad=skip_bad):
        row = _row(record, where, tokenizer, counts, max_tokens=max_tokens, skip_bad=skip_bad)
        digest = b"" if row is None else hashlib.sha256(row["text"].encode()).digest()
        if row is not None and digest in seen:
            counts.drop("the same as an earlier one", where)
        elif row is not None:
            seen.add(digest)
            group = digest if record.get("group") is None else str(record["group"]).encode()
            split = record["split"] if record.get("split") in SPLITS else _split(group, val_share)
            counts.add(split, row)
            writer.add(split, row)
    if not counts.conversations["train"]:
        dropped = describe_dropped(counts).replace("\n", "; ")
        raise UserError(f"{files[0]} has no conversation to train on", fix=dropped)
    write_manifest(storage, writer.finish(), kind="conversations", counts=vars(counts))
    return out, counts


class _ShardWriter:
    """Rows to shards of some size."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._shards: list[Shard] = []
        self._waiting: dict[Split, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        self._sizes = dict.fromkeys(SPLITS, 0)

    def add(self, split: Split, row: dict[str, Any]) -> None:
        """Take a row; it is written with others."""
        self._waiting[split].append(row)
        self._sizes[split] += len(row["text"])
        if self._sizes[split] > _SHARD_BYTES:
            self._write(split)

    def finish(self) -> list[Shard]:
        """Write what is left; all shards."""
        for split in SPLITS:
            if self._waiting[split]:
                self._write(split)
        return self._shards

    def _write(self, split: Split) -> None:
        number = sum(shard.split == split for shard in self._shards)
        self._shards.append(write_shard(self._storage, split, number, self._waiting[split], _SCHEMA))
        self._waiting[split], self._sizes[split] = [], 0


def describe_dropped(counts: ConversationCounts) -> str:
    """One line for each reason for which records were left out."""
    return "\n".join(
        f"left out {count:,}: {reason} (such as {counts.examples[reason]})"
        for reason, count in sorted(counts.dropped.items())
    )


def _records(
    files: Sequence[Path], counts: ConversationCounts, *, skip_bad: bool
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of all files, each with its place."""
    for file in files:
        if file.is_dir():
            yield from _tasks(file)
            continue
        # Short files have no bar, so that an error is one line.
        bar = progress_bar(None, f"read {file.name}", " conversations", delay=2.0)
        with _open(file) as lines, bar:
            for number, line in enumerate(_lines(lines), start=1):
                record, reason = _record(line)
                if record is not None:
                    yield f"{file}:{number}", record
                elif reason and not skip_bad:
                    raise UserError(f"{file}:{number}: {reason}", fix="Mend the line, or add --skip_bad.")
                elif reason:
                    counts.drop(reason.partition(":")[0], f"{file}:{number}")
                bar.update()


def _tasks(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The conversations of a folder of tasks, in their splits."""
    for split in SPLITS:
        for item in read_tasks(folder, split):
            if item.prompt:
                yield f"{folder}: {item.key}", {"messages": item.messages, "split": split}


def _lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    """The lines of a file; of one that is too long the beginning, longer than the limit."""
    while line := file.readline(_LONGEST_LINE + 1):
        yield line
        while len(line) > _LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(_LONGEST_LINE + 1)


def _record(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The object of a line, or the reason why there is none; neither of an empty one."""
    if len(line) > _LONGEST_LINE:
        return None, f"longer than {_LONGEST_LINE:,} bytes"
    try:
        record = json.loads(line.decode()) if line.strip() else None
        if b"\\u" in line:  # an escape may stand for half a character, which UTF-8 does not have
            json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return None, f"no JSON in UTF-8: {error}"
    if isinstance(record, dict):
        return record, ""
    return None, "no JSON object" if line.strip() else ""


def _open(file: Path) -> io.BufferedIOBase:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


def _row(
    record: Mapping[str, Any],
    where: str,
    tokenizer: Tokenizer | ChatTokenizer,
    counts: ConversationCounts,
    *,
    max_tokens: int,
    skip_bad: bool,
) -> dict[str, Any] | None:
    """The row of a conversation; None for one that is left out."""
    try:
        text, rendered = _render(record, tokenizer)
    except UserError as error:
        reason = f"{str(error).rstrip('.'):.300}"
        if not skip_bad:
            raise UserError(f"{where}: {reason}", fix="Mend the line, or add --skip_bad.") from error
        counts.drop(re.sub(r"\bmessage \d+", "a message", reason.partition(". ")[0]), where)
        return None
    if len(rendered.ids) > max_tokens:
        counts.drop(f"longer than --max_seq_len {max_tokens:,} tokens", where)
        return None
    return {"text": text, "tokens": len(rendered.ids), "supervised": sum(rendered.mask)}


def _render(
    record: Mapping[str, Any], tokenizer: Tokenizer | ChatTokenizer
) -> tuple[str, RenderedConversation]:
    """The text of the row, as `cpplm.dataloader.conversations` reads it, and its tokens."""
    if "ids" in record:
        return _render_ids(record["ids"], tokenizer)
    if not isinstance(tokenizer, Tokenizer):
        rendered = tokenizer.encode_record(record)
        return json.dumps({"ids": mark_context(rendered.ids, rendered.mask)}), rendered
    turns = conversation_turns(openai_messages(record))
    rendered = render_conversation(tokenizer, {"messages": turns}, max_tokens=2**62)
    require_answers(turns)
    return json.dumps({"messages": turns}, ensure_ascii=False, sort_keys=True), rendered


def mark_context(ids: Sequence[int], written: Sequence[Any]) -> list[int]:
    """Ids with those complemented that the model has not written."""
    return [id_ if own else ~id_ for id_, own in zip(ids, written, strict=True)]


def _render_ids(ids: Any, tokenizer: Tokenizer | ChatTokenizer) -> tuple[str, RenderedConversation]:
    if not isinstance(tokenizer, Tokenizer):
        raise UserError("rows of ids are for models of cpplm")
    if not isinstance(ids, list) or not all(
        type(id_) is int and -tokenizer.vocab_size <= id_ < tokenizer.vocab_size for id_ in ids
    ):
        raise UserError(
            f"ids are a list of whole numbers, of which the tokenizer has {tokenizer.vocab_size:,}"
        )
    mask = [int(id_ >= 0) for id_ in ids]
    if not any(mask[1:]):
        raise UserError("no id is to be learned")
    return json.dumps({"ids": ids}), RenderedConversation([max(id_, ~id_) for id_ in ids], mask)


def require_answers(turns: Sequence[Mapping[str, Any]]) -> None:
    """Refuse with UserError a conversation that ends with no answer, or whose assistant writes nothing."""
    if turns[-1]["role"] != "assistant":
        raise UserError("the last message is not the assistant's")
    for turn in turns:
        if turn["role"] == "assistant" and not any(
            part["text"].strip() for part in turn["content"] if PARTS[part["type"]][2]
        ):
            raise UserError("a message of the assistant is empty")


def openai_messages(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The messages of a record, ShareGPT's as those of OpenAI's API."""
    if isinstance(record.get("messages"), list):
        return record["messages"]
    entries = record.get("conversations")
    if not isinstance(entries, list):
        raise UserError("there is neither a list of messages nor one of conversations")
    messages = []
    for number, entry in enumerate(entries):
        sender, value = (entry.get("from"), entry.get("value")) if isinstance(entry, dict) else (None, None)
        if sender not in _ROLES or not isinstance(value, str):
            raise UserError(
                f"message {number} is from {sender!r}", fix=f"ShareGPT's are: {', '.join(_ROLES)}."
            )
        messages.append({"role": _ROLES[sender], "content": value})
    return messages


def _split(key: bytes, val_share: float) -> Split:
    """The side of the split: by a hash, so that more data moves nothing."""
    return "val" if int.from_bytes(hashlib.sha256(key).digest()[:8]) < val_share * 2**64 else "train"
