import json
from pathlib import Path

import pytest

from cpplm.tokenizer.tokenizer import Tokenizer
from tests.commands import assert_one_line_error, cpplm, reported
from tests.conftest import write_corpus
from tests.texts import cpp_document


def train(corpus: Path, out: Path, *more: str | Path) -> list[str | Path]:
    return ["tokenizer", "train", "--data_dir", corpus, "--out", out, "--vocab_size", "400", *more]


def test_training_twice_trains_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    out = tmp_path / "new" / "tokenizer.json"
    text, figures = reported(*train(corpus, out))
    written = out.read_bytes()
    assert figures == {
        "hash": Tokenizer.load(out).hash, "out": str(out), "trained_now": True, "vocab_size": 400,
    }  # fmt: skip
    assert "already trained" not in text

    text, again = reported(*train(corpus, Path("~/new/tokenizer.json")))  # a tilde is the home folder
    assert again == {**figures, "trained_now": False, "out": "~/new/tokenizer.json"}
    assert text.endswith("(already trained on this text)")
    assert out.read_bytes() == written
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    reported(*train(corpus, tmp_path / "b.json"))
    assert (tmp_path / "b.json").read_bytes() == written  # the same corpus gives the same file


def test_another_tokenizer_at_out_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokenizer.json"
    assert cpplm(*train(corpus, out)).returncode == 0
    written = out.read_bytes()
    other_size = cpplm(*train(corpus, out, "--vocab_size", "410"))
    assert_one_line_error(other_size, f"{out} holds a tokenizer of another corpus or other settings")
    other_corpus = write_corpus(tmp_path / "other", {"train": [30], "val": [2]})
    assert_one_line_error(cpplm(*train(other_corpus, out)), "another corpus", "another --out")
    assert out.read_bytes() == written


def test_a_file_that_is_no_tokenizer_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "notes.json"
    for content in (b"", b"{}", b"\xff", b"int main() {}", b'{"format": "cpplm-tokenizer"'):
        out.write_bytes(content)
        assert_one_line_error(cpplm(*train(corpus, out)), str(out))
        assert out.read_bytes() == content


def test_too_little_code_for_the_vocabulary_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"train": [12]})
    out = tmp_path / "out" / "tokenizer.json"
    result = cpplm(*train(corpus, out, "--vocab_size", "60000"))
    assert result.returncode == 2
    assert "the corpus gives only" in result.stderr.splitlines()[-1]
    assert "--vocab_size 60,000" in result.stderr.splitlines()[-1]
    assert not out.parent.exists()
    for _ in range(2):
        text, _ = reported(*train(corpus, out, "--vocab_size", "60000", "--soft_vocab_limit"))
        assert "gives no 60,000: the vocabulary was lowered" in text
    assert 320 < Tokenizer.load(out).vocab_size < 60_000


def test_evaluate_measures_the_validation_documents(corpus: Path, tokenizer_path: Path) -> None:
    evaluate = ("tokenizer", "evaluate", "--tokenizer", tokenizer_path, "--data_dir", corpus)
    _, figures = reported(*evaluate)
    assert set(figures) == {
        "bytes_per_token", "by_project", "megabytes_per_second", "documents", "bytes", "hash",
    }  # fmt: skip
    assert figures["documents"] == 8
    assert set(figures["by_project"]) == {"p0", "p1", "p2"}
    assert figures["bytes_per_token"] == pytest.approx(sum(figures["by_project"].values()) / 3)
    assert 1.5 < figures["bytes_per_token"] < 30
    assert set(figures["megabytes_per_second"]) == {"1", "2"}
    assert min(figures["megabytes_per_second"].values()) > 0


def test_training_on_plain_projects(tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / "projects" / f"p{number % 5}" / f"f{number}.cpp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(cpp_document(number))
    out = tmp_path / "tokenizer.json"
    projects = ["--projects_dir", tmp_path / "projects"]
    command = ["tokenizer", "train", *projects, "--out", out, "--vocab_size", "500"]
    reported(*command)
    provenance = Tokenizer.load(out).provenance
    assert provenance["projects"] == 5
    assert provenance["bytes"] == sum(path.stat().st_size for path in tmp_path.rglob("*.cpp"))
    assert "already trained on this text" in cpplm(*command).stdout
    assert reported("tokenizer", "evaluate", "--tokenizer", out, *projects)[1]["documents"] == 40
    (tmp_path / "projects" / "p0" / "f0.cpp").write_text("int changed;\n")
    refused = cpplm(*command)
    assert refused.returncode == 2
    assert "another corpus" in refused.stderr.splitlines()[-1]


def test_show(tokenizer_path: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.cpp"
    source.write_bytes(b"int main() {\n  return 0; // \xff\n}\n")
    show = ["tokenizer", "show", "--tokenizer", tokenizer_path]
    text, figures = reported(*show, "--file", source)
    assert Tokenizer.load(tokenizer_path).decode_bytes(figures["ids"]) == source.read_bytes()
    assert "\x1b[48;5;" in text
    page = tmp_path / "new" / "page.html"
    reported(*show, "--file", source, "--html", page)
    assert page.read_text().startswith("<pre")
    chat = tmp_path / "chat.json"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "int x;"}]
    chat.write_text(json.dumps({"messages": messages}))
    _, figures = reported(*show, "--conversation", chat, "--with_ids")
    assert len(figures["ids"]) == len(figures["mask"])
    assert 0 < sum(figures["mask"]) < len(figures["mask"])


def test_export(tokenizer_path: Path, tmp_path: Path) -> None:
    export = ["tokenizer", "export", "--tokenizer", tokenizer_path, "--out", tmp_path / "hf"]
    reported(*export, "--to", "hf")
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == [
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert_one_line_error(cpplm(*export), "tokenizer.json exists")


def test_bad_input_leaves_nothing_behind(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    only_train = write_corpus(tmp_path / "only_train", {"train": [5]})
    altered, chat, broken, empty = (tmp_path / name for name in ("altered.json", "chat", "broken", "empty"))
    altered.write_bytes(tokenizer_path.read_bytes().replace(b'"7d"', b'"7e"', 1))
    chat.write_text('{"messages": [{"role": "assistant", "content": "x"}]}')
    broken.write_text("{")
    empty.mkdir()
    before = sorted(tmp_path.rglob("*"))
    out = tmp_path / "tokenizer.json"
    both, of = ("--data_dir", "a", "--projects_dir", "b"), ("--tokenizer", tokenizer_path)
    for arguments, parts in (
        (train(tmp_path / "gone", out), [f"no such folder: {tmp_path / 'gone'}"]),
        (train(empty, out), ["no finished documents", "corpus build"]),
        (train(corpus, out, "--vocab_size", "320"), ["--vocab_size 320", "4096"]),
        (train(corpus, out, "--vocab_size", "-1"), ["--vocab_size -1", "4096"]),
        (train(corpus, out, "--max_bytes", "0"), ["--max_bytes 0"]),
        (("tokenizer", "train", "--out", out), ["CORPUS or --projects_dir"]),
        (("tokenizer", "train", "--out", out, *both), ["CORPUS or --projects_dir"]),
        (("tokenizer", "evaluate", *of), ["CORPUS or --projects_dir"]),
        (("tokenizer", "evaluate", "--tokenizer", tmp_path / "gone", "--data_dir", corpus), ["gone"]),
        (("tokenizer", "evaluate", "--tokenizer", altered, "--data_dir", corpus), ["altered.json"]),
        (("tokenizer", "evaluate", *of, "--data_dir", tmp_path / "gone"), ["no such folder"]),
        (("tokenizer", "evaluate", *of, "--data_dir", only_train), ["no documents to encode"]),
        (("tokenizer", "show", *of, "--file", tmp_path / "gone"), ["gone"]),
        (("tokenizer", "show", *of, "--conversation", broken), ["broken is not JSON"]),
        (("tokenizer", "show", *of, "--conversation", chat), ["take turns"]),
        (("tokenizer", "show", *of, "--file", chat, "--conversation", chat), ["exclude each other"]),
        (("tokenizer", "show", *of, "--file", chat, "--html", "x", "--with_ids"), ["--with_ids"]),
    ):
        assert_one_line_error(cpplm(*arguments), *parts)
    assert sorted(tmp_path.rglob("*")) == before
