"""Fixed example cluster for the status page, with every kind of row and state."""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from typing import TYPE_CHECKING, Any

import scheduling_api
import small_api
import status_node
from scheduling_api import GIB, UNIT
from waiting import wait_until

from pyvgpu import errors, names
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.controller.status import cluster_state, guard
from pyvgpu.http import endpoints
from pyvgpu.status import history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AGENTS = "pyvgpu-agent"
VIEWER, STRANGER = "token-of-a-viewer", "token-of-a-stranger"
MODEL = status_node.MODEL
NODES = 12
EVENTS = (
    ("ada/sweep-12", "VGPUWaits", "no device for 70 vcore and 40GiB: 12 nodes: not enough left"),
    (
        "vision/segment-5",
        "VGPUDeviceUnhealthy",
        "gpu3 does not work: Xid 94 (contained ECC error)",
    ),
)


class StatusApi(scheduling_api.SchedulingApi):
    """API server with TokenReview and SubjectAccessReview for the page's users."""

    def __init__(self) -> None:
        super().__init__()
        self.users = {VIEWER: "ada", STRANGER: "eve"}
        self.allowed = {"ada"}
        self.reviewed: list[dict[str, Any]] = []  # specs of SubjectAccessReviews

    def _note(self, kind: str, path: str, thing: dict[str, Any]) -> None:
        """Also send the event to watches of the agents' namespace."""
        super()._note(kind, path, thing)
        folder = f"/api/v1/namespaces/{AGENTS}/pods"
        if path.startswith(f"{folder}/"):
            self._history.append((self._version, kind, folder, copy.deepcopy(thing)))

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Return the status code and the object for a request."""
        if path not in (guard.TOKENS, guard.ACCESS) or self.failing or self.down:
            return super().answer(method, path, query, body)
        self.asked.append((method, path))
        spec = body["spec"]
        if path == guard.TOKENS:
            name = self.users.get(spec["token"])
            user = {"username": name, "groups": ["people"], "extra": {"scopes": ["all"]}}
            status = {"authenticated": True, "user": user} if name else {"authenticated": False}
            return 201, {"status": status}
        self.reviewed.append(spec)
        return 201, {"status": {"allowed": spec["user"] in self.allowed}}


def fill(api: StatusApi, nodes: int = NODES) -> None:
    """Create nodes with agents, running pods with devices, pending pods, and events."""
    for number in range(nodes):
        name = f"gpu-node-{number + 1}"
        put_node(api, name, number)
        put_agent(api, name, ready=number != 8)
        for at in range(8):
            _put_tenant(api, name, number, at)
    for at, (pod, vcore, units) in enumerate(
        (("sweep-12", 70, 160), ("sweep-13", 70, 160), ("finetune-2", 100, 0))
    ):
        thing = scheduling_api.pod(pod, vcore, units)
        thing["metadata"] |= {
            "namespace": "ada",
            "creationTimestamp": f"2026-11-22T10:{12 + 6 * at:02}:00Z",
        }
        api.put(f"/api/v1/namespaces/ada/pods/{pod}", thing)
    for at, (involved, reason, text) in enumerate(EVENTS):
        namespace, _, pod = involved.partition("/")
        api.put(
            f"/api/v1/events/{at}",
            {
                "metadata": {"namespace": namespace, "name": f"{pod}.{at}"},
                "involvedObject": {"kind": "Pod", "namespace": namespace, "name": pod},
                "type": "Warning",
                "reason": reason,
                "message": text,
                "lastTimestamp": f"2026-11-22T10:{30 - 7 * at}:00Z",
                "source": {"component": "pyvgpu"},
            },
        )


def put_node(api: StatusApi, name: str, number: int = 0) -> None:
    """Create a node with eight devices."""
    had = tuple(
        datatypes.NodeDevice(
            f"GPU-{name}-{at}",
            at,
            80 * GIB,
            model=MODEL,
            unhealthy="Xid 79 (it has fallen off the bus)" if (number, at) == (6, 3) else "",
            cordoned=(number, at) == (2, 0),
        )
        for at in range(8)
    )
    api.put(f"/api/v1/nodes/{name}", scheduling_api.node(name, *had))


def put_agent(api: StatusApi, node: str, *, ready: bool = True) -> None:
    """Create the agent's pod of a node."""
    api.put(
        f"/api/v1/namespaces/{AGENTS}/pods/agent-{node}",
        {
            "metadata": {
                "namespace": AGENTS,
                "name": f"agent-{node}",
                "labels": {"app": "agent"},
            },
            "spec": {"nodeName": node},
            "status": {
                "podIP": "127.0.0.1",
                "conditions": [{"type": "Ready", "status": str(ready)}],
            },
        },
    )


def _put_tenant(api: StatusApi, node: str, number: int, at: int) -> None:
    """Create a running pod with a share of a device."""
    vcore = (35, 50, 70, 100)[(number * at + at) % 4]
    units = 320 if vcore == 100 else (80, 130, 200)[(number * 3 + at) % 3]
    pod = scheduling_api.pod(f"job-{number}-{at}", vcore, units, nodeName=node)
    share = datatypes.NodeShare(f"GPU-{node}-{at}", vcore, units * UNIT)
    choice = annotations.DeviceChoice(pod["metadata"]["uid"], node, {"main": (share,)})
    text = annotations.seal(choice, scheduling_api.KEY)
    pod["metadata"] |= {"namespace": "team", "annotations": {names.DEVICES_ANNOTATION: text}}
    pod["status"]["phase"] = "Running"
    api.put(f"/api/v1/namespaces/team/pods/job-{number}-{at}", pod)


@contextlib.contextmanager
def running(
    api: StatusApi,
    *,
    agents: bool = True,
    settled: bool = True,
    claims: bool = False,
    store: str = "",
    clock: Callable[[], float] = lambda: status_node.AT,
) -> Iterator[cluster_state.Cluster]:
    """Run the page of *api*'s cluster; with *agents*, one HTTP server answers for all nodes."""
    stop = threading.Event()
    served = endpoints.Pages(lambda: b"", more=status_node.Node().routes() if agents else {})
    with small_api.running(api) as (_, connection), endpoints.serving("0", served) as port:
        settings = cluster_state.StatusSettings(
            "frankfurt", AGENTS, port, claims=claims, store=store
        )
        shown = cluster_state.Cluster(connection, settings, clock=clock)
        thread = threading.Thread(target=shown.run, args=(stop,), daemon=True)
        thread.start()
        try:
            if settled:
                wait_until(lambda: is_settled(shown))
            yield shown
        finally:
            stop.set()
            shown._hurry.set()
            api.close()
            thread.join()


def until(
    shown: cluster_state.Cluster, condition: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Wait until *condition* holds for the page's document; return the document."""
    found: list[dict[str, Any]] = []

    def holds() -> bool:
        shown._hurry.set()
        with contextlib.suppress(errors.UnavailableError):
            found[:] = [shown.document({})]
        return bool(found and condition(found[0]))

    wait_until(holds, found=lambda: found)
    return found[0]


def lines() -> dict[str, list[int]]:
    """Return plausible history lines of some minutes."""
    samples = range(history.POINTS)
    return {
        "allocated": [480 + number + round(60 * math.sin(number / 6)) for number in samples],
        "memory": [440 + number // 2 for number in samples],
        "waiting": [max(number // 15, number // 8 - 4) for number in samples],
    }


def day() -> dict[str, Any]:
    """Return a plausible last day."""
    steps = range(history.DAY_POINTS)
    return {
        "seconds": history.STEP_SECONDS,
        "allocated": [400 + round(300 * math.sin(step / 46) ** 2) for step in steps],
        "memory": [380 + round(240 * math.sin(step / 46) ** 2) for step in steps],
        "waiting": [max(0, round(9 * math.sin(step / 46)) - 5) for step in steps],
    }


def is_settled(shown: cluster_state.Cluster) -> bool:
    """Return whether all data is loaded, including why each pod waits."""
    if not shown.nodes:
        return False
    try:
        found = shown.document({})
    except errors.UnavailableError:
        return False
    return all(row["why"] for row in found["waiting"]["rows"]) and len(found["events"]) > 0
