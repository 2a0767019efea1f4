"""The real client library against a service on the loopback."""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.cloud import tpu_v2

from cpplm.cloud.backend import CloudError, Fault, Node, NodeRequest, NodeState, find
from cpplm.cloud.cloud_tpu import ENDPOINT, CloudTpu
from cpplm.core.errors import UserError
from tests.cloud.fake_tpu import FakeTpu, fake_tpu

ZONE = "us-east5-b"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTpu]:
    with fake_tpu(tmp_path / "nodes") as service:
        monkeypatch.setenv(ENDPOINT, service.address)
        yield service


def request(attempt: int = 1, **values: object) -> NodeRequest:
    fields = {
        "name": f"cpplm-x-{attempt}",
        "zone": ZONE,
        "type": "v6e-4",
        "runtime": "r",
        "spot": True,
        "run": "x",
    }
    return NodeRequest(**{**fields, "attempt": attempt, "metadata": {"startup-script": "sleep 60"}, **values})


def wait_for(backend: CloudTpu, state: NodeState | None) -> Node | None:
    """Until the only node is in this state, or gone."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        nodes = backend.list()
        if (nodes[0].state if nodes else None) == state:
            return nodes[0] if nodes else None
        time.sleep(0.01)
    raise AssertionError(backend.list())


def test_the_life_of_a_node(fake: FakeTpu) -> None:
    backend = CloudTpu()
    fake.queue_seconds = fake.create_seconds = 0.2
    assert backend.list() == []
    backend.create(request(7))
    assert wait_for(backend, NodeState.WAITING)
    assert wait_for(backend, NodeState.CREATING)
    node = wait_for(backend, NodeState.READY)
    assert node is not None
    assert (node.name, node.zone, node.type, node.spot, node.run, node.attempt) == (
        "cpplm-x-7", ZONE, "v6e-4", True, "x", 7,
    )  # fmt: skip
    assert abs(node.created - time.time()) < 20
    assert node.address == "127.0.0.1"
    fake.preempt(node.name, warn=False)
    assert wait_for(backend, NodeState.PREEMPTED)
    backend.delete(find(backend, node.name))
    wait_for(backend, None)
    with pytest.raises(CloudError) as raised:
        backend.delete(node)
    assert raised.value.fault is Fault.MISSING


def test_the_same_request_twice_makes_one_node(fake: FakeTpu) -> None:
    """Also when the answer to the first is lost, and when its node is gone by then."""
    backend = CloudTpu()
    fake.lose_answers.append("CreateQueuedResource")
    with pytest.raises(CloudError) as raised:
        backend.create(request())
    assert raised.value.fault is Fault.UNAVAILABLE
    backend.create(request())
    node = wait_for(backend, NodeState.READY)
    assert node is not None
    backend.delete(node)
    wait_for(backend, None)
    backend.create(request())
    assert backend.list() == []
    assert fake.made == ["cpplm-x-1"]


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("RESOURCE_EXHAUSTED", Fault.EXHAUSTED),
        ("UNAVAILABLE", Fault.UNAVAILABLE),
        ("DEADLINE_EXCEEDED", Fault.UNAVAILABLE),
        ("INTERNAL", Fault.UNAVAILABLE),
        ("UNAUTHENTICATED", Fault.REFUSED),
        ("PERMISSION_DENIED", Fault.REFUSED),
        ("INVALID_ARGUMENT", Fault.INVALID),
        ("ALREADY_EXISTS", Fault.EXISTS),
    ],
)
def test_each_answer_has_its_fault(code: str, fault: Fault, fake: FakeTpu) -> None:
    fake.faults.append(("CreateQueuedResource", grpc.StatusCode[code]))
    with pytest.raises(CloudError) as raised:
        CloudTpu().create(request())
    assert raised.value.fault is fault
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("method", ["ListQueuedResources", "ListNodes"])
def test_a_listing_that_fails_or_hangs_is_no_empty_one(
    method: str, fake: FakeTpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpplm.cloud.cloud_tpu.TIMEOUT", 0.3)
    backend = CloudTpu()
    for fault in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED, 1.0):
        fake.faults.append((method, fault))
        begin = time.monotonic()
        with pytest.raises(CloudError):
            backend.list()
        assert time.monotonic() - begin < 0.9
    assert backend.list() == []


def test_a_zone_that_does_not_answer_fails_the_listing(
    fake: FakeTpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tpu_v2.ListNodesResponse(unreachable=["us-east5-b"])
    monkeypatch.setattr(
        fake, "_list_nodes", lambda data, context: tpu_v2.ListNodesResponse.serialize(partial)
    )
    with pytest.raises(CloudError, match="no answer from us-east5-b"):
        CloudTpu().list()


def test_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "127.0.0.1:1")
    monkeypatch.setattr("cpplm.cloud.cloud_tpu.TIMEOUT", 1.0)
    with pytest.raises(CloudError) as raised:
        CloudTpu().list()
    assert raised.value.fault is Fault.UNAVAILABLE


def test_only_this_machine_is_spoken_to_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "tpu.example.com:443")
    with pytest.raises(UserError, match="this machine only"):
        CloudTpu()


def test_without_credentials_it_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(UserError, match=r"no Google credentials were found.*gcloud auth"):
        CloudTpu()
