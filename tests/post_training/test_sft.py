"""Fine-tuning on conversations: what is learned, what is left out, and that it works."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.dataloader.conversations import ConversationEncoder
from cpplm.dataloader.loader import DataSource, TrainLoader
from cpplm.post_training.conversations import prepare_conversations
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune
from cpplm.tokenizer.special_tokens import IGNORE_INDEX, PAD
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import open_run
from cpplm.train.pretrain import pretrain
from tests.train.conftest import small_settings
from tests.train.records import records


def question(number: int) -> dict:
    return {
        "messages": [
            {"role": "user", "content": f"int f{number}"},
            {"role": "assistant", "content": f"return {number % 7};"},
        ]
    }


def write(path: Path, *records: dict | str | bytes) -> Path:
    lines = [
        r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode() for r in records
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def base(corpus: Path, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = small_settings(corpus, tokenizer_path, tmp_path_factory.mktemp("base") / "run")
    pretrain(dataclasses.replace(settings, max_seq_len=64))
    return settings.out


def prepare(file: Path, tokenizer: Tokenizer, tmp_path: Path, **changes):
    options = {"max_tokens": 64, "val_share": 0.0, "skip_bad": False, **changes}
    return prepare_conversations([file], tmp_path / "data", tokenizer, **options)


def test_it_learns_the_answers(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", *map(question, range(200)))
    settings = SftSettings(
        data=(file,), init_from=str(base), out=tmp_path / "run", num_epochs=8, val_share=0.1,
        device_batch_size=4, eval_every=1000, no_compile=True, lr_scale=1.0,
    )  # fmt: skip
    fine_tune(settings)
    bits = [record["bits_per_byte"] for record in records(settings.out, "validation")]
    assert bits[-1] < 0.5 * bits[0]
    assert open_run(settings.out).stage == "sft"
    assert open_run(settings.out).parent["stage"] == "base"
    with pytest.raises(UserError, match="parent was"):  # the same folder, another parent
        fine_tune(dataclasses.replace(settings, init_from=str(tmp_path / "run"), out=settings.out))


def test_rows_hold_whole_conversations_of_which_answers_are_learned(
    tokenizer: Tokenizer, tokenizer_path: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "talk.jsonl", *map(question, range(50)))
    folder, counts = prepare(file, tokenizer, tmp_path)
    encoder = ConversationEncoder(str(tokenizer_path), tokenizer.hash, 64)
    source = DataSource(ShardReader(folder))
    answers, questions = set(), set()
    loader = TrainLoader([source], encoder, batch_size=2, seq_len=64, document_mask=True)
    for _ in range(30):
        batch = next(loader)
        for inputs, targets, documents in zip(batch.inputs, batch.targets, batch.documents, strict=True):
            for document in range(int(documents.max()) + 1):
                ids, learned = inputs[documents == document], targets[documents == document]
                if set(ids.tolist()) == {PAD}:
                    assert set(learned.tolist()) == {IGNORE_INDEX}
                    continue
                assert ids[0] == tokenizer.bos
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
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
BAD = {
    "role": ({"messages": [{"role": "god", "content": "x"}]}, "role 'god'"),
    "two systems": (
        {"messages": [{"role": "system", "content": "a"}] * 2 + question(1)["messages"]}, "system"
    ),
    "empty answer": ({"messages": [USER, {"role": "assistant", "content": " "}]}, "empty"),
    "no answer": ({"messages": [USER]}, "the last message is not the assistant's"),
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
def test_what_is_no_conversation_is_named_or_counted(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    record, message = BAD[name]
    file = write(tmp_path / "talk.jsonl", question(1), record)
    with pytest.raises(UserError, match=rf"talk\.jsonl:2: .*{message}.*--skip_bad"):
        prepare(file, tokenizer, tmp_path)
    _, counts = prepare(file, tokenizer, tmp_path, skip_bad=True)
    assert counts.conversations == {"train": 1}
    assert sum(counts.dropped.values()) == 1
    assert list(counts.examples.values()) == [f"{file}:2"]


def test_a_long_conversation_is_left_out_and_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 10_000_000}, question(1)["messages"][1]]}
    file = write(tmp_path / "talk.jsonl", question(1), long)
    _, counts = prepare(file, tokenizer, tmp_path)
    assert counts.dropped == {"longer than --max_seq_len 64 tokens": 1}


def test_a_refused_run_leaves_nothing(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", "{")
    with pytest.raises(UserError, match="no JSON"):
        fine_tune(SftSettings(data=(file,), init_from=str(base), out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_both_backends_learn_the_same(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    import cpplm.jax.backend  # noqa: F401, PLC0415  (registers itself)

    file = write(tmp_path / "talk.jsonl", *map(question, range(100)))
    losses = {}
    for backend in ("torch", "jax"):
        settings = SftSettings(
            data=(file,), init_from=str(base), out=tmp_path / backend, num_iterations=4, val_share=0.1,
            device_batch_size=4, no_compile=backend == "torch", backend=backend, precision="fp32",
            device_type="cpu",
        )  # fmt: skip
        fine_tune(settings)
        losses[backend] = [record["loss"] for record in records(settings.out, "step")]
    assert losses["jax"] == pytest.approx(losses["torch"], rel=1e-3)
