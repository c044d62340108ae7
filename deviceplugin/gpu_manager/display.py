"""gpu-manager's read-only interfaces, HTTP and gRPC: metrics, topology graph, usage, version.

They serve clients written for gpu-manager. Names are those of gpu-manager's api.proto. Its JSON
omits zero and empty values. docs/agent-outside.md lists the differences.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pyvgpu
from pyvgpu import errors
from pyvgpu._api import display_pb2 as api
from pyvgpu._api import display_pb2_grpc as api_grpc
from pyvgpu.deviceplugin import grpc_socket
from pyvgpu.deviceplugin.gpu_manager import topology
from pyvgpu.deviceplugin.telemetry import metric_families
from pyvgpu.http import endpoints, metric_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import grpc
    from google.protobuf import empty_pb2

    from pyvgpu.deviceplugin.audit import quota_audit
    from pyvgpu.deviceplugin.containers import process_owner
    from pyvgpu.deviceplugin.grants import Grant

_MIB = 1 << 20
_LABELS = ("pod_name", "namespace", "node", "container_name")


@dataclasses.dataclass(frozen=True, slots=True)
class PodOwner:
    """A pod's submitter and cluster, which gpu-manager shows beside its usage."""

    user: str = ""
    cluster: str = ""


NO_MARKS = PodOwner()


def no_marks(_uid: str) -> PodOwner:
    """Return empty marks: without an API server nothing is known of the pod."""
    return NO_MARKS


def marks_by(
    seen: Callable[[str], Mapping[str, Any] | None],
) -> Callable[[str], PodOwner]:
    """Return a lookup of marks by a pod's uid; *seen* returns the pod, None if it was not seen."""
    return lambda uid: NO_MARKS if (pod := seen(uid)) is None else marks_of(pod)


def marks_of(pod: Mapping[str, Any]) -> PodOwner:
    """Return the marks of *pod*, an API object, from where gpu-manager looks for them."""
    first: Mapping[str, Any] = next(iter(pod.get("spec", {}).get("containers") or ()), {})
    variables = {
        variable["name"]: variable.get("value", "") for variable in first.get("env") or ()
    }
    annotations = pod["metadata"].get("annotations") or {}
    return PodOwner(variables.get("SUBMITTER", ""), annotations.get("clusterName", ""))


@dataclasses.dataclass(frozen=True, slots=True)
class DisplaySources:
    """Sources of the answers; each request reads them again."""

    node: str
    figures: metric_families.MetricSources
    held: Callable[[], quota_audit.ProcessSnapshot]  # device memory held by processes
    marks: Callable[[str], PodOwner]  # of a pod, by its uid


@dataclasses.dataclass(frozen=True, slots=True)
class _Device:
    """A container's usage of one device."""

    bus_id: str
    index: int
    percent: float  # of the device's time
    mebibytes: float
    pids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Container:
    """A container's usage and its request."""

    grant: Grant
    devices: tuple[_Device, ...]

    @property
    def vcore(self) -> int:
        return sum(share.vcore for share in self.grant.shares)

    @property
    def mebibytes(self) -> float:
        return float(sum(share.vmemory for share in self.grant.shares) // _MIB)


def answers(sources: DisplaySources) -> dict[str, endpoints.Page]:
    """Return gpu-manager's HTTP pages, by path."""
    return {
        "/metric": endpoints.Page(endpoints.FIGURES, lambda: _figures(sources).encode()),
        "/usage": endpoints.Page(endpoints.JSON, lambda: _json(_usage(sources))),
        "/graph": endpoints.Page(endpoints.JSON, lambda: _json({"graph": _graph(sources)})),
        "/version": endpoints.Page(endpoints.JSON, lambda: _json({"version": pyvgpu.__version__})),
    }


@contextlib.contextmanager
def serving(socket: Path | None, sources: DisplaySources) -> Iterator[None]:
    """Serve gpu-manager's gRPC service at *socket* (None: nowhere) while the block runs."""
    if socket is None:
        yield
        return
    calls = _DisplayCalls(sources)
    try:
        made = grpc_socket.listen(
            socket, lambda server: api_grpc.add_GPUDisplayServicer_to_server(calls, server)
        )
    except errors.UnavailableError as exc:
        raise errors.UnavailableError(f"--display {exc}") from exc
    try:
        yield
    finally:
        made.stop()


class _DisplayCalls(api_grpc.GPUDisplayServicer):
    """gpu-manager's gRPC service."""

    def __init__(self, sources: DisplaySources) -> None:
        self._sources = sources

    def PrintGraph(  # noqa: N802 - these are the API's names
        self,
        request: empty_pb2.Empty,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> api.GraphResponse:
        return api.GraphResponse(graph=_graph(self._sources))

    def PrintUsages(  # noqa: N802
        self,
        request: empty_pb2.Empty,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> api.UsageResponse:
        answer = api.UsageResponse()
        for uid, pod in _usage(self._sources)["usage"].items():
            one = answer.usage[uid]
            one.project, one.user, one.cluster = pod["project"], pod["user"], pod["cluster"]
            for name, value in pod["stat"].items():
                one.stat[name].dev.extend(api.DeviceInfo(**each) for each in value["dev"])
            for name, value in pod["spec"].items():
                one.spec[name].CopyFrom(api.Spec(**value))
        return answer

    def Version(  # noqa: N802
        self,
        request: empty_pb2.Empty,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> api.VersionResponse:
        return api.VersionResponse(version=pyvgpu.__version__)


def _containers(sources: DisplaySources) -> Iterator[_Container]:
    """Yield each container that has a share of a device, with its usage."""
    index = {device.uuid: device.index for device in sources.figures.devices()}
    answers = sources.figures.answers()
    seen = sources.held()
    for grant in sources.figures.grants():
        if grant.owner is None:
            continue
        found = []
        for share in grant.shares:
            use = metric_families.use_of(sources.figures, answers, grant, share.uuid)
            pids = tuple(
                pid
                for pid in sorted(seen.held.get(share.uuid, ()))
                if pid in seen.whose and _is_of(seen.whose[pid], grant)
            )
            answer = answers.get(share.uuid)
            found.append(
                _Device(
                    answer.bus_id if answer else "",
                    index.get(share.uuid, 0),
                    round(100 * use.ratio, 3),
                    float(use.held_bytes // _MIB),
                    pids,
                )
            )
        yield _Container(grant, tuple(found))


def _is_of(one: process_owner.Whose, grant: Grant) -> bool:
    """Whether a process belongs to a grant's container; for whole devices, to its pod."""
    if grant.whole and grant.owner is not None:
        return one.pod == grant.owner.uid
    return one.grant == grant.id


def _figures(sources: DisplaySources) -> str:
    """Return the Prometheus text of /metric; each metric names its last label itself."""
    rows: dict[str, list[tuple[str, float]]] = {metric: [] for metric in _HELP}

    def add(name: str, labels: tuple[str, ...], value: float, last: str) -> None:
        names = (*_LABELS, _HELP[name][0])
        rows[name].append((metric_text.labels(names, (*labels, last)), value))

    for container in _containers(sources):
        owner = container.grant.owner
        assert owner is not None  # noqa: S101 - _containers skips grants without an owner
        labels = (owner.pod, owner.namespace, sources.node, owner.container)
        for one in container.devices:
            add("container_gpu_utilization", labels, one.percent, f"gpu{one.index}")
            add("container_gpu_memory_total", labels, one.mebibytes, f"gpu{one.index}")
        percent = sum(one.percent for one in container.devices)
        add("container_gpu_utilization", labels, percent, "total")
        held = sum(one.mebibytes for one in container.devices)
        add("container_gpu_memory_total", labels, held, "total")
        add("container_request_gpu_utilization", labels, container.vcore / 100, "total")
        add("container_request_gpu_memory", labels, container.mebibytes, "total")
    return "".join(
        metric_text.family(name, "gauge", text, rows[name]) for name, (_, text) in _HELP.items()
    )


_HELP = {
    "container_gpu_memory_total": ("gpu_memory", "gpu memory usage in MiB"),
    "container_gpu_utilization": ("gpu", "gpu utilization"),
    "container_request_gpu_memory": ("req_of_gpu_memory", "request of gpu memory in MiB"),
    "container_request_gpu_utilization": ("req_of_gpu", "request of gpu utilization"),
}


def _usage(sources: DisplaySources) -> dict[str, Any]:
    """Return the document of /usage: by pod, the usage and requests of its containers."""
    pods: dict[str, dict[str, Any]] = {}
    for container in _containers(sources):
        owner = container.grant.owner
        assert owner is not None  # noqa: S101 - _containers skips grants without an owner
        marks = sources.marks(owner.uid)
        pod = pods.setdefault(
            owner.uid,
            {
                "stat": {},
                "project": owner.namespace,
                "user": marks.user,
                "cluster": marks.cluster,
                "spec": {},
            },
        )
        pod["stat"][owner.container] = {
            "dev": [
                {
                    "id": one.bus_id,
                    "card_idx": str(one.index),
                    "gpu": one.percent,
                    "mem": one.mebibytes,
                    "pids": list(one.pids),
                }
                for one in container.devices
            ]
        }
        pod["spec"][owner.container] = {"gpu": container.vcore / 100, "mem": container.mebibytes}
    return {"usage": pods}


def _graph(sources: DisplaySources) -> str:
    answers, seen = sources.figures.answers(), sources.held()
    leaves = []
    for device in sources.figures.devices():
        answer = answers.get(device.uuid)
        shares = [
            share
            for grant in sources.figures.grants()
            for share in grant.shares
            if share.uuid == device.uuid
        ]
        leaves.append(
            topology.Leaf(
                device,
                tuple(sorted(seen.held.get(device.uuid, ()))),
                answer.used_bytes if answer else 0,
                max(100 - sum(share.vcore for share in shares), 0),
                max(device.memory_bytes - sum(share.vmemory for share in shares), 0),
            )
        )
    return topology.text(leaves)


def _json(found: object) -> bytes:
    return json.dumps(_pruned(found), separators=(",", ":"), sort_keys=False).encode()


def _pruned(found: object) -> object:
    """Return *found* without zero and empty values, and with whole floats as integers."""
    if isinstance(found, dict):
        kept = {key: _pruned(value) for key, value in found.items()}
        return {key: value for key, value in kept.items() if value not in (0, "", [], {})}
    if isinstance(found, list):
        return [_pruned(element) for element in found]
    return int(found) if isinstance(found, float) and found.is_integer() else found
