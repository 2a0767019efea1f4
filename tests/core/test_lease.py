"""Attempts at a run, in a folder and in a bucket that enforces conditional writes."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpplm.core import lease as leases
from cpplm.core.errors import UserError
from cpplm.core.lease import FencedError, FencedStorage, Lease, claim, current, open_lease
from cpplm.core.storage import Storage
from tests.moto_bucket import moto_bucket


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Place of a run's state."""
    if request.param == "folder":
        yield str(tmp_path / "run")
    else:
        with moto_bucket(monkeypatch) as url:
            yield f"{url}/run"


def test_attempts_grow_and_say_who_holds_them(place: str) -> None:
    storage = Storage(place, create=True)
    assert current(storage) is None
    first, second = claim(storage, "one", 100.0), claim(storage, "two", 200.5)
    assert (first.attempt, second.attempt) == (1, 2)
    assert current(storage) == second == open_lease(storage, 2)
    assert storage.list_names() == ["lease/attempt_000001.json", "lease/attempt_000002.json"]
    record = json.loads(storage.read("lease/attempt_000002.json"))
    assert record == {"attempt": 2, "owner": "two", "created": 200.5, "token": second.token}
    second.check(storage)
    with pytest.raises(FencedError, match=r"attempt 1 of .*run is over: attempt 2 has taken it over"):
        first.check(storage)


def test_each_folder_has_attempts_of_its_own(place: str) -> None:
    storage = Storage(place, create=True)
    claim(storage, "node", 1.0)
    watcher = claim(storage, "watcher", 1.0, folder="watcher/lease")
    assert (watcher.attempt, current(storage, folder="watcher/lease")) == (1, watcher)
    claim(storage, "node", 2.0)
    watcher.check(storage)


def test_of_many_who_claim_at_once_each_gets_an_attempt_of_its_own(place: str) -> None:
    storage = Storage(place, create=True)
    start, found = threading.Barrier(8), list[Lease]()

    def work(number: int) -> None:
        own = Storage(place)
        start.wait()
        for _ in range(3):
            found.append(claim(own, f"thread {number}", 1.0))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lease.attempt for lease in found) == list(range(1, 25))
    assert all(open_lease(storage, lease.attempt) == lease for lease in found)


def test_who_is_first_to_create_an_object_wins(place: str) -> None:
    storage = Storage(place, create=True)
    assert storage.create("a", b"mine")
    assert not storage.create("a", b"theirs")
    assert storage.create("a", b"mine")  # as after an answer that was lost
    assert storage.read("a") == b"mine"


def test_a_failed_listing_is_no_empty_one(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(place, create=True)
    lease = claim(storage, "one", 1.0)

    def fail(prefix: str = "") -> list[str]:
        raise UserError("cannot list")

    monkeypatch.setattr(storage, "list_names", fail)
    for look in (lambda: current(storage), lambda: claim(storage, "two", 1.0), lambda: lease.check(storage)):
        with pytest.raises(UserError, match="cannot list") as raised:
            look()
        assert not isinstance(raised.value, FencedError)


@pytest.mark.parametrize("record", [b"{}", b"[]", b'{"attempt": "x", "owner": "", "created": 1}', b"{"])
def test_what_is_no_attempt_is_refused(record: bytes, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.write("lease/attempt_000001.json", record)
    with pytest.raises(UserError, match=r"attempt_000001\.json(:| is not valid JSON)"):
        current(storage)


def write_in_pieces(storage: Storage) -> None:
    with storage.open_write("a") as file:
        file.write(b"new")


@pytest.mark.parametrize(
    "change",
    [
        lambda storage: storage.write("a", b"new"),
        lambda storage: storage.create("b", b"new"),
        lambda storage: storage.delete(["a"]),
        lambda storage: storage.write_json("a", {}),
        write_in_pieces,
    ],
)
def test_a_fenced_attempt_changes_nothing(change: Callable[[Storage], object], place: str) -> None:
    run = Storage(place, create=True)
    run.write("a", b"old")
    fenced = FencedStorage(place, claim(run, "one", 1.0), run)
    claim(run, "two", 2.0)
    with pytest.raises(FencedError):
        change(fenced)
    assert [name for name in run.list_names() if "lease" not in name] == ["a"]
    assert run.read("a") == b"old"


def test_an_object_that_was_begun_before_the_fence_does_not_appear(place: str) -> None:
    run = Storage(place, create=True)
    fenced = FencedStorage(place, claim(run, "one", 1.0), run)
    with pytest.raises(FencedError), fenced.open_write("a") as file:
        file.write(b"x" * 1000)
        claim(run, "two", 2.0)
    assert not run.exists("a")


def test_of_two_attempts_that_commit_at_once_the_first_stays(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one has looked at the lease, and is held up before its request."""
    run = Storage(place, create=True)
    old = FencedStorage(place, claim(run, "one", 1.0), run)
    new = FencedStorage(place, claim(run, "two", 2.0), run)
    new.commit("manifest", b"new")
    monkeypatch.setattr(Lease, "check", lambda lease, storage: None)
    with pytest.raises(UserError, match="manifest was written by another attempt meanwhile"):
        old.commit("manifest", b"old")
    assert run.read("manifest") == b"new"
    new.commit("manifest", b"new")  # as after an answer that was lost


def test_the_last_attempt_writes_as_ever(place: str) -> None:
    run = Storage(place, create=True)
    fenced = FencedStorage(place, claim(run, "one", 1.0), run)
    write_in_pieces(fenced)
    assert fenced.create("b", b"")
    fenced.delete(["b"])
    assert run.read("a") == b"new"
    assert not run.exists("b")
    assert leases.current(fenced) == leases.current(run)
