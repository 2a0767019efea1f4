"""The notice of a metadata server, against one on the loopback."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.core.preemption import METADATA_HOST, metadata_host, read_metadata, watch_preemption
from tests.metadata_server import MetadataServer, metadata_server

PAUSES = (0.02, 0.05)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    with metadata_server() as server:
        monkeypatch.setenv(METADATA_HOST, server.host)
        yield server


def test_the_notice_is_heard_soon(server: MetadataServer) -> None:
    heard = threading.Event()
    with watch_preemption(heard.set):
        assert not heard.wait(0.3)
        server.set("instance/preempted", "TRUE")
        assert heard.wait(5)


def test_a_notice_that_came_before_is_heard(server: MetadataServer) -> None:
    server.set("instance/preempted", "TRUE")
    heard = threading.Event()
    with watch_preemption(heard.set):
        assert heard.wait(5)


def test_a_server_that_does_not_answer_is_asked_again_with_pauses(
    server: MetadataServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpplm.core.preemption._PAUSES", PAUSES)
    heard = threading.Event()
    server.flavor = "proxy"  # some other server at this address
    server.values["instance/preempted"] = "TRUE"
    with watch_preemption(heard.set):
        assert not heard.wait(0.5)
        assert len(server.requests) < 0.5 / PAUSES[0]
        server.flavor = "Google"
        assert heard.wait(5)
    assert capsys.readouterr().err.count("does not answer") == 1


def test_nothing_is_asked_after_the_end(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpplm.core.preemption._PAUSES", PAUSES)
    with watch_preemption(lambda: None):
        while len(server.requests) < 2:
            time.sleep(0.01)
    asked = len(server.requests)
    time.sleep(0.2)
    assert len(server.requests) == asked


def test_where_the_server_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(METADATA_HOST, raising=False)
    product = tmp_path / "product_name"
    assert metadata_host(product) is None
    product.write_text("Virtual Machine\n")
    assert metadata_host(product) is None
    product.write_text("Google Compute Engine\n")
    assert metadata_host(product) == "metadata.google.internal"
    monkeypatch.setenv(METADATA_HOST, "127.0.0.1:8")
    assert metadata_host(product) == "127.0.0.1:8"


def test_other_machines_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpplm.core.preemption.metadata_host", lambda: None)
    before = threading.active_count()
    with watch_preemption(lambda: None):
        assert threading.active_count() == before


def test_a_value_is_read_or_its_absence_said(server: MetadataServer) -> None:
    server.values["instance/zone"] = "projects/1/zones/europe-west4-a"
    value, headers = read_metadata(server.host, "instance/zone")
    assert value == "projects/1/zones/europe-west4-a"
    assert headers["Date"]
    with pytest.raises(OSError, match="status 404 for instance/name"):
        read_metadata(server.host, "instance/name")
