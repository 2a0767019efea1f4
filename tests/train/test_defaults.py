"""What nobody gives suits the device, and stays what it was when a run is continued."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.settings import to_dict
from cpplm.model.flops import count_flops, count_scaling_parameters
from cpplm.model.settings import ArchitectureSettings
from cpplm.train.checkpoint.format import open_run
from cpplm.train.defaults import (
    DEPTH,
    EVAL_TOKENS,
    LEAST_DEPTH,
    MFU,
    MINUTES,
    RESOLVED_SETTINGS,
    resolve_defaults,
)
from cpplm.train.devices import Devices, data_sheet_devices
from cpplm.train.estimate import describe_run, estimate_run
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import DryRunSettings, TrainSettings, model_config
from cpplm.train.training_length import training_budget

VOCAB_SIZE = 4096
BARE = TrainSettings(data_dir=("corpus",), tokenizer=Path("t.json"), out=Path("run"))


def cpu(teraflops: float) -> Devices:
    return Devices("a processor", "cpu", 1, teraflops * 1e12, "measured", 16 * 10**9)


def hours(settings: TrainSettings, devices: Devices) -> float:
    config = model_config(settings, VOCAB_SIZE)
    tokens = settings.target_param_data_ratio * count_scaling_parameters(config)
    return tokens / devices.tokens_per_second(count_flops(config)["total"], MFU) / 3600


@pytest.mark.parametrize("minutes", [-1.0, 3.0, 60.0])
@pytest.mark.parametrize("teraflops", [0.1, 0.5, 4.0])
def test_the_depth_on_a_cpu_fits_the_clock(teraflops: float, minutes: float) -> None:
    devices = cpu(teraflops)
    chosen, reason = resolve_defaults(
        dataclasses.replace(BARE, max_minutes=minutes), VOCAB_SIZE, devices, shares=1
    )
    limit = (minutes if minutes > 0 else MINUTES) / 60
    assert f"--depth {chosen.depth}: " in reason
    assert chosen.depth == LEAST_DEPTH or hours(chosen, devices) <= limit
    assert (
        chosen.depth == DEPTH or hours(dataclasses.replace(chosen, depth=chosen.depth + 1), devices) > limit
    )
    rate = devices.tokens_per_second(count_flops(model_config(chosen, VOCAB_SIZE))["total"], MFU)
    assert chosen.device_batch_size == 1 or chosen.device_batch_size * chosen.max_seq_len <= rate
    assert chosen.total_batch_size % (chosen.device_batch_size * chosen.max_seq_len) == 0
    assert chosen.eval_tokens < EVAL_TOKENS


@pytest.mark.parametrize("teraflops", [1e-6, 4.0])
def test_depths_that_the_settings_do_not_allow_are_not_tried(teraflops: float) -> None:
    sparse = dataclasses.replace(BARE, architecture=ArchitectureSettings(dsa=True))  # from layer 7 on
    chosen, _ = resolve_defaults(sparse, VOCAB_SIZE, cpu(teraflops), shares=1)
    assert chosen.depth == 8 if teraflops < 1 else chosen.depth >= 8
    beyond = ArchitectureSettings(dsa=True, dsa_start_layer=DEPTH)
    with pytest.raises(UserError, match="begins at layer 20"):
        resolve_defaults(dataclasses.replace(BARE, architecture=beyond), VOCAB_SIZE, cpu(teraflops), shares=1)


def test_other_devices_have_fixed_values() -> None:
    chosen, reason = resolve_defaults(BARE, VOCAB_SIZE, data_sheet_devices("L4", 2), shares=2)
    assert (chosen.depth, chosen.device_batch_size, chosen.eval_tokens) == (20, 32, 20 * 524_288)
    assert reason == ""


def test_what_is_given_stays_and_a_given_batch_is_divided() -> None:
    given = dataclasses.replace(BARE, depth=3, total_batch_size=6 * 2048, eval_tokens=7)
    chosen, reason = resolve_defaults(given, VOCAB_SIZE, cpu(4.0), shares=1)
    assert chosen == dataclasses.replace(given, max_seq_len=2048, device_batch_size=2)
    assert reason == ""


def test_a_continued_run_keeps_what_was_chosen() -> None:
    chosen, _ = resolve_defaults(BARE, VOCAB_SIZE, cpu(0.5), shares=1)
    again, reason = resolve_defaults(BARE, VOCAB_SIZE, cpu(50.0), shares=1, earlier=to_dict(chosen))
    assert again == chosen
    assert reason == ""
    more_ranks, _ = resolve_defaults(BARE, VOCAB_SIZE, cpu(0.5), shares=16, earlier=to_dict(chosen))
    assert more_ranks.total_batch_size == chosen.total_batch_size
    assert more_ranks.forward_passes(16) >= 1


def test_a_run_records_what_was_chosen_and_says_it(
    settings: TrainSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speed = 0.5

    def devices(*arguments: object) -> Devices:
        return cpu(speed)

    monkeypatch.setattr("cpplm.train.torch_backend.local_devices", devices)
    bare = dataclasses.replace(settings, depth=-1, device_batch_size=-1, eval_tokens=-1, num_iterations=1)
    monkeypatch.setattr("cpplm.train.defaults.DEPTH", 3)
    pretrain(dataclasses.replace(bare, max_minutes=-1.0))
    said = capsys.readouterr().err
    assert "--depth 3: the deepest model" in said
    assert "1 steps of 256 tokens" in said
    assert said.index("a processor") < said.index("validation")
    recorded = open_run(settings.out).json("settings.json")
    assert all(recorded[name] > 0 for name in RESOLVED_SETTINGS)
    speed = 1e-9  # on a slower machine the same command would begin with depth 2
    assert pretrain(dataclasses.replace(bare, num_iterations=2)).step == 2
    assert {name: open_run(settings.out).json("settings.json")[name] for name in RESOLVED_SETTINGS} == {
        name: recorded[name] for name in RESOLVED_SETTINGS
    }


def test_a_dry_run_is_of_this_machine_unless_a_gpu_is_named(settings: TrainSettings) -> None:
    dry = dataclasses.replace(settings, dry=DryRunSettings(dry_run=True), device_type="cpu")
    here, _ = estimate_run(dry)
    assert here.devices.kind == "cpu"
    assert here.steps == 8
    minutes, _ = estimate_run(dataclasses.replace(dry, num_iterations=-1, max_minutes=2.0))
    assert minutes.steps * 256 == pytest.approx(120 * minutes.tokens_per_second, abs=256)
    there, _ = estimate_run(
        dataclasses.replace(dry, dry=DryRunSettings(dry_run=True, gpu="L4", world_size=2))
    )
    assert (there.devices.name, there.devices.count) == ("L4", 2)


def test_a_run_is_described_before_it_begins() -> None:
    chosen, _ = resolve_defaults(dataclasses.replace(BARE, depth=4), VOCAB_SIZE, cpu(1.0), shares=1)
    config = model_config(chosen, VOCAB_SIZE)
    steps = training_budget(chosen, config).steps
    said = describe_run(chosen, config, training_budget(chosen, config), cpu(1.0), 2 * 10**9, 0.0)
    assert f"{steps:,} steps of {chosen.total_batch_size:,} tokens" in said
    assert "1 x a processor; about 2 of 16 GB memory; about 70." in said
    timed = dataclasses.replace(chosen, max_minutes=30.0)
    said = describe_run(timed, config, training_budget(timed, config), cpu(1.0), None, 0.5)
    assert "about 15.0 min to train" in said
    assert "memory" not in said
