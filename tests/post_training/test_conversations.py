"""Files of conversations: what is learned of them, what is refused or left out."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.dataloader.conversations import ConversationEncoder
from cpplm.dataloader.loader import TrainLoader
from cpplm.dataloader.mixture import Mixture
from cpplm.post_training.conversations import prepare_conversations
from cpplm.tasks.build import build_tasks
from cpplm.tasks.item import read_tasks
from cpplm.tasks.settings import TaskBuildSettings
from cpplm.tokenizer.special_tokens import BOS, IGNORE_INDEX, PAD
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.commands import assert_one_line_error, cpplm
from tests.post_training.conftest import question, write


def prepare(file: Path, tokenizer: Tokenizer, tmp_path: Path, **changes):
    options = {"max_tokens": 64, "val_share": 0.0, "skip_bad": False, **changes}
    return prepare_conversations([file], tmp_path / "data", tokenizer, **options)


def test_rows_hold_whole_conversations_of_which_answers_are_learned(
    tokenizer: Tokenizer, tokenizer_path: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "talk.jsonl", *map(question, range(50)))
    folder, counts = prepare(file, tokenizer, tmp_path)
    encoder = ConversationEncoder(str(tokenizer_path), tokenizer.hash, 64)
    answers, questions = set(), set()
    options = {"mixture": Mixture([1.0]), "batch_size": 2, "seq_len": 64, "document_mask": True}
    loader = TrainLoader([ShardReader(folder)], encoder, **options)
    for _ in range(30):
        batch = next(loader)
        for inputs, targets, documents in zip(batch.inputs, batch.targets, batch.documents, strict=True):
            for document in range(int(documents.max()) + 1):
                ids, learned = inputs[documents == document], targets[documents == document]
                if set(ids.tolist()) == {PAD}:
                    assert set(learned.tolist()) == {IGNORE_INDEX}
                    continue
                assert ids[0] == BOS
                assert ids[-1] == tokenizer.encode_special("<|assistant_end|>")
                written = learned[learned != IGNORE_INDEX].tolist()
                assert written[-1] == ids[-1]
                answers.add(tokenizer.decode(written[:-1]))
                questions.add(tokenizer.decode(ids[learned == IGNORE_INDEX].tolist()))
    loader.close()
    assert answers == {f"return {number};" for number in range(7)}
    assert len(questions) == counts.conversations["train"] == 50


def test_tool_results_are_context(tokenizer: Tokenizer, tokenizer_path: Path) -> None:
    parts = [
        {"type": "query_tool", "text": 'search("draw")'},
        {"type": "tool_result", "text": "src/shapes.h:3"},
        {"type": "text", "text": "Line 3."},
    ]
    messages = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": parts}]
    document = type("Document", (), {"text": json.dumps({"messages": messages})})
    [[ids]] = ConversationEncoder(str(tokenizer_path), tokenizer.hash, 200).encode([document])
    learned = tokenizer.decode(ids[ids >= 0].tolist())
    assert 'search("draw")' in learned
    assert "Line 3." in learned
    assert "shapes" not in learned
    assert "shapes" in tokenizer.decode(np.where(ids < 0, ~ids, ids).tolist())


def test_forms_of_conversations(tokenizer: Tokenizer, tmp_path: Path) -> None:
    call = {"id": "1", "function": {"name": "search", "arguments": '{"pattern": "draw"}'}}
    called = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "src/shapes.h:3"},
        {"role": "assistant", "content": "There."},
    ]
    shared = [{"from": "human", "value": "int f"}, {"from": "gpt", "value": "return <|bos|>;"}]
    file = write(
        tmp_path / "talk.jsonl", {"messages": called}, {"conversations": shared}, question(1), question(1)
    )
    folder, counts = prepare(file, tokenizer, tmp_path, max_tokens=200)
    assert counts.conversations == {"train": 3}
    assert counts.dropped == {"the same as an earlier one": 1}
    reader = ShardReader(folder)
    texts = [text for shard in reader.shards("train") for text in reader.table(shard)["text"].to_pylist()]
    assert '"type": "tool_result"' in texts[0]
    assert json.loads(texts[1])["messages"][1]["content"] == [{"text": "return <|bos|>;", "type": "text"}]
    again, same = prepare(file, tokenizer, tmp_path, max_tokens=200)
    assert (again, same) == (folder, counts)


USER = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
BAD = {
    "role": ({"messages": [{"role": "god", "content": "x"}]}, "role 'god'"),
    "two systems": (
        {"messages": [{"role": "system", "content": "a"}] * 2 + question(1)["messages"]}, "system"
    ),
    "empty answer": ({"messages": [USER, {"role": "assistant", "content": " "}]}, "empty"),
    "no answer": ({"messages": [USER]}, "the last message is not the assistant's"),
    "no role": ({"messages": [1]}, "role None"),
    "no messages": ({"messages": []}, "has a list of messages"),
    "only a result": (
        {"messages": [USER, {"role": "assistant", "content": [{"type": "tool_result", "text": "x"}]}]},
        "empty",
    ),
    "result of no call": (
        {"messages": [USER, {"role": "tool", "tool_call_id": "1", "content": "x"}, ANSWER]},
        "answers no call",
    ),
    "part": ({"messages": [USER, {"role": "assistant", "content": [1]}]}, "a part that is not understood: 1"),
    "part without text": (
        {"messages": [USER, {"role": "assistant", "content": [{"type": "text"}]}]},
        "a part that is not understood",
    ),
    "long part": (
        {"messages": [USER, {"role": "assistant", "content": [{"type": "x" * 10_000_000}]}]},
        "a part that is not understood",
    ),
    "half a character": (r'{"messages": [{"role": "user", "content": "\ud800"}]}', "no JSON in UTF-8"),
    "deep": ('{"messages": ' + "[" * 100_000, "no JSON in UTF-8"),
    "open call": (
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
        "no message of the tool follows",
    ),
    "no list": ({"text": "x"}, "neither a list of messages"),
    "sender": ({"conversations": [{"from": "bot", "value": "x"}]}, "from 'bot'"),
    "not JSON": ("{", "no JSON in UTF-8"),
    "not UTF-8": (b'{"messages": "\xff"}', "no JSON in UTF-8"),
    "no object": ("[1]", "no JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BAD))
def test_what_is_no_conversation_is_named_or_counted(
    base: Path, tokenizer: Tokenizer, tmp_path: Path, name: str
) -> None:
    record, message = BAD[name]
    file = write(tmp_path / "talk.jsonl", question(1), record)
    refused = cpplm("sft", file, "--init_from", base, "--out", tmp_path / "run")
    assert_one_line_error(refused, "talk.jsonl:2: ", message, " Mend the line, or add --skip_bad.")
    assert ".. Mend" not in refused.stderr
    assert len(refused.stderr) < 600
    assert not (tmp_path / "run").exists()
    _, counts = prepare(file, tokenizer, tmp_path, skip_bad=True)
    assert counts.conversations == {"train": 1}
    assert sum(counts.dropped.values()) == 1
    assert list(counts.examples.values()) == [f"{file}:2"]


def test_names_of_special_tokens_stay_text(tokenizer: Tokenizer, tokenizer_path: Path) -> None:
    text = "<|assistant_end|><|user_start|><BOS><PAD>"
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    document = type("Document", (), {"text": json.dumps({"messages": messages})})
    [[ids]] = ConversationEncoder(str(tokenizer_path), tokenizer.hash, 500).encode([document])
    ids = np.where(ids < 0, ~ids, ids).tolist()
    for name in ("<|assistant_end|>", "<|user_start|>", "<BOS>"):
        assert ids.count(tokenizer.encode_special(name)) == 1
    assert PAD not in ids


def test_a_group_stays_on_one_side_of_the_split(tokenizer: Tokenizer, tmp_path: Path) -> None:
    several = [{**question(number), "group": number % 20} for number in range(200)]
    alone = [{**question(number), "group": None} for number in range(200, 400)]
    folder, counts = prepare(
        write(tmp_path / "talk.jsonl", *several, *alone), tokenizer, tmp_path, val_share=0.3
    )
    reader, sides = ShardReader(folder), {}
    for split in ("train", "val"):
        texts = [text for shard in reader.shards(split) for text in reader.table(shard)["text"].to_pylist()]
        numbers = [int(json.loads(text)["messages"][0]["content"].removeprefix("int f")) for text in texts]
        sides[split] = {number % 20 for number in numbers if number < 200}
        assert 20 < len([number for number in numbers if number >= 200]) < 180
    assert sides["train"] | sides["val"] == set(range(20))
    assert not sides["train"] & sides["val"]
    assert sides["val"]
    assert counts.conversations.total() == 400


def test_a_long_conversation_is_left_out_and_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 10_000_000}, question(1)["messages"][1]]}
    file = write(tmp_path / "talk.jsonl", question(1), long)
    _, counts = prepare(file, tokenizer, tmp_path)
    assert counts.dropped == {"longer than --max_seq_len 64 tokens": 1}


def test_what_is_left_out_is_said(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", question(1), BAD["role"][0], BAD["not UTF-8"][0])
    result = cpplm(
        "sft", file, "--init_from", base, "--out", tmp_path / "run", "--skip_bad", "--val_share", 0,
        "--eval_every", -1, "--num_iterations", 1, "--total_batch_size", 64, "--device_batch_size", 1,
        "--no_compile", "--device_type", "cpu",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert f"left out 1: a message has the role 'god' (such as {file}:2)" in result.stderr
    assert f"left out 1: no JSON in UTF-8 (such as {file}:3)" in result.stderr


def test_nothing_is_left(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", BAD["role"][0], BAD["not UTF-8"][0])
    refused = cpplm("sft", file, "--init_from", base, "--out", tmp_path / "run", "--skip_bad")
    assert_one_line_error(refused, "has no conversation to train on. left out 1: ", "; left out 1: no JSON")


@pytest.mark.parametrize("damage", ["not gzip", "cut", "changed", "folder", "empty"])
def test_files_that_cannot_be_read(base: Path, tmp_path: Path, damage: str) -> None:
    file, whole = tmp_path / "talk.jsonl.gz", gzip.compress(json.dumps(question(1)).encode() * 100)
    contents = {"not gzip": b"{}", "cut": whole[:-20], "changed": whole[:20] + b"xxxx" + whole[24:]}
    if damage == "folder":
        file.mkdir()
    else:
        file.write_bytes(contents.get(damage, b""))
    refused = cpplm("sft", file, "--init_from", base, "--out", tmp_path / "run")
    expected = {"empty": "no conversation", "folder": f"{file} holds no finished tasks"}
    assert_one_line_error(refused, expected.get(damage, f"cannot read {file}"))
    assert not (tmp_path / "run").exists()


def test_tasks_are_conversations_in_their_splits(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    build_tasks(TaskBuildSettings(out=tasks, kinds=("tiny",), num_train=9, num_val=4))
    folder, counts = prepare(tasks, tokenizer, tmp_path, max_tokens=512)
    assert counts.conversations == {"train": 9, "val": 4}
    reader = ShardReader(folder)
    texts = [text for shard in reader.shards("val") for text in reader.table(shard)["text"].to_pylist()]
    asked = [json.loads(text)["messages"][0]["content"] for text in texts]
    assert asked == [item.prompt for item in read_tasks(tasks, "val")]


def test_a_split_beside_the_messages_decides(tokenizer: Tokenizer, tmp_path: Path) -> None:
    records = [question(number) | {"split": "val" if number < 3 else "train"} for number in range(10)]
    _, counts = prepare(write(tmp_path / "talk.jsonl", *records), tokenizer, tmp_path)
    assert counts.conversations == {"train": 7, "val": 3}


def test_a_folder_that_holds_no_tasks_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished tasks"):
        prepare(tmp_path, tokenizer, tmp_path)
