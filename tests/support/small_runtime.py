"""A small container runtime on a real socket, which speaks of CRI what the node part asks for."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc

from pyvgpu import wire
from pyvgpu.controller.sidecar import cri

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RUNNING, _EXITED = 1, 2
_STOPPED = 2


@dataclasses.dataclass
class Container:
    """A container that was begun."""

    name: str
    pod: str = "train-0"
    uid: str = "uid-1"
    namespace: str = "team"
    code: int | None = None  # None: it runs
    attempt: int = 0
    ended_at: float = 0.0
    deaf: bool = False  # to signals
    quits: bool = False  # when anything is run in it


class SmallRuntime:
    """Containers by their ids, and what was asked for.

    CRI-O is told by its name, and gives no events where nobody has switched them on.
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
        """Let a container end, and say so to all who read events."""
        with self._changed:
            one = self.containers[identity]
            one.code, one.ended_at = code, time.time()
            for reader in self._readers:
                reader.put(one)

    def wait_for(self, call: str, identity: str) -> None:
        """Wait until something was asked for."""
        with self._changed:
            assert self._changed.wait_for(lambda: (call, identity) in self.asked, 60), self.asked

    def wait_for_a_reader(self) -> None:
        """Wait until somebody reads events."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._readers, 60)

    def _note(self, call: str, identity: str) -> None:
        with self._changed:
            self.asked.append((call, identity))
            self._changed.notify_all()

    def Version(self, _: wire.Message, __: Any) -> dict[int, Any]:
        return {1: "0.1.0", 2: self.name, 3: self.release, 4: "v1"}

    def ListContainers(self, request: wire.Message, _: Any) -> dict[int, Any]:
        wanted = request.message(1)
        labels, state = wanted.labels(4), wanted.message(2).number(1)
        return {
            1: [
                {
                    1: identity,
                    2: one.uid,
                    3: {1: one.name, 2: one.attempt},
                    6: _RUNNING if one.code is None else _EXITED,
                    7: 1,
                    8: wire.labels(
                        {
                            cri.POD_UID: one.uid,
                            cri.CONTAINER_NAME: one.name,
                            "io.kubernetes.pod.name": one.pod,
                            "io.kubernetes.pod.namespace": one.namespace,
                        }
                    ),
                }
                for identity, one in self.containers.items()
                if labels.get(cri.POD_UID, one.uid) == one.uid
                and not (state == _RUNNING and one.code is not None)
            ]
        }

    def ContainerStatus(self, request: wire.Message, _: Any) -> dict[int, Any]:
        one = self.containers[request.text(1)]
        state = _RUNNING if one.code is None else _EXITED
        return {1: {1: request.text(1), 3: state, 6: int(one.ended_at * 1e9), 7: one.code or 0}}

    def StopContainer(
        self, request: wire.Message, context: grpc.ServicerContext
    ) -> dict[int, Any]:
        identity = request.text(1)
        self._note("stop", identity)
        if self.containers[identity].deaf:
            while context.is_active():
                time.sleep(0.02)
        else:
            self.end(identity)
        return {}

    def ExecSync(self, request: wire.Message, _: Any) -> dict[int, Any]:
        identity = request.text(1)
        self._note("execute", identity)
        if self.containers[identity].quits:
            self.end(identity)
        return {3: 0}

    def ImageStatus(self, request: wire.Message, _: Any) -> dict[int, Any]:
        image = request.message(1).text(1)
        return {1: {1: image}} if image in self.images else {}

    def GetContainerEvents(
        self, _: wire.Message, context: grpc.ServicerContext
    ) -> Iterator[dict[int, Any]]:
        if self.name == "cri-o":
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "pod events are not enabled")
        reader: queue.Queue[Container] = queue.Queue()
        with self._changed:
            self._readers.append(reader)
            self._changed.notify_all()
        while context.is_active():
            with contextlib.suppress(queue.Empty):
                one = reader.get(timeout=0.1)
                metadata = {1: one.pod, 2: one.uid, 3: one.namespace}
                yield {1: "id", 2: _STOPPED, 3: 1, 4: {2: metadata}}


class _Calls(grpc.GenericRpcHandler):
    def __init__(self, runtime: SmallRuntime) -> None:
        self._runtime = runtime

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]
        call = getattr(self._runtime, name, None)
        make = (
            grpc.unary_stream_rpc_method_handler
            if name == "GetContainerEvents"
            else grpc.unary_unary_rpc_method_handler
        )
        return call and make(
            call, request_deserializer=wire.Message, response_serializer=wire.encode
        )


@contextlib.contextmanager
def running(folder: Path, runtime: SmallRuntime) -> Iterator[cri.Runtime]:
    """Serve *runtime*; yield a connection to it."""
    served = grpc.server(concurrent.futures.ThreadPoolExecutor(8), handlers=[_Calls(runtime)])
    served.add_insecure_port(f"unix:{folder}/runtime.sock")
    served.start()
    connection = cri.Runtime(f"{folder}/runtime.sock")
    try:
        yield connection
    finally:
        connection.close()
        served.stop(None).wait()
