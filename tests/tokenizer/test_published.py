"""The tokenizers that come with cpplm: what they promise, and the same ids by every path."""

from importlib.resources import files
from pathlib import Path

import pytest
import transformers

from cpplm.corpus.ingest.discovery import find_cxx_headers
from cpplm.corpus.ingest.raw_files import find_batches
from cpplm.tokenizer.export import export_hf
from cpplm.tokenizer.forced_vocab import forced_tokens
from cpplm.tokenizer.pretokenizer import PATTERNS
from cpplm.tokenizer.sanity_checks import check_vocabulary
from cpplm.tokenizer.tokenizer import PUBLISHED, Tokenizer
from tests.corpus.cpp import needs_gxx

SIZES = {"32k": 32_768, "65k": 65_536}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_and_names(name: str) -> None:
    tokenizer = Tokenizer.load(name)
    assert tokenizer.vocab_size == SIZES[name.split("-")[1]]
    assert tokenizer.pattern == PATTERNS["dense" if name.endswith("dense") else "lines"]
    assert tokenizer.provenance["bytes"] > 200_000_000
    assert check_vocabulary(tokenizer) == []
    assert all(token in tokenizer.ids for token in forced_tokens())
    assert all(len(tokenizer.encode(token)) == 1 for token in forced_tokens())
    assert len(files("cpplm.tokenizer").joinpath("published", f"{name}.json").read_bytes()) < 4_000_000


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Every file of the machine's C++ standard library."""
    folder = tmp_path_factory.mktemp("headers")
    for number, root in enumerate(find_cxx_headers()):
        (folder / str(number)).mkdir()
        for path in sorted(root.rglob("*")):
            if path.is_file():
                copy = folder / str(number) / (path.relative_to(root).as_posix().replace("/", "_") + ".h")
                copy.write_bytes(path.read_bytes())
    return [text for batch in find_batches(folder, 10**9)[0] for _, text in batch.texts()]


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_path_gives_the_same_ids(name: str, headers: list[bytes], tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(name)
    export_hf(tokenizer, tmp_path)
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert sum(map(len, headers)) > 5_000_000
    rows = tokenizer.encode_batch(headers, threads=2)
    for data, ids in zip(headers, rows, strict=True):
        assert ids == tokenizer.encode(data)
        assert exported(data.decode(), split_special_tokens=True)["input_ids"] == ids
        assert tokenizer.decode_bytes(ids) == data
