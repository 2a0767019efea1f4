"""The page stands alone, shows the corpus's figures, and nothing in a document gets out of its place."""

import re
from html.parser import HTMLParser

import pyarrow as pa
import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader, write_manifest, write_shard_table
from cpplm.core.storage import Storage
from cpplm.corpus.build import build
from cpplm.corpus.reports.html_report import SHOWN_CHARACTERS, measure
from cpplm.corpus.reports.inspect_corpus import InspectSettings, document_html, inspect_corpus
from tests.browser import headless_browser
from tests.corpus.cpp import TINYLIB, write_files
from tests.corpus.settings import compilable

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 777 * 777 }}"


class Tags(HTMLParser):
    """Every tag with its attributes; `text` is what a reader sees."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page_of(tmp_path, corpus, **options):
    path = tmp_path / "page.html"
    manifest, documents = inspect_corpus(InspectSettings(str(corpus), page=path, **options))
    return Tags(path.read_text()), manifest, documents, path.read_text()


def test_the_page_shows_the_figures_and_stands_alone(tmp_path, tokenizer_path):
    write_files(tmp_path / "other", {"a.cc": "int other() { return 1; }\n", "b.cc": "", "c.cc": "a\0b"})
    build(
        compilable(
            out=str(tmp_path / "out"),
            projects=(TINYLIB, tmp_path / "other"),
            workers=1,
            tokenizer=tokenizer_path,
        )
    )
    page, manifest, documents, html = page_of(tmp_path, tmp_path / "out", num=4)
    assert len(documents) == 4
    assert page.open == []
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    assert not re.search(r"url\(|@import|https?://", html)  # nothing is loaded from anywhere
    assert not any(
        name.startswith("on") or name in ("src", "href") for _, given in page.tags for name in given
    )
    kinds, lengths, _ = measure(ShardReader(tmp_path / "out"))
    documents_total = sum(entry["documents"] for entry in manifest["projects"].values())
    for sums in (kinds, lengths):
        assert sum(each["documents"] for each in sums.values()) == documents_total
    table = ShardReader(tmp_path / "out").table(ShardReader(tmp_path / "out").shards("train")[0])
    assert sum(kind["tokens"] for kind in kinds.values()) > sum(table["num_tokens"].to_pylist())
    for document in documents:
        alone = Tags(document_html(document))
        shown, _, sources = alone.text.partition("borrowed lines")
        assert alone.open == []
        assert shown.rstrip() == document["text"].rstrip()
        reasons = [source["reason"] for source in document["sources"] if source["reason"]]
        assert all(reason in sources for reason in reasons)
        assert ("0.25)" in document_html(document)) == bool(document["borrowed"])
    for words in ("binary", "other: c.cc", "empty", "tinylib", "tokenizer_hash", "bytes per token"):
        assert words in page.text
    for document in documents:
        assert document["text"][:SHOWN_CHARACTERS] in page.text
        assert document["id"] in page.text


@pytest.fixture(scope="module")
def browser():
    with headless_browser() as browser:
        yield browser


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_narrow_screens(tmp_path, browser, width):
    names = [f"a_folder_with_a_long_name/and_a_source_of_a_long_name_too_{i}.cc" for i in range(4)]
    write_files(tmp_path / "p", {name: f"int f{i}() {{ return {i}; }}\n" for i, name in enumerate(names)})
    write_files(tmp_path / "p", {"made.cc": "// @generated\n", "empty.cc": ""})
    build(compilable(out=str(tmp_path / "out"), projects=(TINYLIB, tmp_path / "p"), workers=1))
    page_of(tmp_path, tmp_path / "out")
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto((tmp_path / "page.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cells = page.evaluate("[...document.querySelectorAll('th, td')].map(e => [e.innerText, e.clientWidth])")
    assert [text for text, cell_width in cells if cell_width < 6 * min(len(text.strip()), 12)] == []
    assert " kB" in page.inner_text(".tiles") and "0.0 MB" not in page.inner_text("body")
    page.close()


def hostile_corpus(folder):
    """A corpus in which everything that is text is hostile."""
    storage = Storage(folder, create=True)
    rows = {
        "text": [EVIL * 900, "int a;\x00\x1b[31m\ufffe"],
        "id": ["a" * 64, EVIL],
        "project": [EVIL, EVIL],
        "files": [[EVIL, "a\nb"], []],
        "kind": [EVIL, "file"],
        "num_tokens": [-1, -1],
        "num_functions": [0, 0],
    }
    table = pa.table(rows)
    shards = [write_shard_table(storage, split, 0, table) for split in ("train", "val")]
    entry = {"files": 1, "bytes": 3, "examples": [EVIL, EVIL]}
    project = {"files": 1, "source_bytes": 0, "functions": 0, "documents": 2, "text_bytes": 4,
               "kinds": {EVIL: 1, "file": 1}, "skipped": {EVIL: entry}, "converted": {}}  # fmt: skip
    write_manifest(
        storage, shards, projects={EVIL: project}, split_by="project", identity={EVIL: EVIL},
        records=[{"file": EVIL, "records": 1, "left_out": {EVIL: entry}}], versions={EVIL: EVIL}, sources={},
    )  # fmt: skip
    return folder


def test_everything_is_escaped(tmp_path):
    page, _, documents, html = page_of(tmp_path, hostile_corpus(tmp_path / EVIL.replace("/", "")), num=9)
    assert len(documents) == 4
    assert page.open == []
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert "alert(1)" in page.text and "603729" not in page.text
    assert not any("alert" in str(value) for _, given in page.tags for value in given.values())
    assert "<script" not in html
    assert f"{len(EVIL) * 900 - SHOWN_CHARACTERS:,} more characters" in page.text


def test_num_and_page_are_checked(tmp_path):
    with pytest.raises(UserError, match=r"--page x\.txt is no \.html file"):
        InspectSettings("corpus", page=tmp_path.__class__("x.txt"))
    with pytest.raises(UserError, match="--num -1 is negative"):
        InspectSettings("corpus", num=-1)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot"):
        inspect_corpus(
            InspectSettings(str(hostile_corpus(tmp_path / "c")), page=tmp_path / "file" / "p.html")
        )
