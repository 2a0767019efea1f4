"""Runs that start from another run: its weights, context and record; refusals."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.train.checkpoint.format import open_run
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.weights import load_model, load_tensors
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from tests.train.conftest import small_settings
from tests.train.records import records


@pytest.fixture(scope="module")
def base(corpus: Path, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainSettings:
    """Settings of a run that has been trained, with layers of short windows."""
    settings = small_settings(corpus, tokenizer_path, tmp_path_factory.mktemp("base") / "run")
    halves = dataclasses.replace(settings.architecture, short_window="half")
    settings = dataclasses.replace(settings, depth=3, window_pattern="SL", architecture=halves, save_every=4)
    pretrain(settings)
    return settings


def child_of(base: TrainSettings, out: Path, **changes) -> TrainSettings:
    """Settings of a run that starts from `base`; what describes the model is left to it."""
    given = {"depth": -1, "max_seq_len": -1, "init_from": str(base.out), "stage": "mid", "out": out}
    return dataclasses.replace(base, **{**given, **changes})


def load(run: Path) -> Transformer:
    return load_model(open_run(run), device=torch.device("cpu"), compute_dtype=torch.float32)


def test_it_begins_where_its_parent_stands(base: TrainSettings, tmp_path: Path) -> None:
    pretrain(child_of(base, tmp_path / "child"))
    parent, child = (records(run, "validation") for run in (base.out, tmp_path / "child"))
    assert child[0]["bits_per_byte"] == parent[-1]["bits_per_byte"]
    assert child[-1]["bits_per_byte"] < child[0]["bits_per_byte"]


def test_checkpoints_name_their_stage_and_parents(base: TrainSettings, tmp_path: Path) -> None:
    pretrain(child_of(base, tmp_path / "child", init_from=f"{base.out}:4"))
    pretrain(child_of(base, tmp_path / "grandchild", init_from=str(tmp_path / "child")))
    last = open_run(tmp_path / "grandchild")
    assert last.stage == "mid"
    assert last.parent is not None
    assert [last.parent["stage"], last.parent["parent"]["stage"]] == ["mid", "base"]
    assert last.parent["parent"]["step"] == 4
    assert last.parent["parent"]["parent"] is None
    assert last.parent["parent"]["location"] == open_parent(f"{base.out}:4").storage.location


def test_a_longer_context_changes_nothing_on_short_texts(base: TrainSettings, tmp_path: Path) -> None:
    pretrain(child_of(base, tmp_path / "child", max_seq_len=128, device_batch_size=1, num_iterations=1))
    config = open_run(tmp_path / "child").config()
    assert [config.max_seq_len, config.window_size] == [128, 16]
    before = load(base.out)
    after = Transformer(config, compute_dtype=torch.float32)
    after.load_state_dict(before.state_dict())
    ids = torch.randint(0, config.vocab_size, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(before(ids), after(ids))


def test_ntk_aware_scaling_stretches_the_slowest_frequency_to_the_new_context() -> None:
    config = ModelConfig.seed(2, vocab_size=64, max_seq_len=512)
    base = config.ntk_rope_base(2048)
    assert base == pytest.approx(10_000 * 4 ** (128 / 126))
    slowest = (config.head_dim - 2) / config.head_dim
    assert base**slowest == pytest.approx(4 * config.rope_base**slowest)
    assert config.with_context(2048, base).ntk_rope_base(2048) == base
    assert config.ntk_rope_base(256) == config.rope_base
    with pytest.raises(UserError, match="one rotary frequency"):
        ModelConfig.seed(2, vocab_size=64, head_dim=2).ntk_rope_base(4096)


def test_moments_of_the_parent_are_taken_on_request(base: TrainSettings, tmp_path: Path) -> None:
    still = dataclasses.replace(
        base.rates, matrix_lr=0.0, embedding_lr=0.0, unembedding_lr=0.0, scalar_lr=0.0
    )
    moments = load_tensors(open_run(base.out), "optimizer.safetensors")
    for name, init in (("with", True), ("without", False)):
        pretrain(child_of(base, tmp_path / name, init_optimizer=init, num_iterations=1, rates=still))
    found = [load_tensors(open_run(tmp_path / name), "optimizer.safetensors") for name in ("with", "without")]
    with_parents, without = (each["lm_head.weight/second_moment"] for each in found)
    decayed = base.rates.adam_beta2 * moments["lm_head.weight/second_moment"]
    torch.testing.assert_close(with_parents, decayed + without, rtol=1e-3, atol=1e-12)
    assert decayed.mean() > 0


def test_it_goes_on_after_its_parent_is_gone(base: TrainSettings, tmp_path: Path) -> None:
    parent = shutil.copytree(base.out, tmp_path / "parent")
    child = child_of(base, tmp_path / "child", init_from=str(parent), num_iterations=4)
    pretrain(child)
    shutil.rmtree(parent)
    longer = dataclasses.replace(child, num_iterations=6)
    longer.check_paths()
    assert pretrain(longer).step == 6
    assert open_run(child.out).parent is not None


def test_another_parent_is_refused_for_the_same_folder(base: TrainSettings, tmp_path: Path) -> None:
    child = child_of(base, tmp_path / "child", num_iterations=4)
    pretrain(child)
    with pytest.raises(UserError, match=r"holds another run: parent was \w+, is \w+"):
        pretrain(dataclasses.replace(child, init_from=f"{base.out}:4"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 4}, "--depth 4: the model of --init_from has 3 layers"),
        ({"head_dim": 32}, "--head_dim 32 is not of the model that --init_from starts from"),
        ({"init_from": "nowhere"}, "nowhere"),
        ({"rope_scaling": "ntk", "init_from": "", "stage": "base"}, "--rope_scaling does nothing without"),
        ({"init_from": "", "depth": 2}, "--stage mid goes on from a model"),
    ],
)
def test_refusals(base: TrainSettings, tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pretrain(child_of(base, tmp_path / "child", **changes))
    assert not (tmp_path / "child").exists()


def test_a_parent_of_another_tokenizer_is_refused(base: TrainSettings, tmp_path: Path) -> None:
    child = child_of(base, tmp_path / "child", tokenizer=Path("cpp-32k"))
    with pytest.raises(
        UserError, match=r"was trained with another tokenizer\. Use its own: .*tokenizer\.json"
    ):
        pretrain(child)
