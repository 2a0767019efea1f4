"""Places on a hub read as storage, and pushes, by the library itself against a hub on the loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from cpplm.core import hub
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from tests.certificates import certificates_are_read_once  # noqa: F401  (a fixture)
from tests.fake_hub import LARGE, READ_TOKEN, TOKEN, FakeHub, no_waiting

DATA = "datasets/them/code"
FILES = {
    "manifest.json": b'{"a": 1}', "deep/_COMPLETE": b"", "deep/x.parquet": b"p" * (3 * LARGE),
    "deeper/y.json": b"[]", "model.pkl": b"\x80", "run.py": b"print()",
}  # fmt: skip


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    fake = FakeHub()
    with fake.open():
        fake.use(monkeypatch, tmp_path / "home")
        fake.add(DATA, FILES)
        yield fake


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return no_waiting(monkeypatch)


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size >= LARGE]


@pytest.mark.parametrize(
    ("url", "repository", "revision", "folder"),
    [
        ("hf://me/model", "me/model", "main", ""), ("hf://me/model@v1.0", "me/model", "v1.0", ""),
        ("hf://datasets/me/a.b/x/y/", "me/a.b", "main", "x/y"),
        ("hf://me/model@refs%2Fpr%2F1/x@y", "me/model", "refs/pr/1", "x@y"),
    ],
)  # fmt: skip
def test_locations(url: str, repository: str, revision: str, folder: str) -> None:
    found = hub.HubLocation.parse(url)
    assert (found.repository, found.revision, found.folder) == (repository, revision, folder)
    assert hub.HubLocation.parse(str(found)) == found


@pytest.mark.parametrize(
    "url", ["hf://", "hf://model", "hf://a/b@", "hf://a b/c", "hf://../c", "hf://datasets/a"]
)
def test_what_is_no_location(url: str) -> None:
    with pytest.raises(UserError, match="is no place on the hub"):
        Storage(url)


def test_a_folder_of_a_commit(there: FakeHub) -> None:
    storage = Storage(f"hf://{DATA}")
    first = there.repositories[DATA].branches["main"]
    assert storage.location == f"hf://{DATA}@{first}"
    assert storage.list_names() == sorted(FILES)
    there.add(DATA, {"manifest.json": b"another"})
    assert storage.read_json("manifest.json") == {"a": 1}  # still that commit
    deep = Storage(f"hf://{DATA}@{first}/deep")
    assert deep.sizes() == {"_COMPLETE": 0, "x.parquet": 3 * LARGE}  # and not "deeper"
    assert deep.exists("_COMPLETE") and not deep.exists("y.json")
    assert deep.read("x.parquet") == b"".join(deep.chunks("x.parquet")) == FILES["deep/x.parquet"]
    assert storage.sizes("deep") == {"deep/_COMPLETE": 0, "deep/x.parquet": 3 * LARGE}
    assert Storage(f"hf://{DATA}@{first}/none").list_names() == []
    asked = len(there.requests)
    assert Storage(deep.location).read("x.parquet") == FILES["deep/x.parquet"]
    assert not any("/resolve/" in request for request in there.requests[asked:])  # from the cache


def test_only_known_kinds_of_files_are_read(there: FakeHub, tmp_path: Path) -> None:
    storage = Storage(f"hf://{DATA}")
    for name in ("model.pkl", "run.py", "deep/_COMPLETE"):
        with pytest.raises(UserError, match=f"{name} is not read: it may hold a program"):
            storage.read(name)
    with pytest.raises(UserError, match=r"\.\./x\.json"):
        storage.read("../x.json")
    with pytest.raises(UserError, match=r"no such file: .*/none\.json"):
        storage.read("none.json")
    assert not files_below(tmp_path / "home")


def test_the_hub_is_not_written_to_as_storage(there: FakeHub) -> None:
    storage = Storage(f"hf://{DATA}")
    for write in (
        lambda: Storage(f"hf://{DATA}", create=True), lambda: storage.write("x.json", b""),
        lambda: storage.delete(["manifest.json"]), lambda: storage.open_write("x").__enter__(),
    ):  # fmt: skip
        with pytest.raises(UserError, match="cannot be written: the hub is only read"):
            write()


@pytest.mark.parametrize(
    ("request_", "status", "what"),
    [
        (
            "/revision/main",
            401,
            r"cannot read hf://datasets/them/code@main: no such repository, or no acc",
        ),
        ("/revision/main", 403, r"the hub forbids it \(403\)\. Use a token"),
        ("/revision/main", 404, r"because of \*\*\* \(404\)"),
        ("/revision/main", 429, r"too many requests \(429\)\. Wait 7 s"),
        ("/revision/", 500, r"the hub failed \(500\)"),
        ("/resolve/", 403, r"manifest\.json: the hub forbids it"),
        ("/resolve/", 500, r"manifest\.json: the hub failed \(500\)"),
    ],
)
def test_refusals(there: FakeHub, waits: list[float], request_: str, status: int, what: str) -> None:
    there.fail(request_, status, Retry_After="7")
    with pytest.raises(UserError, match=what) as raised:
        Storage(f"hf://{DATA}").read("manifest.json")
    assert "\n" not in str(raised.value) and TOKEN not in str(raised.value)
    assert bool(waits) == (status in (429, 500))
    assert all(wait >= 7 for wait in waits)


def test_names_that_are_not_there(there: FakeHub) -> None:
    with pytest.raises(UserError, match=r"hf://me/none@main: no such repository, or no access \(401\)"):
        Storage("hf://me/none")
    with pytest.raises(UserError, match=r"@v9: no such revision"):
        Storage(f"hf://{DATA}@v9")


def test_what_passes_is_waited_for(
    there: FakeHub, waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    there.fail("/revision/", 429, times=1, Retry_After="9")
    there.fail("/revision/", 503, times=1)
    there.fail("/resolve/", 500, times=1)
    there.cut("GET /large/", announced=True, times=2)
    assert Storage(f"hf://{DATA}/deep").read("x.parquet") == FILES["deep/x.parquet"]
    assert waits[0] == 9 and not there.faults
    assert "yet (429): again in 9 s" in capsys.readouterr().err


def test_a_long_wait_is_the_users(there: FakeHub, waits: list[float]) -> None:
    there.fail("/revision/", 429, Retry_After="3600")
    with pytest.raises(UserError, match="Wait 3,600 s"):
        Storage(f"hf://{DATA}")
    assert not waits


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_cut_in_half(there: FakeHub, waits: list[float], announced: bool, tmp_path: Path) -> None:
    storage = Storage(f"hf://{DATA}/deep")
    there.cut("GET /large/", announced=announced)
    with pytest.raises(UserError, match=r"cannot read .*/x\.parquet: "):
        storage.read("x.parquet")
    assert not files_below(tmp_path / "home")


@pytest.mark.parametrize("request_", ["/revision/", "GET /large/"])
def test_a_hub_that_hangs(
    there: FakeHub, waits: list[float], request_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TIMEOUT", 0.1)  # each of the library's attempts waits so long
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    there.stall(request_)
    with pytest.raises(UserError, match=r"no answer from http://127.0.0.1:\d+ in time"):
        Storage(f"hf://{DATA}/deep").read("x.parquet")
    assert not files_below(tmp_path / "home")


def test_a_hub_that_is_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, waits: list[float]) -> None:
    fake = FakeHub()
    with fake.open():
        fake.use(monkeypatch, tmp_path)
    with pytest.raises(UserError, match=r"no connection to http.*Check the network and HF_ENDPOINT"):
        Storage(f"hf://{DATA}")


# ---- pushing ----------------------------------------------------------------------------------------------


def is_weights(name: str) -> bool:
    return name.endswith(".safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text("# m\n")
    (folder / "model.safetensors").write_bytes(b"w" * (2 * LARGE))
    return folder


def test_a_folder_is_one_commit(there: FakeHub, folder: Path) -> None:
    url = hub.push(folder, "me/model", revision="", private=True, stale=is_weights)
    repository = there.repositories["models/me/model"]
    assert repository.private and url.endswith(repository.branches["main"])
    assert len(repository.commits) == 2  # the first one came with the repository
    assert Storage("hf://me/model").read("model.safetensors") == b"w" * (2 * LARGE)

    before = repository.branches["main"]
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    hub.push(folder, "me/model", revision="v2", private=True, stale=is_weights)
    assert repository.branches["main"] == before
    assert sorted(repository.files("v2") or {}) == [
        ".gitattributes", "README.md", "config.json", "model-00001-of-00001.safetensors"
    ]  # fmt: skip

    (folder / "m.gguf").write_bytes(b"GGUF")
    hub.push(folder / "m.gguf", "me/model", revision="", private=False, stale=is_weights)
    assert {"m.gguf", "model.safetensors"} <= set(repository.files() or {})


def test_a_public_repository_is_not_pushed_to_as_private(there: FakeHub, folder: Path) -> None:
    there.add("models/me/model", {"x": b""})
    with pytest.raises(UserError, match="me/model is there already, and public"):
        hub.push(folder, "me/model", revision="", private=True, stale=is_weights)
    assert len(there.repositories["models/me/model"].commits) == 1


@pytest.mark.parametrize(
    ("request_", "status", "what"),
    [
        ("/commit/", 403, r"cannot write hf://me/model@main: the hub forbids it \(403\)"),
        ("/preupload/", 401, r"no such repository, or no access \(401\)"),
        ("PUT /large/", 500, r"the hub failed \(500\)"),
        ("/commit/", 413, r"because of \*\*\* \(413\)"),
    ],
)
def test_refused_pushes(
    there: FakeHub, folder: Path, waits: list[float], request_: str, status: int, what: str
) -> None:
    there.fail(request_, status)
    with pytest.raises(UserError, match=what) as raised:
        hub.push(folder, "me/model", revision="", private=False, stale=is_weights)
    assert "\n" not in str(raised.value)
    assert len(there.repositories["models/me/model"].commits) == 1


def test_a_push_that_fails_once_is_made_again(there: FakeHub, folder: Path, waits: list[float]) -> None:
    for request in ("/api/repos/create", "PUT /large/", "/commit/"):
        there.fail(request, 503, times=1)
    hub.push(folder, "me/model", revision="", private=False, stale=is_weights)
    assert len(there.repositories["models/me/model"].commits) == 2 and waits


def test_who_may_push(there: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for repository in ("model", "a b/c", "/x"):
        with pytest.raises(UserError, match=r"is no repository\. Write OWNER/NAME"):
            hub.require_push(repository)
    hub.require_push("me/model")
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    with pytest.raises(UserError, match="forbids it"):
        hub.push(folder, "me/model", revision="", private=False, stale=is_weights)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="no access"):
        hub.require_push("me/model")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="nobody is logged in"):
        hub.require_push("me/model")
