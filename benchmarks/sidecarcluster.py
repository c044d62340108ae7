"""Cluster side of the sidecar benchmark: Jobs, a fake node, observed events."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import kubeletrelists
import rig
import sidecars

from pyvgpu import names
from pyvgpu._api import cri_pb2 as api
from pyvgpu._api import cri_pb2_grpc as api_grpc
from pyvgpu.controller.sidecar import nodes
from pyvgpu.kube import apiserver, leases, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FAKE_NODE = "fake-1"
_THREADS = 8
_SEEN = frozenset({"ADDED", "MODIFIED"})


class Ends:
    """When the containers of this machine ended, by the container runtime's own events."""

    def __init__(self) -> None:
        self.at: dict[tuple[str, str], list[float]] = {}  # (pod, container) -> seconds since 1970
        self.ids: dict[str, list[str]] = {}  # pod -> its containers, in the order of their ends
        self._channel = grpc.insecure_channel(f"unix:{os.environ['CONTAINERD_ADDRESS']}")
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        stub = api_grpc.RuntimeServiceStub(self._channel)
        with contextlib.suppress(grpc.RpcError):
            for event in stub.GetContainerEvents(api.GetEventsRequest()):
                if event.container_event_type != api.CONTAINER_STOPPED_EVENT:
                    continue
                pod = event.pod_sandbox_status.metadata.name
                for status in event.containers_statuses:
                    if status.id == event.container_id:
                        key = (pod, status.metadata.name)
                        self.at.setdefault(key, []).append(status.finished_at / 1e9)
                        self.ids.setdefault(pod, []).append(event.container_id)

    def close(self) -> None:
        """Hear no more."""
        self._channel.close()


def relists() -> dict[str, float]:
    """Return when kubelet first listed each container that had ended: id -> since 1970."""
    found: dict[str, float] = {}
    now = datetime.datetime.now().astimezone()
    with Path(os.environ["CLUSTER_RUN"], "log", "kubelet.log").open(errors="replace") as log:
        for relist in kubeletrelists.read(log, now):
            found.setdefault(relist.container, relist.at)
    return found


class Watched:
    """The pods of a namespace, as the API server tells of them, and when."""

    def __init__(self, space: rig.Space, note: Callable[[dict[str, Any], float], None]) -> None:
        self._space = space
        self._note = note
        self._stop = threading.Event()
        self._version = space.server.items(space.path("pods"), {})[1]
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while not self._stop.is_set():
            path = self._space.path("pods")
            with contextlib.suppress(apiserver.ServerError):
                for event, thing in self._space.server.watch(path, {}, self._version, 300):
                    self._version = thing["metadata"]["resourceVersion"]
                    if event in _SEEN:
                        self._note(thing, time.time())
                    if self._stop.is_set():
                        return

    def close(self) -> None:
        """Watch no more."""
        self._stop.set()


def job(space: rig.Space, name: str, *containers: dict[str, Any], **spec: Any) -> None:
    """Create a Job whose pod went through the webhook's transformation."""
    template = sidecars.admitted(space, rig.pod(name, *containers, **spec))
    space.create("jobs", rig.job(name, template, backoffLimit=0))


@contextlib.contextmanager
def fake_node() -> Iterator[None]:
    """Maintain a fake node: it is ready, renews its leases, and has the fast-exit image."""
    admin = rig.as_admin().server
    node = {
        "metadata": {"name": FAKE_NODE, "labels": {"fake": "yes"}},
        "status": {
            "capacity": {"cpu": "4k", "memory": "64Ti", "pods": "20k"},
            "allocatable": {"cpu": "4k", "memory": "64Ti", "pods": "20k"},
            "images": [{"names": [rig.FAST_EXIT], "sizeBytes": 1}],
        },
    }
    admin.call("POST", "/api/v1/nodes", body=node)
    ours = leases.Lease(admin, sidecars.NAMESPACE, leases.NODE + FAKE_NODE, FAKE_NODE)
    kubelets = leases.Lease(admin, "kube-node-lease", FAKE_NODE, FAKE_NODE)
    stop = threading.Event()

    def live() -> None:
        while not stop.is_set():
            now = objects.now()
            ready = {
                "type": "Ready",
                "status": "True",
                "lastHeartbeatTime": now,
                "reason": "Bench",
            }
            kubelets.try_to_hold()
            ours.try_to_hold({nodes.FAST_EXIT_ANNOTATION: rig.FAST_EXIT})
            with contextlib.suppress(apiserver.ServerError):
                path = f"/api/v1/nodes/{FAKE_NODE}"
                status = {"status": {"conditions": [ready]}}
                admin.call("PATCH", f"{path}/status", body=status, kind=apiserver.MERGE_PATCH)
                bare = {"spec": {"taints": None}}
                admin.call("PATCH", path, body=bare, kind=apiserver.MERGE_PATCH)
            stop.wait(8)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        admin.call("DELETE", f"/api/v1/nodes/{FAKE_NODE}")


class FakeKubelet:
    """Updates pods on the fake node as kubelet and the node part would, immediately."""

    def __init__(self, space: rig.Space) -> None:
        self._space = space
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS)
        self.begun: dict[str, float] = {}  # uid -> when the controller's write was seen
        self.writes: dict[str, int] = {}  # uid -> how often the pod was changed but by its status
        self.over: dict[str, str] = {}  # uid -> phase
        self._before: dict[str, tuple[Any, Any]] = {}
        self._watched = Watched(space, self._note)

    def _note(self, pod: dict[str, Any], at: float) -> None:
        uid, metadata = pod["metadata"]["uid"], pod["metadata"]
        ours = (
            metadata.get("annotations"),
            [container["image"] for container in pod["spec"]["containers"]],
        )
        if self._before.setdefault(uid, ours) != ours:
            self._before[uid] = ours
            self.writes[uid] = self.writes.get(uid, 0) + 1
        if names.STOP_ANNOTATION not in (metadata.get("annotations") or {}):
            return
        self.begun.setdefault(uid, at)
        if rig.has_ended(pod):
            self.over[uid] = rig.phase(pod)
        elif pod["spec"].get("nodeName") == FAKE_NODE and uid not in self.over:
            self.over[uid] = ""
            self._pool.submit(self.say, pod, 0)

    def say(self, pod: dict[str, Any], sidecar_code: int | None) -> None:
        """Say that the main container has ended, and the sidecar with this code (None: runs)."""
        now = objects.now()
        runs = {"running": {"startedAt": now}}
        ended = {"terminated": {"exitCode": 0, "finishedAt": now}}
        states = [ended, runs if sidecar_code is None else ended]
        status = {
            "phase": "Running" if sidecar_code is None else "Succeeded",
            "conditions": [] if sidecar_code is None else [{"type": "Ready", "status": "False"}],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "containerID": f"containerd://{pod['metadata']['uid']}-{container['name']}",
                    "state": state,
                }
                for container, state in zip(pod["spec"]["containers"], states, strict=True)
            ],
        }
        path = self._space.path("pods", pod["metadata"]["name"]) + "/status"
        for _ in range(5):
            with contextlib.suppress(apiserver.ServerError):
                body = {"status": status}
                self._space.server.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)
                return

    def close(self) -> None:
        """Say no more."""
        self._watched.close()
        self._pool.shutdown(cancel_futures=True)


def in_parallel(work: Callable[[Any], None], things: Iterable[Any]) -> None:
    """Do *work* for each of *things*, some at a time."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(work, things))
