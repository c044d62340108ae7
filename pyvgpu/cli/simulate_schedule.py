"""`pyvgpu simulate-schedule FILE`: predict the placement of pods."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, input_files
from pyvgpu.cli import cluster_options, scheduler_snapshot
from pyvgpu.controller.scheduler import cache, extender, pod_request
from pyvgpu.controller.webhook import conversions, devices, drafts
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyvgpu.kube.objects import Object

_DESCRIPTION = """\
Predict the node and devices of each pod in FILE, in order, or why it does not fit. Nothing is
created. Besides devices, only the pod's nodeSelector and cordoned nodes are considered, not
taints, CPU or other constraints.
"""
_EXAMPLES = """\
examples:
  pyvgpu simulate-schedule pod.yaml
  kubectl get pod NAME -o yaml | pyvgpu simulate-schedule -
  kubectl get nodes,pods -A -o json > cluster.json
  pyvgpu simulate-schedule pods.yaml --cluster cluster.json --policy spread
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu simulate-schedule`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add(
        "file",
        metavar="FILE",
        type=Path,
        help=f"pods, or a list of them, in YAML or JSON; {input_files.HELP}",
    )
    add(
        "--cluster",
        metavar="FILE",
        type=Path,
        help="output of `kubectl get nodes,pods -A -o json`, or - for standard input (the live "
        "cluster)",
    )
    scheduler_snapshot.add_policy(parser)
    cluster_options.add_kubeconfig(parser)
    add("--json", action="store_true", help="print one JSON object")


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """The predicted placement of one pod."""

    pod: str
    node: str = ""  # empty: it does not fit
    devices: tuple[str, ...] = ()  # each: container, device and its share
    why: str = ""

    @property
    def line(self) -> str:
        """Return it as text."""
        if self.why:
            return f"{self.pod}: waits: {self.why}"
        return f"{self.pod}: {self.node}" + (
            f": {', '.join(self.devices)}" if self.devices else ""
        )


def run(options: argparse.Namespace) -> int:
    """Place the pods in a copy of the cluster; 0 if all fit, else 1."""
    settings = scheduler_snapshot.read_settings(options)
    input_files.check_one_standard_input(options.file, options.cluster)
    pods = [
        _named(thing, at) for at, thing in enumerate(scheduler_snapshot.read_objects(options.file))
    ]
    if not pods:
        raise errors.DataError(
            f"{input_files.title(options.file)}: contains no pod; must have at least one, such as "
            "`kubectl get pod NAME -o yaml` writes"
        )
    if options.cluster:
        there = scheduler_snapshot.read_objects(options.cluster)
        nodes = scheduler_snapshot.nodes_of(there)
        if not nodes:
            raise errors.DataError(
                f"{input_files.title(options.cluster)}: contains no node; must be the output of "
                "`kubectl get nodes,pods -A -o json`"
            )
        known = scheduler_snapshot.from_objects(there, settings)
    else:
        api = apiserver.connect(options.kubeconfig)
        nodes = api.items("/api/v1/nodes", {})[0]
        known = scheduler_snapshot.from_cluster(api, settings)
    placed = place_all(known, nodes, pods)
    if options.json:
        print(json.dumps({"pods": [dataclasses.asdict(result) for result in placed]}, indent=2))
    else:
        for outcome in placed:
            print(outcome.line)
    return 0 if all(not result.why for result in placed) else 1


def place_all(known: cache.Cache, nodes: Sequence[Object], pods: Sequence[Object]) -> list[Placed]:
    """Place *pods* in order, with all members of each gang known from the start."""
    decider = extender.Decider(known)
    unit = scheduler_snapshot.unit_of(known)
    read = [_read(thing, unit) for thing in pods]
    for _, pod in read:
        if isinstance(pod, pod_request.PodRequest):
            known.see_pod(pod.key, pod)
    return [
        Placed(_key(thing), why=str(pod))
        if isinstance(pod, errors.UsageError)
        else _place(decider, nodes, thing, pod)
        for thing, pod in read
    ]


def _read(
    thing: Object, unit: int
) -> tuple[Object, pod_request.PodRequest | errors.UsageError | None]:
    """Return a pod as the webhook converts it, and its request, or why it would be refused."""
    draft = drafts.Draft(thing)
    try:
        conversions.convert_mebibytes(draft, unit)
    except errors.UsageError as exc:
        return thing, exc
    asked = pod_request.read(draft.document, unit=unit)
    if asked is not None and not asked.trouble:
        rules = devices.DeviceRules(unit)
        if why := devices.why_invalid(draft.document, asked, rules):
            return thing, errors.UsageError(why)
    return draft.document, asked


def _place(
    decider: extender.Decider,
    nodes: Sequence[Object],
    thing: Object,
    pod: pod_request.PodRequest | None,
) -> Placed:
    key = _key(thing)
    if pod is None:
        return Placed(key, why="it requests no device, so kube-scheduler alone decides")
    names = [
        name
        for name in map(_name, filter(lambda candidate: _may(candidate, thing), nodes))
        if name
    ]
    answer = decider.filter(pod, names, 0.0)
    if not answer.fitting:
        why = decider.explain(key, names)
        return Placed(key, why=why.event() if why else "no node was considered")
    scores = decider.prioritize(pod, answer.fitting, 0.0)
    node = min(
        zip(scores, answer.fitting, strict=True), key=lambda scored: (-scored[0], scored[1])
    )[1]
    shares = decider.cache.reserve(pod, node, 0.0)
    labels = {device.uuid: device.label for device in decider.cache.nodes[node].devices}
    return Placed(
        key,
        node,
        tuple(
            f"{container} {labels.get(share.uuid, share.uuid)} {share.vcore} vcore "
            f"{share.vmemory >> 20} MiB"
            for container, own in shares.items()
            for share in own
        ),
    )


def _key(pod: Object) -> str:
    meta = objects.section(pod, "metadata")
    return f"{meta.get('namespace')}/{meta.get('name')}"


def _name(node: Object) -> str:
    return str(objects.section(node, "metadata").get("name") or "")


def _may(node: Object, pod: Object) -> bool:
    """Return whether *node* is schedulable and matches the nodeSelector of *pod*."""
    if objects.section(node, "spec").get("unschedulable"):
        return False
    labels = objects.section(node, "metadata", "labels")
    return objects.section(pod, "spec", "nodeSelector").items() <= labels.items()


def _all_objects(those: list[object]) -> bool:
    return all(isinstance(one, dict) for one in those)


def _named(thing: Object, at: int) -> Object:
    """Return a pod with the fields that the API server would fill in; DataError if malformed."""
    if thing.get("kind", "Pod") != "Pod":
        raise errors.DataError(
            f"a {thing.get('kind')}: must be a Pod; for a Job or Deployment give its "
            "spec.template, with `kind: Pod` and a name"
        )
    meta = objects.section(thing, "metadata")
    name = meta.get("name") or f"{meta.get('generateName') or 'pod-'}{at}"
    filled = {"namespace": "default", **meta, "name": name, "uid": f"simulated-{at}"}
    spec = {k: v for k, v in objects.section(thing, "spec").items() if k != "nodeName"}
    containers = spec.get("containers")
    if not (isinstance(containers, list) and containers and _all_objects(containers)):
        raise errors.DataError(
            f"pod {name}: spec.containers: must be a list of at least one container, such as "
            "[{name: main, resources: {limits: {pyvgpu.io/vcore: 30, pyvgpu.io/vmemory: 16}}}]"
        )
    for container in containers:
        limits = objects.section(container, "resources").get("limits")
        if not (limits is None or isinstance(limits, dict)):
            raise errors.DataError(
                f"pod {name}: container {container.get('name')}: resources.limits: must have "
                "names and amounts, such as {pyvgpu.io/vcore: 30, pyvgpu.io/vmemory: 16}"
            )
    return {**thing, "metadata": filled, "spec": spec, "status": {}}
