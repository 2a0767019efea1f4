import json
from pathlib import Path

import pytest

from cpplm.tokenizer.tokenizer import Tokenizer
from tests.commands import assert_one_line_error, cpplm
from tests.conftest import write_corpus
from tests.texts import cpp_document


def train(corpus: Path, out: Path, *more: str | Path) -> list[str | Path]:
    return ["tokenizer", "train", "--data_dir", corpus, "--out", out, "--vocab_size", "400", *more]


def test_training_twice_trains_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    out = tmp_path / "new" / "tokenizer.json"
    first = cpplm(*train(corpus, out, "--json"))
    assert first.returncode == 0, first.stderr
    written = out.read_bytes()
    text, figures = first.stdout.splitlines()
    assert json.loads(figures) == {
        "hash": Tokenizer.load(out).hash, "out": str(out), "trained_now": True, "vocab_size": 400,
    }  # fmt: skip
    assert "already trained" not in text

    second = cpplm(*train(corpus, Path("~/new/tokenizer.json"), "--json"))  # a tilde is the home folder
    assert second.returncode == 0
    text, again = second.stdout.splitlines()
    assert json.loads(again) == {**json.loads(figures), "trained_now": False, "out": "~/new/tokenizer.json"}
    assert text.endswith("(already trained on this text)")
    assert out.read_bytes() == written
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert cpplm(*train(corpus, tmp_path / "b.json")).returncode == 0
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


def test_bad_input_leaves_nothing_behind(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokenizer.json"
    missing = cpplm(*train(tmp_path / "gone", out))
    assert_one_line_error(missing, f"no such folder: {tmp_path / 'gone'}")
    (tmp_path / "empty").mkdir()
    assert_one_line_error(cpplm(*train(tmp_path / "empty", out)), "no finished documents", "corpus build")
    for size in ("320", "0", "-1"):
        assert_one_line_error(
            cpplm(*train(corpus, out, "--vocab_size", size)), f"--vocab_size {size}", "4096"
        )
    assert_one_line_error(cpplm(*train(corpus, out, "--max_bytes", "0")), "--max_bytes 0")
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_too_little_code_for_the_vocabulary_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"train": [12]})
    out = tmp_path / "out" / "tokenizer.json"
    result = cpplm(*train(corpus, out, "--vocab_size", "60000"))
    assert result.returncode == 2
    assert "the corpus gives only" in result.stderr.splitlines()[-1]
    assert "--vocab_size 60,000" in result.stderr.splitlines()[-1]
    assert not out.parent.exists()
    for _ in range(2):
        result = cpplm(*train(corpus, out, "--vocab_size", "60000", "--soft_vocab_limit"))
        assert result.returncode == 0
        assert "gives no 60,000: the vocabulary was lowered" in result.stdout
    assert 320 < Tokenizer.load(out).vocab_size < 60_000


def test_evaluate_measures_the_validation_documents(corpus: Path, tokenizer_path: Path) -> None:
    result = cpplm("tokenizer", "evaluate", "--tokenizer", tokenizer_path, "--data_dir", corpus, "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert set(figures) == {
        "bytes_per_token", "by_project", "megabytes_per_second", "documents", "bytes", "hash",
    }  # fmt: skip
    assert figures["documents"] == 8
    assert set(figures["by_project"]) == {"p0", "p1", "p2"}
    assert figures["bytes_per_token"] == pytest.approx(sum(figures["by_project"].values()) / 3)
    assert 1.5 < figures["bytes_per_token"] < 30
    assert set(figures["megabytes_per_second"]) == {"1", "2"}
    assert min(figures["megabytes_per_second"].values()) > 0


def test_evaluate_refuses_bad_input(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    def evaluate(tokenizer: Path, data_dir: Path) -> list[str | Path]:
        return ["tokenizer", "evaluate", "--tokenizer", tokenizer, "--data_dir", data_dir]

    assert_one_line_error(cpplm(*evaluate(tmp_path / "gone.json", corpus)), "gone.json")
    assert_one_line_error(cpplm(*evaluate(tokenizer_path, tmp_path / "gone")), "no such folder")
    altered = tmp_path / "altered.json"
    altered.write_bytes(tokenizer_path.read_bytes().replace(b'"7d"', b'"7e"', 1))
    assert_one_line_error(cpplm(*evaluate(altered, corpus)), "altered.json")
    only_train = write_corpus(tmp_path / "corpus", {"train": [5]})
    assert_one_line_error(cpplm(*evaluate(tokenizer_path, only_train)), "no documents to encode")


def test_training_on_plain_projects(tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / "projects" / f"p{number % 5}" / f"f{number}.cpp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(cpp_document(number))
    out = tmp_path / "tokenizer.json"
    projects = ["--projects_dir", tmp_path / "projects"]
    command = ["tokenizer", "train", *projects, "--out", out, "--vocab_size", "500"]
    first = cpplm(*command, "--json")
    assert first.returncode == 0, first.stderr
    provenance = Tokenizer.load(out).provenance
    assert provenance["projects"] == 5
    assert provenance["bytes"] == sum(path.stat().st_size for path in tmp_path.rglob("*.cpp"))
    assert "already trained on this text" in cpplm(*command).stdout
    evaluated = cpplm("tokenizer", "evaluate", "--tokenizer", out, *projects, "--json")
    assert json.loads(evaluated.stdout.splitlines()[-1])["documents"] == 40
    (tmp_path / "projects" / "p0" / "f0.cpp").write_text("int changed;\n")
    refused = cpplm(*command)
    assert refused.returncode == 2
    assert "another corpus" in refused.stderr.splitlines()[-1]


@pytest.mark.parametrize("which", [[], ["--data_dir", "a", "--projects_dir", "b"]])
def test_one_source_of_text(which: list[str], tmp_path: Path) -> None:
    result = cpplm("tokenizer", "train", "--out", tmp_path / "t.json", *which)
    assert_one_line_error(result, "CORPUS or --projects_dir")
    result = cpplm("tokenizer", "evaluate", "--tokenizer", "cpp-32k", *which)
    assert_one_line_error(result, "CORPUS or --projects_dir")


def test_show(tokenizer_path: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.cpp"
    source.write_bytes(b"int main() {\n  return 0; // \xff\n}\n")
    show = ["tokenizer", "show", "--tokenizer", tokenizer_path]
    result = cpplm(*show, "--file", source, "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert Tokenizer.load(tokenizer_path).decode_bytes(figures["ids"]) == source.read_bytes()
    assert "\x1b[48;5;" in result.stdout
    page = tmp_path / "new" / "page.html"
    assert cpplm(*show, "--file", source, "--html", page).returncode == 0
    assert page.read_text().startswith("<pre")
    chat = tmp_path / "chat.json"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "int x;"}]
    chat.write_text(json.dumps({"messages": messages}))
    result = cpplm(*show, "--conversation", chat, "--with_ids", "--json")
    figures = json.loads(result.stdout.splitlines()[-1])
    assert len(figures["ids"]) == len(figures["mask"])
    assert 0 < sum(figures["mask"]) < len(figures["mask"])


def test_show_refuses_bad_input(tokenizer_path: Path, tmp_path: Path) -> None:
    show = ["tokenizer", "show", "--tokenizer", tokenizer_path]
    assert_one_line_error(cpplm(*show, "--file", tmp_path / "gone"), "gone")
    chat = tmp_path / "chat.json"
    chat.write_text("{")
    assert_one_line_error(cpplm(*show, "--conversation", chat), "chat.json is not JSON")
    chat.write_text('{"messages": [{"role": "assistant", "content": "x"}]}')
    assert_one_line_error(cpplm(*show, "--conversation", chat), "take turns")
    assert_one_line_error(cpplm(*show, "--file", chat, "--conversation", chat), "exclude each other")
    assert_one_line_error(cpplm(*show, "--file", chat, "--html", "x", "--with_ids"), "--with_ids")


def test_export(tokenizer_path: Path, tmp_path: Path) -> None:
    export = ["tokenizer", "export", "--tokenizer", tokenizer_path, "--out", tmp_path / "hf"]
    result = cpplm(*export, "--to", "hf", "--json")
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == [
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert_one_line_error(cpplm(*export), "tokenizer.json exists")
