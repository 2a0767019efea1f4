"""Cloud TPU through Google's client library: queued resources, each with one slice.

Credentials come from the library's default chain alone. `CPPLM_TPU_ENDPOINT=127.0.0.1:PORT` speaks to a fake
of the service on this machine instead, without any. The library is imported when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from typing_extensions import override

from cpplm.cloud.backend import Backend, CloudError, Fault, Node, NodeRequest, NodeState
from cpplm.core.errors import UserError, import_extra

ENDPOINT = "CPPLM_TPU_ENDPOINT"
TIMEOUT = 20.0  # seconds for one request; a watcher's lease outlasts it
_QUEUED = {
    "CREATING": NodeState.WAITING, "ACCEPTED": NodeState.WAITING, "WAITING_FOR_RESOURCES": NodeState.WAITING,
    "PROVISIONING": NodeState.CREATING, "ACTIVE": NodeState.CREATING, "FAILED": NodeState.FAILED,
    "SUSPENDING": NodeState.SUSPENDED, "SUSPENDED": NodeState.SUSPENDED, "DELETING": NodeState.DELETING,
}  # fmt: skip
_NODE = {
    "CREATING": NodeState.CREATING, "STARTING": NodeState.CREATING, "RESTARTING": NodeState.CREATING,
    "REIMAGING": NodeState.CREATING, "READY": NodeState.READY, "PREEMPTED": NodeState.PREEMPTED,
    "TERMINATED": NodeState.PREEMPTED, "STOPPED": NodeState.STOPPED, "STOPPING": NodeState.STOPPED,
    "DELETING": NodeState.DELETING,
}  # fmt: skip
_HEALTHY = ("HEALTH_UNSPECIFIED", "HEALTHY")


class CloudTpu(Backend):
    """Queued resources and nodes of one project, in all zones."""

    def __init__(self, project: str = "") -> None:
        """Find credentials and project, which is that of the default chain if none is named.

        Raises:
            UserError: the library, the credentials or the project are missing.
        """
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else its C library writes to stderr
        self._api = import_extra("google.cloud.tpu_v2", "Cloud TPU (google-cloud-tpu) needs", "cloud")
        endpoint = os.environ.get(ENDPOINT, "")
        self._client, self._project = self._loopback(endpoint, project) if endpoint else self._real(project)

    def _loopback(self, endpoint: str, project: str) -> tuple[Any, str]:
        import grpc  # noqa: PLC0415

        if endpoint.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            raise UserError(
                f"{ENDPOINT}={endpoint}: connections without TLS are allowed to this machine only",
                fix="Use 127.0.0.1:PORT or localhost:PORT, or unset the variable.",
            )
        transport = self._api.services.tpu.transports.TpuGrpcTransport(
            channel=grpc.insecure_channel(endpoint)
        )
        return self._api.TpuClient(transport=transport), project or "loopback"

    def _real(self, project: str) -> tuple[Any, str]:
        import google.auth  # noqa: PLC0415
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

        try:
            credentials, default = google.auth.default(
                scopes=["https://www.googleapis.com/auth/cloud-platform"]
            )
        except GoogleAuthError as error:
            raise UserError(
                "no Google credentials were found", fix="Run 'gcloud auth application-default login'."
            ) from error
        if not (project or default):
            raise UserError("no project was named", fix="Give --project, or set GOOGLE_CLOUD_PROJECT.")
        return self._api.TpuClient(credentials=credentials), project or str(default)

    def _call(self, method: Callable[..., Any], **request: Any) -> Any:
        """One request, without the library's own retries; CloudError if it fails or takes too long."""
        from google.api_core import exceptions as api  # noqa: PLC0415
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

        faults: list[tuple[Any, Fault]] = [
            ((api.AlreadyExists, api.Aborted), Fault.EXISTS),
            (api.NotFound, Fault.MISSING),
            (api.TooManyRequests, Fault.EXHAUSTED),
            ((api.Unauthorized, api.Forbidden), Fault.REFUSED),
            (api.ClientError, Fault.INVALID),
        ]
        try:
            return method(request=request, retry=None, timeout=TIMEOUT)
        except (GoogleAuthError, api.GoogleAPICallError, api.RetryError) as error:
            if isinstance(error, GoogleAuthError):
                raise CloudError(Fault.REFUSED, _line(error)) from error
            fault = next((fault for kind, fault in faults if isinstance(error, kind)), Fault.UNAVAILABLE)
            raise CloudError(fault, _line(error)) from error

    def _parent(self, zone: str) -> str:
        return f"projects/{self._project}/locations/{zone}"

    @override
    def create(self, request: NodeRequest) -> None:
        labels = {"cpplm-run": request.run, "cpplm-attempt": str(request.attempt)} if request.run else {}
        node = self._api.Node(
            accelerator_type=request.type,
            runtime_version=request.runtime,
            metadata=request.metadata,
            labels=labels,
            network_config=self._api.NetworkConfig(enable_external_ips=True),
        )
        parent = self._parent(request.zone)
        spec = self._api.QueuedResource.Tpu.NodeSpec(parent=parent, node_id=request.name, node=node)
        queued = self._api.QueuedResource(tpu=self._api.QueuedResource.Tpu(node_spec=[spec]))
        if request.spot:
            queued.spot = self._api.QueuedResource.Spot()
        self._call(
            self._client.create_queued_resource,
            parent=parent,
            queued_resource_id=request.name,
            queued_resource=queued,
            request_id=request.request_id,
        )

    @override
    def list(self) -> list[Node]:
        queued = self._pages(self._client.list_queued_resources, "queued_resources")
        nodes = {_key(each.name): each for each in self._pages(self._client.list_nodes, "nodes")}
        found = []
        for each in queued:
            key = _key(each.name)
            spec = next(iter(each.tpu.node_spec), None)
            node = nodes.pop((key[0], spec.node_id), None) if spec is not None else None
            found.append(self._joined(each, node, spec.node if spec is not None else None))
        return [*found, *(self._alone(each) for each in nodes.values())]

    def _pages(self, method: Callable[..., Any], field: str) -> Iterable[Any]:
        """All entries of all zones.

        Raises:
            CloudError: also when a zone did not answer, whose entries are missing.
        """
        token, entries = "", []
        while True:
            page = self._call(method, parent=self._parent("-"), page_size=200, page_token=token)
            response = next(iter(page.pages))
            if response.unreachable:
                raise CloudError(Fault.UNAVAILABLE, f"no answer from {', '.join(response.unreachable)}")
            entries += getattr(response, field)
            token = response.next_page_token
            if not token:
                return entries

    def _joined(self, queued: Any, node: Any, spec: Any) -> Node:
        """A queued resource and its node, if it has one: its state is the nearer one."""
        state = _QUEUED.get(queued.state.state.name, NodeState.UNKNOWN)
        message = queued.state.failed_data.error.message
        zone, name = _key(queued.name)
        if node is not None:
            alone = self._alone(node)
            if state in (NodeState.WAITING, NodeState.CREATING) or alone.state is NodeState.PREEMPTED:
                state = alone.state
            message = message or alone.message
        labels = dict(spec.labels) if spec is not None else {}
        return Node(
            name, zone, state, spec.accelerator_type if spec is not None else "", "spot" in queued,
            labels.get("cpplm-run", ""), int(labels.get("cpplm-attempt", 0)), _seconds(queued),
            message, _address(node) if node is not None else "",
        )  # fmt: skip

    def _alone(self, node: Any) -> Node:
        zone, name = _key(node.name)
        labels = dict(node.labels)
        message = (
            "" if node.health.name in _HEALTHY else f"{node.health.name} {node.health_description}".strip()
        )
        return Node(
            name, zone, _NODE.get(node.state.name, NodeState.UNKNOWN), node.accelerator_type,
            node.scheduling_config.spot, labels.get("cpplm-run", ""), int(labels.get("cpplm-attempt", 0)),
            _seconds(node), message, _address(node),
        )  # fmt: skip

    @override
    def delete(self, node: Node) -> None:
        name = f"{self._parent(node.zone)}/queuedResources/{node.name}"
        try:
            self._call(self._client.delete_queued_resource, name=name, force=True)
        except CloudError as error:
            if error.fault is not Fault.MISSING:
                raise
            self._call(self._client.delete_node, name=f"{self._parent(node.zone)}/nodes/{node.name}")

    @override
    def stop(self, node: Node) -> None:
        self._call(self._client.stop_node, name=f"{self._parent(node.zone)}/nodes/{node.name}")


def _key(name: str) -> tuple[str, str]:
    """Zone and last part of projects/P/locations/ZONE/nodes/NAME."""
    parts = name.split("/")
    return parts[3], parts[-1]


def _seconds(resource: Any) -> float:
    return float(resource.create_time.timestamp()) if "create_time" in resource else 0.0


def _address(node: Any) -> str:
    endpoints = node.network_endpoints
    return (endpoints[0].access_config.external_ip or endpoints[0].ip_address) if endpoints else ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
