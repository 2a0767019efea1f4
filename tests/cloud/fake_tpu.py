"""The Cloud TPU service on the loopback: its gRPC protocol, with nodes that are processes of this machine.

A node runs the start-up script of its metadata, with a metadata server of its own. `CPPLM_TPU_ENDPOINT` leads
the real client here. Faults are put into `faults`; what must never happen is counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import psutil
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from tests.metadata_server import metadata_server

State = tpu_v2.QueuedResourceState.State
NodeState = tpu_v2.Node.State


@dataclass
class FakeNode:
    """A queued resource and its node."""

    queued: Any
    zone: str
    name: str
    made: float
    process: subprocess.Popen[bytes] | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    metadata: Any = None
    preempted: bool = False
    deleting: float = 0.0

    @property
    def spec(self) -> Any:
        return self.queued.tpu.node_spec[0].node

    @property
    def run(self) -> str:
        return str(self.spec.labels.get("cpplm-run", ""))


class FakeTpu:
    """The service. Times are in seconds; `grace` lies between notice and end of a preempted node."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.folder, self.environment = folder, environment or {}
        self.queue_seconds = self.create_seconds = self.delete_seconds = 0.0
        self.grace = 5.0
        self.out_of_stock: set[str] = set()
        self.faults: deque[tuple[str, grpc.StatusCode | float]] = deque()
        """(method, code to answer with) for the next request of that method; a number: hang so long."""
        self.lose_answers: deque[str] = deque()
        """Methods whose next request is carried out, and answered with UNAVAILABLE."""
        self.calls: list[tuple[float, str]] = []
        self.made: list[str] = []
        """Names of nodes, in the order in which they were made."""
        self.made_at: dict[str, float] = {}
        self.most_alive = 0
        """Nodes of one run whose processes ran at the same time."""
        self.lock = threading.RLock()
        self.nodes: dict[tuple[str, str], FakeNode] = {}
        self.forgotten: list[FakeNode] = []
        self._answered: dict[str, bytes] = {}
        self._over = threading.Event()
        self.address = ""

    # ---- the service --------------------------------------------------------------------------------------

    def handle(self, method: str, request: bytes, context: Any) -> bytes:
        with self.lock:
            self.calls.append((time.time(), method))
            for fault in self.faults:
                if fault[0] == method:
                    self.faults.remove(fault)
                    self._fail(fault[1], context)
                    break
            answer: bytes = getattr(self, re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", method))(
                request, context
            )
            if method in self.lose_answers:
                self.lose_answers.remove(method)
                context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
            return answer

    def _fail(self, fault: grpc.StatusCode | float, context: Any) -> None:
        if isinstance(fault, float):
            self.lock.release()
            time.sleep(fault)
            self.lock.acquire()
            fault = grpc.StatusCode.UNAVAILABLE
        context.abort(fault, f"made to fail: {fault.name}")

    def _create_queued_resource(self, data: bytes, context: Any) -> bytes:
        request = tpu_v2.CreateQueuedResourceRequest.deserialize(data)
        if request.request_id in self._answered:
            return self._answered[request.request_id]
        zone, name = request.parent.split("/")[3], request.queued_resource_id
        if zone in self.out_of_stock:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"There is no more capacity in the zone {zone}")
        if (zone, name) in self.nodes:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, name)
        queued = request.queued_resource
        queued.name = f"{request.parent}/queuedResources/{name}"
        queued.create_time = datetime.now(UTC)
        self.nodes[zone, name] = FakeNode(queued, zone, name, time.time())
        self.made.append(name)
        self.made_at[name] = time.time()
        answer = _BEGUN
        self._answered[request.request_id] = answer
        return answer

    def _list_queued_resources(self, data: bytes, context: Any) -> bytes:
        response = tpu_v2.ListQueuedResourcesResponse()
        for node in self.nodes.values():
            node.queued.state.state = self._queued_state(node)
            response.queued_resources.append(node.queued)
        return tpu_v2.ListQueuedResourcesResponse.serialize(response)

    def _queued_state(self, node: FakeNode) -> Any:
        age = time.time() - node.made
        if node.deleting:
            return State.DELETING
        if node.preempted:
            return State.SUSPENDED
        if age < self.queue_seconds:
            return State.WAITING_FOR_RESOURCES
        return State.PROVISIONING if node.process is None else State.ACTIVE

    def _list_nodes(self, data: bytes, context: Any) -> bytes:
        response = tpu_v2.ListNodesResponse()
        for node in self.nodes.values():
            if node.process is not None and not node.deleting:
                response.nodes.append(tpu_v2.Node(
                    name=node.queued.name.replace("queuedResources", "nodes"),
                    accelerator_type=node.spec.accelerator_type, labels=node.spec.labels,
                    state=NodeState.PREEMPTED if node.preempted else NodeState.READY,
                    health=tpu_v2.Node.Health.HEALTHY,
                    network_endpoints=[tpu_v2.NetworkEndpoint(ip_address="127.0.0.1")],
                ))  # fmt: skip
        return tpu_v2.ListNodesResponse.serialize(response)

    def _delete_queued_resource(self, data: bytes, context: Any) -> bytes:
        request = tpu_v2.DeleteQueuedResourceRequest.deserialize(data)
        node = self._find(request.name, context)
        if not node.deleting:
            node.deleting = time.time()
            threading.Thread(target=self._remove, args=(node,), daemon=True).start()
        return _BEGUN

    def _stop_node(self, data: bytes, context: Any) -> bytes:
        self._find(tpu_v2.StopNodeRequest.deserialize(data).name, context)
        return _BEGUN

    def _delete_node(self, data: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "no such node")
        return b""

    def _find(self, name: str, context: Any) -> FakeNode:
        parts = name.split("/")
        node = self.nodes.get((parts[3], parts[-1]))
        if node is None:
            context.abort(grpc.StatusCode.NOT_FOUND, name)
        assert node is not None
        return node

    # ---- the machines -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Nodes whose time has come are made."""
        with self.lock:
            for node in self.nodes.values():
                due = node.made + self.queue_seconds + self.create_seconds
                if node.process is None and not node.deleting and not node.preempted and time.time() >= due:
                    self._boot(node)
            for run in {node.run for node in self.nodes.values()}:
                alive = [n for n in self.nodes.values() if n.run == run and _is_alive(n)]
                self.most_alive = max(self.most_alive, len(alive))

    def _boot(self, node: FakeNode) -> None:
        node.metadata = node.stack.enter_context(metadata_server())
        for key, value in node.spec.metadata.items():
            node.metadata.set(f"instance/attributes/{key}", value)
        folder = self.folder / node.name
        folder.mkdir(parents=True)
        script = folder / "startup-script"
        script.write_text(node.spec.metadata.get("startup-script", "sleep 3600"))
        machine = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
        own = {"GCE_METADATA_HOST": node.metadata.host, "CPPLM_WORK": str(folder / "work")}
        with (folder / "serial-port.txt").open("wb") as output:
            node.process = subprocess.Popen(
                ["bash", str(script)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**machine, **self.environment, **own}, start_new_session=True,
            )  # fmt: skip

    def preempt(self, name: str, *, warn: bool = True) -> None:
        """Take a node away: a notice and SIGTERM, then its end; without `warn` at once."""
        with self.lock:
            node = next((each for each in self.nodes.values() if each.name == name), None)
            if node is None or node.preempted:
                return
            process = node.process
            if process is None or not warn:
                node.preempted = True
                _kill(process)
                return
            node.metadata.set("instance/preempted", "TRUE")

        def end() -> None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.grace)
            with self.lock:
                node.preempted = True
                _kill(process)

        threading.Thread(target=end, daemon=True).start()

    def forget(self, name: str) -> subprocess.Popen[bytes]:
        """A node is in no listing any more, and its process runs on."""
        with self.lock:
            node = next(each for each in self.nodes.values() if each.name == name)
            self.forgotten.append(self.nodes.pop((node.zone, node.name)))
            assert node.process is not None
            return node.process

    def _remove(self, node: FakeNode) -> None:
        if node.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.process.wait(self.grace)
            _kill(node.process)
        time.sleep(self.delete_seconds)
        with self.lock:
            self.nodes.pop((node.zone, node.name), None)
        node.stack.close()

    def close(self) -> None:
        self._over.set()
        for node in [*self.nodes.values(), *self.forgotten]:
            _kill(node.process)
            node.stack.close()

    def _work(self) -> None:
        while not self._over.wait(0.02):
            self.tick()


def _is_alive(node: FakeNode) -> bool:
    return node.process is not None and node.process.poll() is None


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


_BEGUN = operations_pb2.Operation(name="operations/begun").SerializeToString()
"""An operation that goes on: whoever asked looks at the listings."""


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, fake: FakeTpu) -> None:
        self._fake = fake

    def service(self, details: Any) -> Any:
        service, method = details.method.strip("/").split("/")
        if service != "google.cloud.tpu.v2.Tpu":
            return None

        def answer(request: bytes, context: Any) -> bytes:
            return self._fake.handle(method, request, context)

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def fake_tpu(folder: Path, environment: dict[str, str] | None = None) -> Iterator[FakeTpu]:
    """A running service; its `address` goes into CPPLM_TPU_ENDPOINT."""
    fake = FakeTpu(folder, environment)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((_Handlers(fake),))
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    threading.Thread(target=fake._work, daemon=True).start()
    try:
        yield fake
    finally:
        server.stop(0)
        fake.close()
