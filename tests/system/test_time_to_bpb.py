"""The headline benchmark: fair scoring, equal files, and a run from projects to figures."""

import importlib
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = (
    "--depth 1 --head_dim 32 --max_seq_len 32 --short_seq_len 16 --device_batch_size 2 --total_batch_size 64 "
    "--no_compile"
)


def load(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module(name)


data, peer, report, scoring = map(load, ("bpb_data", "bpb_peer", "bpb_report", "bpb_scoring"))


@given(st.integers(1, 90), st.integers(2, 16))
def test_every_token_is_scored_once_behind_half_a_context(length: int, seq_len: int) -> None:
    ids = list(range(100, 100 + length))
    scored = []
    for window in scoring.windows(ids, 7, seq_len):
        assert len(window.inputs) == len(window.targets) <= seq_len
        for place, (before, target) in enumerate(zip(window.inputs, window.targets, strict=True)):
            if target == IGNORE_INDEX:
                continue
            assert before == (7 if target == 100 else target - 1)
            assert place >= min(seq_len // 2, target - 100)
            scored.append(target)
    assert scored == ids


def bytes_as_tokens(texts: list[str]) -> object:
    encoded = [list(text.encode()) for text in texts]
    return scoring.HeldOut.of(
        texts, encoded, token_bytes=np.ones(256, dtype=int), start_id=0, seq_len=16, rows=3
    )


def test_a_model_that_guesses_takes_the_logarithm_of_its_vocabulary() -> None:
    texts = ["int main() {}\n" * 50, "x", "// äöü\n"]
    encoded = [list(text.encode()) for text in texts]
    held_out = bytes_as_tokens(texts)

    def losses(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        assert inputs.shape == targets.shape
        return (targets != IGNORE_INDEX) * math.log(256)

    assert held_out.num_bytes == sum(map(len, encoded))
    score = held_out.score(losses, torch.device("cpu"))
    assert score.whole == score.code == pytest.approx(8)


def test_a_licence_notice_counts_in_whole_files_only() -> None:
    notice = "/* Copyright 2020 A\n */\n// Licence: see LICENSE.\n"
    text = f"\n{notice}\n// Adds.\nint add(int a, int b); // no warranty\n" * 3
    assert text[: scoring.notice_length(text)] == "\n" + notice
    assert scoring.notice_length("// Adds.\nint a; // licence\n") == 0
    held_out = bytes_as_tokens([text, "int main() {}\n"])
    notice_bytes = len(notice) + 1
    assert held_out.notice_bytes == notice_bytes

    def losses(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (targets != IGNORE_INDEX) * torch.where(targets == ord("\n"), math.log(4), math.log(2))

    whole = len(text) + 14 + text.count("\n") + 1
    code = whole - notice_bytes - text[:notice_bytes].count("\n")
    score = held_out.score(losses, torch.device("cpu"))
    assert score.whole == pytest.approx(whole / (len(text) + 14))
    assert score.code == pytest.approx(code / (len(text) + 14 - notice_bytes))


def test_a_curve_is_measured_once_at_each_of_its_times() -> None:
    values = (scoring.Score(number, 10 * number) for number in itertools.count())
    curve = scoring.Curve(10.0, 5, lambda: next(values))
    for seconds in (0.5, 1.9, 2.0, 2.5, 7.9, 8.1, 10.2):
        curve.reached(seconds)
    assert curve.figures() == {
        "curve": [(0.0, 0), (2.0, 1), (7.9, 2), (8.1, 3), (10.2, 4)],
        "whole_files_curve": [(0.0, 0), (2.0, 10), (7.9, 20), (8.1, 30), (10.2, 40)],
        "bits_per_byte": 4,
        "whole_files_bits_per_byte": 40,
    }


def test_passing_is_found_between_two_points() -> None:
    curve = [(0.0, 5.0), (10.0, 3.0), (20.0, 2.0)]
    assert report.passing_time(curve, 4.0) == pytest.approx(5)
    assert report.passing_time(curve, 2.5) == pytest.approx(15)
    assert report.passing_time(curve, 1.9) is None
    assert report.passing_time(curve, 6.0) == 0


def a_result(curve: list[tuple[float, float]], **more: object) -> dict[str, object]:
    final = {"bits_per_byte": curve[-1][1], "seconds": curve[-1][0], "own_documents_bits_per_byte": 1.0}
    whole = {
        "whole_files_curve": [(seconds, bits + 1) for seconds, bits in curve],
        "whole_files_bits_per_byte": curve[-1][1] + 1,
    }
    return {"curve": curve, **final, **whole, **more}


def test_seeds_are_compared_one_by_one() -> None:
    ours = [a_result([(0, 4), (10, 2)]), a_result([(0, 4), (10, 3)])]
    peers = [a_result([(0, 4), (10, 3)], peer={"learning_rate": 0.2}) for _ in range(2)]
    found = report.compare({"cpplm": ours, "llama": peers}, ["cpplm", "absent"], "llama", [0.1, 0.2, 0.3])
    assert found["cpplm"]["seconds_until_it_passes"] == [5, 10]
    assert found["cpplm"]["ratio"].low == found["cpplm"]["whole_files_ratio"].low == 0.5
    assert not found["peer"]["least_or_greatest_learning_rate"]
    peers[1]["bits_per_byte"] = 2.9
    found = report.compare({"cpplm": ours, "llama": peers}, ["cpplm"], "llama", [0.2, 0.3])
    assert found["cpplm"]["ratio"] is None
    assert found["cpplm"]["whole_files_ratio"] is not None
    assert found["peer"]["least_or_greatest_learning_rate"]


def sample(folder: Path, **changes: object) -> object:
    values = {"held_out": [], "held_out_share": 0.3, "max_project_bytes": 10**6, "eval_bytes": 3000}
    return data.Sample(projects_dir=[str(folder)], vocab_size=512, **(values | changes))


def write_projects(folder: Path, count: int = 4) -> None:
    for number in range(count):
        for file in range(6):
            path = folder / f"project{number}" / f"part{file}" / "code.cpp"
            path.parent.mkdir(parents=True)
            lines = (
                f"int f{number}_{file}_{k}(int value{k}) {{ return value{k} + {number * k + file}; }}\n"
                for k in range(25)
            )
            path.write_text(f"// Project {number}, file {file}.\n" + "".join(lines))


def test_a_share_of_the_projects_is_held_out_by_hash(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(10)]
    chosen = data.choose_held_out(names, sample(tmp_path))
    assert len(chosen) == 3
    assert data.choose_held_out([*reversed(names)], sample(tmp_path)) == chosen
    assert data.choose_held_out(names, sample(tmp_path, held_out=["p9", "p1"])) == ["p1", "p9"]
    with pytest.raises(UserError, match="no project here"):
        data.choose_held_out(names, sample(tmp_path, held_out=["p99"]))
    with pytest.raises(UserError, match="held out"):
        data.choose_held_out(["p1"], sample(tmp_path))


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "work" / "files").mkdir(parents=True)
    with pytest.raises(UserError, match="holds other files"):
        data.prepare(tmp_path / "work", sample(tmp_path))
    assert [path.name for path in (tmp_path / "work").rglob("*")] == ["files"]


def test_a_held_out_file_that_training_files_hold_is_left_out() -> None:
    lines = [f"int a_long_enough_line_{number};" for number in range(10)]
    train = ["\n".join(lines[:6]) + "\n}\n"]
    copied, new = "\n".join(lines) + "\n", "\n".join(lines[5:]) + "\n}\n"
    assert data.without_copies({"a": [copied, new], "b": [train[0]]}, train) == {"a": [new], "b": []}


def test_folders_are_taken_whole_until_there_is_enough(tmp_path: Path) -> None:
    write_projects(tmp_path / "in")
    size = (tmp_path / "in/project0/part0/code.cpp").stat().st_size
    sizes = data.copy_sample(sample(tmp_path / "in", max_project_bytes=round(2.5 * size)), tmp_path / "out")
    assert sizes.keys() == {f"project{number}" for number in range(4)}
    for project, copied in sizes.items():
        files = list((tmp_path / "out" / project).rglob("*.cpp"))
        assert len(files) == 3
        assert sum(file.stat().st_size for file in files) == copied


def test_blocks_of_an_epoch_hold_every_token_once_and_the_next_one_as_target() -> None:
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    texts = [f"int number{k};\n" * 9 for k in range(7)]
    tokenizer.train_from_iterator(texts, vocab_size=300, special_tokens=[data.END_OF_TEXT])
    settings = peer.Peer(1, 32, 32, 1e-3, 16, 2, 8, "off", "cpu", "fp32", 0)
    encoder = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    total = sum(len(encoder.encode(text).ids) + 1 for text in texts)
    batches = list(itertools.islice(peer.blocks(texts, encoder, settings), total // 16))
    inputs = torch.cat([inputs for inputs, _ in batches])
    targets = torch.cat([targets for _, targets in batches])
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert len({tuple(row) for row in inputs.tolist()}) > len(inputs) / 2
    begun = (inputs == encoder.token_to_id(data.END_OF_TEXT)).sum().item()
    assert len(texts) - 2 <= begun <= len(texts) + 1


def test_the_peer_has_tokenised_before_the_first_batch_is_asked_for() -> None:
    class Counting:
        calls = 0

        def token_to_id(self, token: str) -> int:
            return 0

        def encode_batch(self, texts: list[str]) -> list[object]:
            self.calls += 1
            return [SimpleNamespace(ids=list(text.encode())) for text in texts]

    tokenizer = Counting()
    peer.blocks(["int x;\n" * 20], tokenizer, peer.Peer(1, 32, 32, 1e-3, 16, 2, 8, "off", "cpu", "fp32", 0))
    assert tokenizer.calls == 1


def test_a_peer_that_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="--peer_dim 48"):
        peer.Peer(1, 48, 32, 1e-3, 16, 2, 8, "off", "cpu", "fp32", 0)
    with pytest.raises(UserError, match="--peer_batch_tokens 24"):
        peer.Peer(1, 32, 32, 1e-3, 24, 2, 8, "off", "cpu", "fp32", 0)


def test_the_rate_of_the_peer_rises_then_falls_to_nothing() -> None:
    shape = peer.warmup_and_cosine
    assert shape(peer.WARMUP / 2) == pytest.approx(0.5)
    assert shape(peer.WARMUP) == pytest.approx(1)
    assert shape(0.5 + peer.WARMUP / 2) == pytest.approx(0.5)
    assert shape(1.0) == pytest.approx(0)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, BENCHMARKS / "time_to_bpb.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)


@pytest.mark.slow
def test_a_flag_that_nothing_knows_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    write_projects(tmp_path / "in")
    result = run(tmp_path / "in", "--work", tmp_path / "work", "--device", "cpu", "--dept", "3")
    assert (result.returncode, result.stdout) == (2, "")
    assert "Did you mean 'depth'" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_both_learn_from_projects_and_what_has_run_is_kept(tmp_path: Path) -> None:
    write_projects(tmp_path / "in")
    flags = (
        "--device cpu --threads 1 --minutes 0.02 --points 2 --vocab_size 352 --eval_bytes 3000 "
        "--learning_rates 0.001 0.01 --peer_compile off --contenders cpplm cpplm-files-third llama"
    )
    arguments = [tmp_path / "in", "--work", tmp_path / "work", *f"{flags} {SIZES}".split()]
    finished = run(*arguments)
    assert finished.returncode == 0, finished.stderr
    figures = json.loads(finished.stdout.splitlines()[-1])
    texts = json.loads((tmp_path / "work" / "texts.json").read_text())
    assert {text.splitlines()[0].split(",")[0] for text in texts["held_out"]} == {
        f"// Project {name.removeprefix('project')}" for name in figures["data"]["held_out_projects"]
    }
    assert not set(texts["train"]) & set(texts["held_out"])
    assert len(texts["train"]) == 6 * len(figures["data"]["training_projects"])
    assert len(figures["runs"]) == 4
    for results in figures["runs"].values():
        assert 0 < results[0]["bits_per_byte"] < 10
        assert results[0]["seconds"] >= results[0]["curve"][-1][0] > 0
    best = min(r[0]["bits_per_byte"] for name, r in figures["runs"].items() if name.startswith("llama"))
    assert figures["comparison"]["peer"]["bits_per_byte"]["median"] == pytest.approx(best, abs=1e-4)
    assert (tmp_path / "work" / "curves.svg").stat().st_size > 1000
    again = run(*arguments)
    assert again.stderr.count("kept from an earlier call") == 4
    assert json.loads(again.stdout.splitlines()[-1])["runs"] == figures["runs"]
    other = run(*arguments[:3], "--vocab_size", "600")
    assert (other.returncode, other.stdout) == (2, "")
    assert "holds another sample" in other.stderr.splitlines()[-1]
