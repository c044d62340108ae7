"""Client of a node's container runtime, by the Container Runtime Interface (CRI v1).

It uses only calls that kubelet makes, so containerd and CRI-O behave alike. The runtime sends the
image's STOPSIGNAL (else TERM) and then KILL; it does not know preStop hooks, so the node part runs
them (``hooks``).
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import grpc

from pyvgpu import errors
from pyvgpu._api import cri_pb2 as api
from pyvgpu._api import cri_pb2_grpc as api_grpc
from pyvgpu.controller.sidecar import node_requests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

POD_UID = "io.kubernetes.pod.uid"  # labels and annotations that kubelet sets on containers
CONTAINER_NAME = "io.kubernetes.container.name"
_POD_NAMESPACE, _POD_NAME = "io.kubernetes.pod.namespace", "io.kubernetes.pod.name"
PRE_STOP = "io.kubernetes.container.preStopHandler"
PORTS = "io.kubernetes.container.ports"

_SECONDS = 10  # timeout of calls that return at once
_FOREVER = 86_400  # a grace period longer than any deadline of ours


class RuntimeRefusedError(errors.UnavailableError):
    """A call to the container runtime failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """A container as the runtime lists it."""

    id: str  # without the runtime's name as a prefix
    pod: str  # the ID of the pod's sandbox
    name: str
    attempt: int
    created_at: float  # by the node's clock, seconds since the epoch
    running: bool
    exited: bool
    annotations: Mapping[str, str]


class RuntimeClient:
    """A connection to a runtime; thread-safe."""

    def __init__(self, socket: str) -> None:
        self._channel = grpc.insecure_channel(
            f"unix:{socket}", options=[("grpc.max_receive_message_length", 64 << 20)]
        )
        self._runtime = api_grpc.RuntimeServiceStub(self._channel)
        self._images = api_grpc.ImageServiceStub(self._channel)
        self._socket = socket
        self._name = ""

    def close(self) -> None:
        """Close the connection, which cancels every call on it."""
        self._channel.close()

    def prefix(self) -> str:
        """Return kubelet's prefix of container IDs, such as ``containerd://``."""
        if not self._name:
            self._name = self._version().runtime_name
        return f"{self._name}://"

    def newest(self, uid: str) -> Sequence[RuntimeContainer]:
        """Return the containers of a pod, the newest of each name."""
        newest: dict[str, RuntimeContainer] = {}
        for entry in self._list(api.ContainerFilter(label_selector={POD_UID: uid})):
            one = RuntimeContainer(
                entry.id,
                entry.pod_sandbox_id,
                entry.labels.get(CONTAINER_NAME, ""),
                entry.metadata.attempt,
                entry.created_at / 1e9,
                entry.state == api.CONTAINER_RUNNING,
                entry.state == api.CONTAINER_EXITED,
                dict(entry.annotations),
            )
            if one.name not in newest or newest[one.name].attempt <= one.attempt:
                newest[one.name] = one
        return tuple(newest.values())

    def containers(self, found: Sequence[RuntimeContainer]) -> Sequence[node_requests.Running]:
        """Return the containers that run or have ended, for comparison with a record.

        A container that was created but not started yet is omitted.
        """
        return tuple(
            node_requests.Running(one.name, self.prefix() + one.id, *self.end_of(one))
            for one in found
            if one.running or one.exited
        )

    def end_of(self, one: RuntimeContainer) -> tuple[int | None, float]:
        """Return a container's exit code, and its end in seconds since the epoch."""
        if not one.exited:
            return None, 0.0
        found = self._status(one.id)
        return found.exit_code, found.finished_at / 1e9

    def has_ended(self, container: str) -> bool:
        """Return whether a container has ended or was removed."""
        try:
            return bool(self._status(container).state == api.CONTAINER_EXITED)
        except RuntimeRefusedError as exc:
            if _code(exc) is grpc.StatusCode.NOT_FOUND:
                return True
            raise

    def events(self) -> Iterator[str]:
        """Yield the namespace/name of a pod whenever one of its containers starts or ends.

        It ends with the connection. RuntimeRefusedError if the runtime has no events, or is
        containerd before 2.0, which delivers each event to a single reader that may be kubelet.
        """
        version = self._version()
        release = version.runtime_version.lstrip("v")
        if version.runtime_name == "containerd" and release.startswith(("0.", "1.")):
            raise RuntimeRefusedError(f"{self._socket}: events go to one reader in {release}")
        with self._refusals("events"):
            for event in self._runtime.GetContainerEvents(api.GetEventsRequest()):
                pod = event.pod_sandbox_status.metadata
                yield f"{pod.namespace}/{pod.name}"

    def running(self) -> dict[str, str]:
        """Return the namespace/name of each running container's pod, by container ID."""
        state = api.ContainerStateValue(state=api.CONTAINER_RUNNING)
        found = {}
        for entry in self._list(api.ContainerFilter(state=state)):
            labels = entry.labels
            found[entry.id] = f"{labels.get(_POD_NAMESPACE)}/{labels.get(_POD_NAME)}"
        return found

    def stop(self, container: str, grace_seconds: float, *, kill: bool) -> bool:
        """Stop a container; return whether it has ended.

        Without *kill* it is only signaled: the runtime gets a grace period beyond our deadline,
        and its wait ends when our call is cancelled.
        """
        timeout = round(grace_seconds) if kill else _FOREVER
        request = api.StopContainerRequest(container_id=container, timeout=timeout)
        deadline = grace_seconds + _SECONDS if kill else max(grace_seconds, 1)
        try:
            with self._refusals("StopContainer"):
                self._runtime.StopContainer(request, timeout=deadline)
        except RuntimeRefusedError as exc:
            code = _code(exc)
            if code is grpc.StatusCode.NOT_FOUND:
                return True
            if code is grpc.StatusCode.DEADLINE_EXCEEDED and not kill:
                return False
            raise
        return True

    def execute(self, container: str, command: Sequence[str], seconds: float) -> int:
        """Run *command* in a container, and return its exit code."""
        request = api.ExecSyncRequest(
            container_id=container, cmd=command, timeout=max(round(seconds), 1)
        )
        with self._refusals("ExecSync"):
            answer = self._runtime.ExecSync(request, timeout=seconds + _SECONDS)
        return int(answer.exit_code)

    def address(self, pod: str) -> str:
        """Return a pod's IP address; empty if it uses the host network."""
        request = api.PodSandboxStatusRequest(pod_sandbox_id=pod)
        with self._refusals("PodSandboxStatus"):
            answer = self._runtime.PodSandboxStatus(request, timeout=_SECONDS)
        return str(answer.status.network.ip)

    def has_image(self, image: str) -> bool:
        """Return whether the node has an image."""
        request = api.ImageStatusRequest(image=api.ImageSpec(image=image))
        with self._refusals("ImageStatus"):
            answer = self._images.ImageStatus(request, timeout=_SECONDS)
        return bool(answer.HasField("image"))

    def _version(self) -> api.VersionResponse:
        with self._refusals("Version"):
            return self._runtime.Version(api.VersionRequest(), timeout=_SECONDS)

    def _list(self, wanted: api.ContainerFilter) -> Sequence[api.Container]:
        request = api.ListContainersRequest(filter=wanted)
        with self._refusals("ListContainers"):
            return self._runtime.ListContainers(request, timeout=_SECONDS).containers

    def _status(self, container: str) -> api.ContainerStatus:
        request = api.ContainerStatusRequest(container_id=container)
        with self._refusals("ContainerStatus"):
            return self._runtime.ContainerStatus(request, timeout=_SECONDS).status

    @contextlib.contextmanager
    def _refusals(self, method: str) -> Iterator[None]:
        """Translate gRPC errors into RuntimeRefusedError, which names the *method*."""
        try:
            yield
        except grpc.RpcError as exc:
            raise RuntimeRefusedError(f"{self._socket}: {method}: {exc.details()}") from exc


def _code(exc: RuntimeRefusedError) -> grpc.StatusCode | None:
    return exc.__cause__.code() if isinstance(exc.__cause__, grpc.RpcError) else None
