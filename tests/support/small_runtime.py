"""Fake container runtime on a real socket, with the CRI calls that sidecar-node makes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc

from pyvgpu._api import cri_pb2 as api
from pyvgpu._api import cri_pb2_grpc as api_grpc
from pyvgpu.controller.sidecar import cri

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclasses.dataclass
class Container:
    """A started container."""

    name: str
    pod: str = "train-0"
    uid: str = "uid-1"
    namespace: str = "team"
    code: int | None = None  # None: it is running
    attempt: int = 0
    ended_at: float = 0.0
    deaf: bool = False  # ignores signals
    quits: bool = False  # ends when anything is executed in it


class SmallRuntime(api_grpc.RuntimeServiceServicer, api_grpc.ImageServiceServicer):
    """Containers by their ids, and the calls received.

    With the name "cri-o" it sends no events, as CRI-O does unless they are enabled.
    """

    def __init__(self, release: str = "v2.4.2", name: str = "containerd") -> None:
        self.release = release
        self.name = name
        self.containers: dict[str, Container] = {}
        self.asked: list[tuple[str, str]] = []  # the call and the container
        self.images: set[str] = set()
        self._readers: list[queue.Queue[Container]] = []
        self._changed = threading.Condition()

    def end(self, identity: str, code: int = 0) -> None:
        """End a container, and send the event to all readers."""
        with self._changed:
            one = self.containers[identity]
            one.code, one.ended_at = code, time.time()
            for reader in self._readers:
                reader.put(one)

    def wait_for(self, call: str, identity: str) -> None:
        """Wait for this call about this container."""
        with self._changed:
            assert self._changed.wait_for(lambda: (call, identity) in self.asked, 60), self.asked

    def wait_for_a_reader(self) -> None:
        """Wait until a client reads events."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._readers, 60)

    def _note(self, call: str, identity: str) -> None:
        with self._changed:
            self.asked.append((call, identity))
            self._changed.notify_all()

    def Version(self, _: Any, __: Any) -> api.VersionResponse:
        return api.VersionResponse(
            version="0.1.0",
            runtime_name=self.name,
            runtime_version=self.release,
            runtime_api_version="v1",
        )

    def ListContainers(
        self, request: api.ListContainersRequest, _: Any
    ) -> api.ListContainersResponse:
        wanted = request.filter
        answer = api.ListContainersResponse()
        for identity, one in self.containers.items():
            if wanted.label_selector.get(cri.POD_UID, one.uid) != one.uid or (
                wanted.state.state == api.CONTAINER_RUNNING and one.code is not None
            ):
                continue
            answer.containers.add(
                id=identity,
                pod_sandbox_id=one.uid,
                metadata=api.ContainerMetadata(name=one.name, attempt=one.attempt),
                state=_state(one),
                created_at=1,
                labels={
                    cri.POD_UID: one.uid,
                    cri.CONTAINER_NAME: one.name,
                    "io.kubernetes.pod.name": one.pod,
                    "io.kubernetes.pod.namespace": one.namespace,
                },
            )
        return answer

    def ContainerStatus(
        self, request: api.ContainerStatusRequest, _: Any
    ) -> api.ContainerStatusResponse:
        one = self.containers[request.container_id]
        status = api.ContainerStatus(
            id=request.container_id,
            state=_state(one),
            finished_at=int(one.ended_at * 1e9),
            exit_code=one.code or 0,
        )
        return api.ContainerStatusResponse(status=status)

    def StopContainer(
        self, request: api.StopContainerRequest, context: grpc.ServicerContext
    ) -> api.StopContainerResponse:
        identity = request.container_id
        self._note("stop", identity)
        if self.containers[identity].deaf:
            while context.is_active():
                time.sleep(0.02)
        else:
            self.end(identity)
        return api.StopContainerResponse()

    def ExecSync(self, request: api.ExecSyncRequest, _: Any) -> api.ExecSyncResponse:
        identity = request.container_id
        self._note("execute", identity)
        if self.containers[identity].quits:
            self.end(identity)
        return api.ExecSyncResponse()

    def ImageStatus(self, request: api.ImageStatusRequest, _: Any) -> api.ImageStatusResponse:
        image = request.image.image
        found = api.Image(id=image) if image in self.images else None
        return api.ImageStatusResponse(image=found)

    def GetContainerEvents(
        self, _: Any, context: grpc.ServicerContext
    ) -> Iterator[api.ContainerEventResponse]:
        if self.name == "cri-o":
            return  # it ends the stream at once, without an error
        reader: queue.Queue[Container] = queue.Queue()
        with self._changed:
            self._readers.append(reader)
            self._changed.notify_all()
        while context.is_active():
            with contextlib.suppress(queue.Empty):
                one = reader.get(timeout=0.1)
                pod = api.PodSandboxMetadata(name=one.pod, uid=one.uid, namespace=one.namespace)
                yield api.ContainerEventResponse(
                    container_id="id",
                    container_event_type=api.CONTAINER_STOPPED_EVENT,
                    created_at=1,
                    pod_sandbox_status=api.PodSandboxStatus(metadata=pod),
                )


def _state(one: Container) -> api.ContainerState:
    return api.CONTAINER_RUNNING if one.code is None else api.CONTAINER_EXITED


@contextlib.contextmanager
def running(folder: Path, runtime: SmallRuntime) -> Iterator[cri.RuntimeClient]:
    """Serve *runtime*; yield a connection to it."""
    served = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    api_grpc.add_RuntimeServiceServicer_to_server(runtime, served)
    api_grpc.add_ImageServiceServicer_to_server(runtime, served)
    served.add_insecure_port(f"unix:{folder}/runtime.sock")
    served.start()
    connection = cri.RuntimeClient(f"{folder}/runtime.sock")
    try:
        yield connection
    finally:
        connection.close()
        served.stop(None).wait()
