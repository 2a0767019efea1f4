"""Caches: what they hold, in which order, and what is refused."""

import dataclasses
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cpplm.compress.kd import build
from cpplm.compress.kd.build import build_cache
from cpplm.compress.kd.cache import KDCache, pack, unpack
from cpplm.compress.kd.losses import distillation_loss
from cpplm.compress.kd.settings import CacheBuildSettings, KDLossSettings
from cpplm.compress.kd.stats import cache_figures
from cpplm.compress.kd.teacher import output_head
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.dataloader.fim import FimSettings
from cpplm.dataloader.loader_state import LoaderState
from cpplm.dataloader.settings import DataSettings
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import FIM_MIDDLE, IGNORE_INDEX
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.weights import load_model
from cpplm.train.data import open_readers, train_loader
from cpplm.train.distributed import SINGLE_PROCESS
from cpplm.train.settings import TrainSettings
from cpplm.train.training_length import TrainingBudget
from tests.commands import assert_one_line_error, cpplm, reported
from tests.compress.kd.conftest import BATCH, LENGTH, NUM_ROWS, write_teacher
from tests.conftest import write_corpus
from tests.texts import cpp_document, make_tokenizer


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows_of(folder: Path) -> dict[str, torch.Tensor]:
    cache = KDCache.open(str(folder))
    shards = [cache.shard(number) for number in range(len(cache.manifest.shards))]
    return {name: torch.cat([unpack(name, shard[name]) for shard in shards]) for name in shards[0]}


def teacher_model(teacher: Path) -> Transformer:
    return load_model(open_parent(str(teacher)), device=torch.device("cpu"), compute_dtype=torch.float32)


# ---- contents ---------------------------------------------------------------------------------------------


def test_rows_are_those_of_training(cache: Path, corpus: Path, teacher: Path) -> None:
    training = TrainSettings(
        data_dir=(str(corpus),), tokenizer=cache / "tokenizer.json", out=cache, max_seq_len=LENGTH,
        device_batch_size=NUM_ROWS, num_iterations=1, data=DataSettings(document_mask=True),
    )  # fmt: skip
    loader = train_loader(
        training, open_readers(training), Tokenizer.load(training.tokenizer), TrainingBudget(steps=1),
        SINGLE_PROCESS, LoaderState(),
    )  # fmt: skip
    batch, rows = next(loader), rows_of(cache)
    loader.close()
    assert torch.equal(rows["inputs"], batch.inputs)
    assert torch.equal(rows["targets"], batch.targets)
    assert torch.equal(rows["documents"], batch.documents)
    assert rows["documents"].max() > 0


def test_an_entry_is_the_distribution_of_the_token_that_follows(cache: Path, teacher: Path) -> None:
    """Computed for one position from its prefix alone, so that no shift could hide."""
    rows, model, row = rows_of(cache), teacher_model(teacher), 3
    for position in (0, 7, LENGTH - 1):
        prefix = rows["inputs"][row : row + 1, : position + 1]
        documents = rows["documents"][row : row + 1, : position + 1]
        with torch.no_grad():
            hidden = model.hidden_states(prefix, documents_BT=documents)[0, -1]
            logits = hidden @ model.lm_head.weight[: model.config.vocab_size].T
        cap = model.config.logit_softcap
        expected = (cap * torch.tanh(logits / cap)).log_softmax(0).topk(5)
        assert torch.equal(rows["topk_ids"][row, position], expected.indices)
        torch.testing.assert_close(
            rows["topk_logprobs"][row, position], expected.values, rtol=1e-3, atol=1e-4
        )
        tail = (1 - expected.values.exp().sum()).log()
        torch.testing.assert_close(rows["tail_logprob"][row, position], tail, rtol=1e-3, atol=1e-3)
        if position + 1 < LENGTH:
            assert rows["targets"][row, position] == rows["inputs"][row, position + 1]


def test_negatives_are_uniform_and_survive_the_loader(cache: Path, teacher: Path) -> None:
    batch = next(KDCache.open(str(cache)).batches(0, NUM_ROWS))
    negatives, vocab_size = batch.teacher.negative_ids_NR, teacher_model(teacher).config.vocab_size
    assert negatives is not None
    assert negatives.shape == (NUM_ROWS, LENGTH, 3)
    assert torch.equal(negatives, rows_of(cache)["negative_ids"])
    assert 0 <= negatives.min() < 5
    assert vocab_size - 5 <= negatives.max() < vocab_size
    assert abs(negatives.float().mean() / vocab_size - 0.5) < 0.03
    assert len({tuple(row.flatten().tolist()) for row in negatives}) == NUM_ROWS


def test_size(cache: Path) -> None:
    """Two bytes for each id, document number and log-probability."""
    per_token = 2 + 2 + 2 + 5 * (2 + 2) + 2 + 3 * 2
    for shard in KDCache.open(str(cache)).manifest.shards:
        assert 0 < shard.bytes - per_token * LENGTH * shard.rows < 1000  # the header
    assert [shard.rows for shard in KDCache.open(str(cache)).manifest.shards] == [8, 8, 3]


@pytest.mark.parametrize("vocab_size", [65_535, 65_536])
def test_ids_of_any_vocabulary(vocab_size: int) -> None:
    ids = torch.tensor([0, 32_768, vocab_size - 1])
    targets = torch.tensor([IGNORE_INDEX, vocab_size - 1, 40_000])
    for name, tensor in (("topk_ids", ids), ("targets", targets)):
        packed = pack(tensor, vocab_size)
        assert packed.element_size() == (2 if vocab_size == 65_535 else 4)
        assert torch.equal(unpack(name, packed), tensor)


def test_the_student_that_is_the_teacher_has_no_divergence(cache: Path, teacher: Path) -> None:
    """The whole way: from the cache's batch to the loss; log-probabilities are rounded to half precision."""
    model, batch = teacher_model(teacher), next(KDCache.open(str(cache)).batches(0, 4))
    hidden_BTC = model.hidden_states(batch.inputs, documents_BT=batch.documents)
    for kd_loss in ("topk", "topk_tail"):
        settings = KDLossSettings(kd_loss=kd_loss, sampled_ce_weight="1")  # type: ignore[arg-type]
        values = []
        for shift in (0, 1):
            head, teacher_N = output_head(model, hidden_BTC.roll(shift, 1)), batch.flat_teacher(model.device)
            loss = distillation_loss(head, batch.targets.flatten(), teacher_N, settings, progress=0.0)
            values.append(loss.parts["kd"].item())
        assert 0 <= values[0] < 1e-5
        assert values[1] > 0.1  # one position off


def test_fill_in_the_middle_is_as_in_the_teachers_training(
    build_settings: CacheBuildSettings, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    fim = FimSettings(fim_rate=1.0, syntax_fim_rate=0.0)
    teacher = write_teacher(tmp_path / "teacher", tokenizer, fim=dataclasses.asdict(fim))
    settings = dataclasses.replace(build_settings, teacher=str(teacher), num_tokens=128)
    build_cache(dataclasses.replace(settings, out=tmp_path / "as_trained"))
    build_cache(dataclasses.replace(settings, out=tmp_path / "plain", no_fim=True))
    assert (rows_of(tmp_path / "as_trained")["inputs"] == FIM_MIDDLE).any()
    plain = rows_of(tmp_path / "plain")
    assert not (plain["inputs"] == FIM_MIDDLE).any()
    assert "documents" not in plain


def test_figures(cache: Path) -> None:
    figures, rows = cache_figures(KDCache.open(str(cache))), rows_of(cache)
    mass = rows["topk_logprobs"].exp().sum(2)
    probs = rows["topk_logprobs"].exp() / mass[..., None]
    found = (rows["topk_ids"] == rows["targets"][..., None]).any(2)
    assert figures["tokens"] == figures["counted_tokens"] == NUM_ROWS * LENGTH
    assert figures["topk_mass"] == pytest.approx(mass.mean().item(), abs=1e-3)
    assert figures["topk_entropy"] == pytest.approx(-(probs * probs.log()).sum(2).mean().item(), abs=1e-3)
    assert figures["target_in_topk"] == pytest.approx(found.float().mean().item())
    assert figures["bytes_per_token"] == pytest.approx(34, abs=3)


# ---- order ------------------------------------------------------------------------------------------------


def test_batches_resume_share_rows_among_ranks_and_begin_again(cache: Path) -> None:
    reader, rows = KDCache.open(str(cache)), rows_of(cache)["inputs"]
    whole = list(itertools.islice(reader.batches(0, 4), 5))
    assert [batch.state.rows for batch in whole] == [4, 8, 12, 16, 20]
    assert torch.equal(torch.cat([batch.inputs for batch in whole]), torch.cat([rows, rows])[:20])
    later = next(reader.batches(whole[2].state.rows, 4))
    assert torch.equal(later.inputs, whole[3].inputs)
    assert torch.equal(later.teacher.topk_ids_NK, whole[3].teacher.topk_ids_NK)
    ranks = [next(reader.batches(4, 2, rank, 2)) for rank in (0, 1)]
    assert torch.equal(torch.stack([each.inputs for each in ranks], 1).flatten(0, 1), whole[1].inputs)
    assert LoaderState.merge([each.state for each in ranks]) == whole[1].state
    assert LoaderState.from_json(whole[1].state.to_json()) == whole[1].state


# ---- refusals ---------------------------------------------------------------------------------------------


def test_a_cache_of_something_else_is_refused(cache: Path) -> None:
    reader = KDCache.open(str(cache))
    made_of = {name: getattr(reader.manifest, name) for name in ("teacher", "tokenizer", "corpus")}
    reader.check(**made_of)
    for name in made_of:
        with pytest.raises(UserError, match=f"another {name}"):
            reader.check(**{**made_of, name: "0" * 64})


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_damaged_shards_are_named(cache: Path) -> None:
    text, _ = reported("compress", "cache", "verify", cache)
    assert text == "3 shards verified"
    damage(cache / "shard_00000.safetensors")
    truncated = cache / "shard_00001.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:-1])
    assert_one_line_error(
        cpplm("compress", "cache", "verify", cache),
        "shard_00000.safetensors is damaged: its hash", "shard_00001.safetensors is damaged: ",
    )  # fmt: skip
    (cache / "shard_00002.safetensors").unlink()
    assert_one_line_error(cpplm("compress", "cache", "verify", cache), "shard_00002.safetensors is missing")
    reader = KDCache.open(str(cache))
    for row, word in ((0, "shard_00000"), (8, "shard_00001"), (18, "shard_00002")):
        with pytest.raises(UserError, match=word):
            next(reader.batches(row, 1))


def test_another_cache_in_the_folder_is_refused(
    cache: Path, build_settings: CacheBuildSettings, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    settings = dataclasses.replace(build_settings, out=cache)
    before = contents(cache)
    other_words = make_tokenizer((cpp_document(number) for number in range(50)), 400)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"teacher": str(write_teacher(tmp_path / "other", tokenizer, seed=5))}, "teacher"),
        ({"teacher": str(write_teacher(tmp_path / "words", other_words))}, "tokenizer"),
        ({"corpus": str(write_corpus(tmp_path / "corpus", {"train": [40]}))}, "corpus"),
        ({"topk": 4}, "topk 5, not 4"),
        ({"seed": 1}, "seed"),
    ]
    for change, words in changes:
        with pytest.raises(UserError, match=words):
            build_cache(dataclasses.replace(settings, **change))
    build_cache(settings)
    assert contents(cache) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [({"max_seq_len": 128}, "context of 64"), ({"topk": 5000}, "tokens"), ({"num_tokens": 0}, "num_tokens")],
)
def test_what_cannot_be_built(
    build_settings: CacheBuildSettings, tmp_path: Path, change: dict[str, int], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        build_cache(dataclasses.replace(build_settings, out=tmp_path / "cache", **change))
    assert not list(tmp_path.rglob("shard*"))


def test_a_folder_with_something_else_is_left_alone(
    build_settings: CacheBuildSettings, teacher: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt"):
        build_cache(dataclasses.replace(build_settings, out=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(UserError, match="no finished cache"):
        KDCache.open(str(tmp_path))


# ---- stopping ---------------------------------------------------------------------------------------------


class StoppedError(Exception):
    """In place of kill -9."""


@pytest.mark.slow
def test_stopped_before_any_write_it_goes_on_to_the_same_bytes(
    cache: Path, build_settings: CacheBuildSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, writes, stop_at = contents(cache), itertools.count(), math.inf
    originals = {name: getattr(Storage, name) for name in ("write", "open_write", "delete")}

    def stopping(name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if next(writes) == stop_at:
                raise StoppedError
            return originals[name](*arguments)

        return call

    for name in originals:
        monkeypatch.setattr(Storage, name, stopping(name))
    build_cache(dataclasses.replace(build_settings, out=tmp_path / "whole"))
    for number in range(next(writes)):
        writes, stop_at = itertools.count(), number
        settings = dataclasses.replace(build_settings, out=tmp_path / f"stopped_{number}")
        with pytest.raises(StoppedError):
            build_cache(settings)
        assert ((settings.out / "manifest.json").exists()) == (number == 8)  # the last one deletes
        build_cache(settings)
        assert contents(settings.out) == expected
    assert number == 8  # the tokenizer, three shards with their progress, the manifest


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    build_settings: CacheBuildSettings, tmp_path: Path
) -> None:
    settings = dataclasses.replace(build_settings, num_tokens=120 * LENGTH)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    build_cache(dataclasses.replace(settings, out=whole))
    program = f"from cpplm.compress.kd import build; build.SHARD_BYTES = {build.SHARD_BYTES}; " + (
        "from cpplm.cli.main import main; main()"
    )
    command = [
        sys.executable, "-c", program, "compress", "cache", "build", settings.corpus, "--teacher",
        settings.teacher, "--out", str(killed), "--num_tokens", str(settings.num_tokens), "--topk", "5",
        "--negatives", "3", "--device_batch_size", str(BATCH), "--device_type", "cpu", "--precision", "fp32",
    ]  # fmt: skip
    for _ in range(3):
        count = len(list(killed.glob("shard*"))) if killed.exists() else 0
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            while len(list(killed.glob("shard*"))) < count + 2:
                assert process.poll() is None
                time.sleep(0.001)
            time.sleep(random.random() / 50)
            os.kill(process.pid, signal.SIGKILL)
        assert not (killed / "manifest.json").exists()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    assert contents(killed) == contents(whole)


def test_commands(build_settings: CacheBuildSettings, tmp_path: Path) -> None:
    text, figures = reported(
        "compress", "cache", "build", build_settings.corpus, "--teacher", build_settings.teacher,
        "--out", tmp_path / "cache", "--num_tokens", 128, "--device_type", "cpu",
    )  # fmt: skip
    assert "128 tokens" in text
    assert figures["tokens"] == 128
    text, figures = reported("compress", "cache", "stat", tmp_path / "cache")
    assert "top 32" in text
    assert figures["rows"] == 2
    json.dumps(figures)
    assert_one_line_error(cpplm("compress", "cache", "bulid"), "Did you mean 'cpplm compress cache build'?")
    assert_one_line_error(cpplm("compress", "cache"), "no command 'cpplm compress cache'", "cache verify")
    assert "cpplm compress cache stat" in cpplm("compress", "cache", "--help").stdout
