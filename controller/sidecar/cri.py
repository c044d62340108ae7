"""The container runtime of a node, by the Container Runtime Interface (version 1).

What is asked is what kubelet asks: containerd and CRI-O answer alike. The runtime sends the
image's STOPSIGNAL (else TERM) and then KILL; a preStop hook it knows nothing of, so the node part
runs that (``hooks``).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import grpc

from pyvgpu import errors, wire
from pyvgpu.controller.sidecar import node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    _Request = Mapping[int, wire.Content]

POD_UID = "io.kubernetes.pod.uid"  # labels and annotations that kubelet gives a container
CONTAINER_NAME = "io.kubernetes.container.name"
_POD_NAMESPACE, _POD_NAME = "io.kubernetes.pod.namespace", "io.kubernetes.pod.name"
PRE_STOP = "io.kubernetes.container.preStopHandler"
PORTS = "io.kubernetes.container.ports"

_RUNNING, _EXITED = 1, 2
_SECONDS = 10  # for what the runtime answers at once
_FOREVER = 86_400  # a grace period that nobody waits for the end of


class RuntimeRefusedError(errors.UnavailableError):
    """The container runtime does not do what it was asked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A container as the runtime lists it."""

    id: str  # the runtime's, without its name before it
    pod: str  # the runtime's id of the pod's sandbox
    name: str
    attempt: int
    created_at: float  # by the node's clock, in seconds since 1970
    running: bool
    exited: bool
    annotations: Mapping[str, str]


class Runtime:
    """A connection to a runtime; it may be used by several threads."""

    def __init__(self, socket: str) -> None:
        self._channel = grpc.insecure_channel(
            f"unix:{socket}", options=[("grpc.max_receive_message_length", 64 << 20)]
        )
        self._socket = socket
        self._name = ""

    def close(self) -> None:
        """End the connection, and every call on it."""
        self._channel.close()

    def prefix(self) -> str:
        """Return what kubelet writes before a container's id, such as ``containerd://``."""
        if not self._name:
            self._name = self._call("RuntimeService/Version", {}).text(2)
        return f"{self._name}://"

    def seen(self, uid: str) -> Sequence[Seen]:
        """Return the containers of a pod, the newest of each name."""
        found = self._call("RuntimeService/ListContainers", {1: {4: wire.labels({POD_UID: uid})}})
        newest: dict[str, Seen] = {}
        for entry in found.messages(1):
            one = Seen(
                entry.text(1),
                entry.text(2),
                entry.labels(8).get(CONTAINER_NAME, ""),
                entry.message(3).number(2),
                entry.number(7) / 1e9,
                entry.number(6) == _RUNNING,
                entry.number(6) == _EXITED,
                entry.labels(9),
            )
            if one.name not in newest or newest[one.name].attempt <= one.attempt:
                newest[one.name] = one
        return tuple(newest.values())

    def containers(self, found: Sequence[Seen]) -> Sequence[node.Running]:
        """Return what the node part compares a request with.

        One that was made and not started yet is none: neither does it run, nor has it ended.
        """
        return tuple(
            node.Running(one.name, self.prefix() + one.id, *self.end_of(one))
            for one in found
            if one.running or one.exited
        )

    def end_of(self, one: Seen) -> tuple[int | None, float]:
        """Return a container's exit code, and when it ended in seconds since 1970."""
        if not one.exited:
            return None, 0.0
        answer = self._call("RuntimeService/ContainerStatus", {1: one.id}).message(1)
        return answer.number(7), answer.number(6) / 1e9

    def has_ended(self, container: str) -> bool:
        """Tell whether a container has ended, or is not there any more."""
        try:
            answer = self._call("RuntimeService/ContainerStatus", {1: container}).message(1)
        except RuntimeRefusedError as exc:
            if _code(exc) is grpc.StatusCode.NOT_FOUND:
                return True
            raise
        return answer.number(3) == _EXITED

    def events(self) -> Iterator[str]:
        """Yield the namespace/name of a pod whenever one of its containers begins or ends.

        As long as the connection lasts. containerd before 2.0 gives each event to one reader
        alone, which may be kubelet: there, and where a runtime has no events, RuntimeRefusedError.
        """
        version = self._call("RuntimeService/Version", {})
        name, release = version.text(2), version.text(3).lstrip("v")
        if name == "containerd" and release.startswith(("0.", "1.")):
            raise RuntimeRefusedError(f"{self._socket}: events are not everybody's in {release}")
        call = self._channel.unary_stream(
            "/runtime.v1.RuntimeService/GetContainerEvents",
            request_serializer=wire.encode,
            response_deserializer=wire.Message,
        )
        try:
            for event in call({}):
                pod = event.message(4).message(2)
                yield f"{pod.text(3)}/{pod.text(1)}"
        except grpc.RpcError as exc:
            raise RuntimeRefusedError(f"{self._socket}: events: {exc.details()}") from exc

    def running(self) -> dict[str, str]:
        """Return the namespace/name of the pod of every container that runs, by its id."""
        answer = self._call("RuntimeService/ListContainers", {1: {2: {1: _RUNNING}}})
        found = {}
        for entry in answer.messages(1):
            labels = entry.labels(8)
            found[entry.text(1)] = f"{labels.get(_POD_NAMESPACE)}/{labels.get(_POD_NAME)}"
        return found

    def stop(self, container: str, grace_seconds: float, *, kill: bool) -> bool:
        """Stop a container; tell whether it has ended.

        Without *kill* it is told and waited for: the runtime is given a longer time than we have,
        and gives up when we do.
        """
        request: _Request = {1: container, 2: round(grace_seconds) if kill else _FOREVER}
        deadline = grace_seconds + _SECONDS if kill else max(grace_seconds, 1)
        try:
            self._call("RuntimeService/StopContainer", request, deadline)
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
        request: _Request = {1: container, 2: list(command), 3: max(round(seconds), 1)}
        answer = self._call("RuntimeService/ExecSync", request, seconds + _SECONDS)
        return answer.number(3)

    def address(self, pod: str) -> str:
        """Return a pod's IP address, an empty string if it has the node's."""
        answer = self._call("RuntimeService/PodSandboxStatus", {1: pod})
        return answer.message(1).message(5).text(1)

    def has_image(self, image: str) -> bool:
        """Tell whether the node has an image."""
        answer = self._call("ImageService/ImageStatus", {1: {1: image}})
        return bool(answer.data(1))

    def _call(self, method: str, request: _Request, seconds: float = _SECONDS) -> wire.Message:
        call = self._channel.unary_unary(
            f"/runtime.v1.{method}",
            request_serializer=wire.encode,
            response_deserializer=wire.Message,
        )
        try:
            answer: wire.Message = call(request, timeout=seconds)
        except grpc.RpcError as exc:
            name = method.rpartition("/")[2]
            raise RuntimeRefusedError(f"{self._socket}: {name}: {exc.details()}") from exc
        return answer


def _code(exc: RuntimeRefusedError) -> grpc.StatusCode | None:
    return exc.__cause__.code() if isinstance(exc.__cause__, grpc.RpcError) else None
