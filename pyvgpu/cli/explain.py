"""`pyvgpu explain POD`: why a pod waits for devices, or does not end."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import names, quantity
from pyvgpu.allocator import isolation, suspensions
from pyvgpu.cli import (
    agent_scrape,
    cluster_options,
    pod_lookup,
    refusals,
    scheduler_snapshot,
    table,
)
from pyvgpu.controller.claims import claim_explanation
from pyvgpu.controller.kubectl import agent_metrics
from pyvgpu.controller.scheduler import cache, pod_request, sampling, wait_reasons
from pyvgpu.controller.sidecar import (
    main_completion,
    nodes,
    projections,
    reconcile,
    sidecar_explanation,
    sidecar_pods,
    termination_methods,
)
from pyvgpu.kube import apiserver, leases, objects

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
    from pyvgpu.kube.objects import Object

_DESCRIPTION = """\
Explain what a pod waits for. If it requests devices and has no node: why each device of each node
does not fit, which one is nearest to fitting and what would make it fit; this needs permission to
list nodes and pods or, if it has claims, deviceclasses, resourceslices and resourceclaims. If its
node does not start it: the refusal of the node's agent, and the same for that node's devices. If
its work is done and it does not end: its containers, how its sidecars are ended, and what blocks
them; this needs permission to read the pod only, and names what else it may not read. For a
running pod also what limits its containers' memory; this needs `get pods/proxy` for the agents.
"""
_EXAMPLES = """\
examples:
  pyvgpu explain train-0
  pyvgpu explain train-7c4jx -n vision
  pyvgpu explain train-0 --json
  kubectl vgpu explain train-0
"""


_SLICE_RESOURCES = {names.GPU_SHARED_RESOURCE, "nvidia.com/gpu.shared"}
_HELD_BY = {
    isolation.Means.HARDWARE.value: "its MIG device",
    isolation.Means.WHOLE.value: "the device, which no other container has",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu explain`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("pod", metavar="POD", help="the name of the pod")
    cluster_options.add_pods_namespace(parser, "the pod's")
    add("--json", action="store_true", help="print one JSON object")
    cluster_options.add_context(parser)
    add(
        "--controller-namespace",
        metavar="NAME",
        type=table.typed(table.namespace, "--controller-namespace"),
        default=cluster_options.NAMESPACE,
        help="the namespace of our programs' leases (%(default)s)",
    )
    cluster_options.add_agents(parser)
    cluster_options.add_settings(parser)


def run(options: argparse.Namespace) -> int:
    """Read the pod and its related objects, and explain."""
    name = pod_lookup.pod_name(options.pod)
    settings = cluster_options.sidecar_settings(options)
    api = apiserver.connect(options.kubeconfig, context=options.context)
    namespace = options.namespace or apiserver.default_namespace(
        options.kubeconfig, options.context
    )
    thing = pod_lookup.read(api, namespace, name)
    asked = pod_request.read(thing, None)
    if asked is not None and asked.waits:
        return _waits(api, thing, asked, options)
    refusal = refusals.find(thing)
    if asked is not None and asked.node and not asked.over and refusal is not None:
        refused = refusals.explain(api, thing, asked, refusal)
        print(refused.document() if options.json else refused.text())
        return 0
    claims = claim_explanation.ServerClaims(api)
    if claim_explanation.concerns(thing) and (found := claim_explanation.explain(claims, thing)):
        document = json.dumps(found.document(), indent=2)
        print(document if options.json else found.text(f"{namespace}/{name}"))
        return 0
    pod = sidecar_pods.read(thing)
    around = RelatedObjects(api, options.controller_namespace, settings)
    moment = reconcile.DecisionMoment(datetime.datetime.now(datetime.UTC), lambda: 0.5)
    said = sidecar_explanation.explain(
        pod, around.of(pod, projections.job_of(thing)), moment, settings
    )
    if pod.phase not in main_completion.TERMINAL:
        around.ask_for_the_controller()
    memory = _memory(api, options, pod) if asked is not None and not asked.over else []
    suspended = suspensions.answer(objects.section(thing, "metadata", "annotations"))
    if options.json:
        facts = {"namespace": namespace, "pod": pod.name, "uid": pod.uid, "phase": pod.phase}
        facts |= {**said.document(), "memory": memory, "notKnown": around.unknown}
        facts["suspension"] = {
            "state": suspended.state.value,
            "hostBytes": suspended.host_bytes,
            "message": suspended.message,
        }
        print(json.dumps(facts, indent=2))
        return 0
    print(f"pod {namespace}/{pod.name}: {pod.phase}{f' on {pod.node}' if pod.node else ''}")
    held = map(_held, memory)
    for line in (
        *said.lines[:-1],
        *held,
        *_slices(thing),
        *_suspension(suspended, f"{pod.name} -n {namespace}"),
        *(f"not known: {unknown}" for unknown in around.unknown),
    ):
        print(f"  {line}")
    print(f"waits for: {said.waits_for}")
    return 0


def _memory(
    api: apiserver.ApiServer, options: argparse.Namespace, pod: sidecar_pods.WatchedPod
) -> list[dict[str, Any]]:
    """Return what limits the memory of a pod's containers, as its node's agent reports it."""
    try:
        report = (agent_scrape.reports(api, options.agent_namespace, {pod.node}) or {}).get(
            pod.node
        )
    except apiserver.ServerError:
        report = None
    if not isinstance(report, agent_metrics.AgentMetrics):
        return []  # no permission to query agents, or no answer
    return agent_metrics.memory(report, pod.namespace, pod.name)


def _slices(pod: Object) -> Iterator[str]:
    """Yield a line for each container with time slices, under their usual names."""
    for container in objects.section(pod, "spec").get("containers") or ():
        limits = objects.section(objects.section(container, "resources"), "limits")
        for name in _SLICE_RESOURCES & limits.keys():
            yield (
                f"container {container.get('name')}: {limits[name]} {name}, the whole device "
                f"without limits; isolation: {isolation.Means.TIME_SLICES}"
            )


def _held(part: dict[str, Any]) -> str:
    quota, limit = part["quotaBytes"], part["driverLimitBytes"]
    driver = "" if limit is None else f", and by the driver to {quantity.format_size(limit)}"
    by = _HELD_BY.get(part["isolation"], "the shim")
    return (
        f"memory of container {part['container']}: held to {quantity.format_size(quota)} of "
        f"{part['uuid']} by {by}{driver}; isolation: {part['isolation'] or 'unknown'}"
    )


def _suspension(answer: suspensions.Answer, pod: str) -> list[str]:
    """Return the lines about a pod that is suspended, or should be."""
    if answer.state is suspensions.PodState.SUSPENDED:
        size = quantity.format_size(answer.host_bytes)
        lines = [
            f"suspended: {size} of its device memory are in host memory; "
            f"`kubectl vgpu resume {pod}` resumes it"
        ]
        return [*lines, f"not resumed: {answer.message}"] if answer.message else lines
    return [f"not suspended: {answer.message}"] if answer.message else []


def _waits(
    api: apiserver.ApiServer,
    thing: Object,
    asked: pod_request.PodRequest,
    options: argparse.Namespace,
) -> int:
    """Print why a pod has no node."""
    known = scheduler_snapshot.from_cluster(api, cache.SchedulerSettings())
    pod = pod_request.read(thing, None, unit=scheduler_snapshot.unit_of(known)) or asked
    why = wait_reasons.find(known, pod, every_device=True)
    if options.json:
        print(json.dumps(why.document(), indent=2))
        return 0
    print(why.text())
    if why.fitting:
        print(
            "  there is room: kube-scheduler has not retried since, or something else rules "
            f"that node out, or it has not asked about that node: see {sampling.REMEDY}"
        )
    rows = why.rows()
    if rows:
        print(wait_reasons.table(rows))
    return 0


class RelatedObjects:
    """The objects related to a pod, as far as we may read them."""

    def __init__(
        self, api: apiserver.ApiServer, leases_in: str, settings: SidecarSettings
    ) -> None:
        self._api = api
        self._leases_in = leases_in
        self._settings = settings
        self.unknown: list[str] = []

    def of(self, pod: sidecar_pods.WatchedPod, job: str) -> termination_methods.Surroundings:
        """Return the surroundings of *pod*, which belongs to *job*."""
        counts = self._job(pod, job) if job and pod.restart_policy == "OnFailure" else None
        if not pod.node:
            return termination_methods.Surroundings(nodes.absent(""), counts)
        thing = self._read(f"/api/v1/nodes/{pod.node}", f"node {pod.node}")
        name = leases.NODE + pod.node
        lease = self._read(leases.path(self._leases_in, name), f"lease {name} of our node part")
        if thing is None:
            return termination_methods.Surroundings(nodes.absent(pod.node), counts)
        now = datetime.datetime.now(datetime.UTC)
        return termination_methods.Surroundings(
            nodes.read(thing, lease, now, self._settings), counts
        )

    def ask_for_the_controller(self) -> None:
        """Note it if no controller holds the lease."""
        name = leases.CONTROLLER
        lease = self._read(leases.path(self._leases_in, name), f"lease {name} of our controller")
        age = nodes.age_of(lease, datetime.datetime.now(datetime.UTC))
        if lease is not None and (age is None or age > self._settings.lease_seconds):
            renewed = objects.section(lease, "spec").get("renewTime")
            self.unknown.append(
                f"when a sidecar-controller is active again: none has been since {renewed}"
            )

    def _job(
        self, pod: sidecar_pods.WatchedPod, name: str
    ) -> termination_methods.OwningJob | None:
        folder = f"/apis/batch/v1/namespaces/{pod.namespace}/jobs"
        job = self._read(f"{folder}/{name}", f"Job {name}")
        return projections.job(job, [pod]) if job else None

    def _read(self, path: str, what: str) -> Object | None:
        try:
            return self._api.call("GET", path)
        except apiserver.ServerError as exc:
            if exc.status == 403:
                self.unknown.append(f"{what}: you may not read it")
            elif exc.status == 404:
                self.unknown.append(f"{what}: it is not there")
            else:
                self.unknown.append(f"{what}: {exc}")
            return None
