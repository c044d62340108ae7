"""Runs the scheduler extender against the e2e cluster's kube-scheduler, with fake nodes."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rig
import runner
import waiting

from pyvgpu import names
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.controller.certs import serving_certificate
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.controller.scheduler.shell import leader_label
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RIGHTS = "scheduler/rights.yaml"
NAMESPACE, ACCOUNT = "pyvgpu", "scheduler"
PLACE = serving_certificate.ServerObjects(NAMESPACE, "pyvgpu-scheduler")
KEY_PLACE = serving_certificate.ServerObjects("pyvgpu-agent", "pyvgpu-placement")
PORT = 28443
UNIT = 256 << 20
GIB = 1 << 30
SECRETS = [
    {"metadata": {"name": place.name, "namespace": place.namespace}}
    for place in (PLACE, KEY_PLACE)
]

_CLUSTER = Path(__file__).parents[2] / "tests" / "e2e" / "cluster" / "cluster"


class Extender:
    """A `pyvgpu scheduler` process with the chart's RBAC rules, and a stand-in pod for it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self.name, self._port, self._options = folder, "scheduler-1", PORT, options
        self._ours = rig.as_admin(NAMESPACE)
        self._kubeconfig = folder / f"{self.name}.kubeconfig"
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / f"{self.name}.log"
        self.config = folder / "kube-scheduler.json"  # of the calling kube-scheduler
        self.undisturbed = True  # no test has killed the API server

    def prepare(self) -> None:
        """Create its RBAC rules, secrets and stand-in pod."""
        rig.apply(RIGHTS)
        for secret in SECRETS:
            with contextlib.suppress(apiserver.ServerError):  # it exists
                place = f"/api/v1/namespaces/{secret['metadata']['namespace']}/secrets"
                self._ours.server.call("POST", place, body=secret)
        self._ours.until("serviceaccounts", ACCOUNT, lambda _: True)
        stands = rig.pod(self.name, rig.container("stands", "sleep 100000"))
        stands["metadata"]["labels"] = {"app": "scheduler"}
        stands["spec"]["nodeName"] = "node-1"
        with contextlib.suppress(apiserver.ServerError):
            self._ours.create("pods", stands)
        rig.write_kubeconfig(self._kubeconfig, NAMESPACE, ACCOUNT)

    def start(self) -> None:
        """Start it, and wait until it is the leader."""
        self.begin()
        self.until_leading()

    def begin(self) -> None:
        """Start it without waiting."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(runner.PYVGPU, "scheduler", "--kubeconfig", self._kubeconfig),
                    *("--namespace", NAMESPACE, "--pod", self.name),
                    *("--serve", f"127.0.0.1:{self._port}"),
                    *("--listen", str(self._port + 1), *self._options),
                ],
                stdout=log,
                stderr=log,
            )

    def until_leading(self) -> None:
        """Wait until the Service would route to this process."""
        self._ours.until(
            "pods",
            self.name,
            lambda current: leader_label.LABEL in current["metadata"]["labels"]
            and self._answers(),
        )

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop it with this signal."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(rig.SECONDS)

    def remove(self) -> None:
        """Delete its RBAC rules, and its pod, which a later Service might select."""
        now = {"gracePeriodSeconds": 0}
        self._ours.server.call("DELETE", self._ours.path("pods", self.name), body=now)
        rig.delete(RIGHTS)

    def figure(self, name: str) -> float:
        """Return the value of one of its metrics."""
        text = self._page("/metrics")
        line = next(row for row in text.splitlines() if row.startswith(f"{name} "))
        return float(line.split()[1])

    def _answers(self) -> bool:
        return "ready to answer:" in self.log.read_text()

    def _page(self, path: str) -> str:
        command = ["curl", "--silent", "--show-error", f"http://127.0.0.1:{self._port + 1}{path}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write_scheduler(
    path: Path,
    percentage: int = 100,
    prefix: str = f"https://127.0.0.1:{PORT}/scheduler",
    *,
    extended: bool = True,
    **more: Any,
) -> None:
    """Write the kube-scheduler configuration of docs/scheduler.md, or one without the extender.

    *more* overrides fields of the extender.
    """
    ours = rig.as_admin(NAMESPACE)
    made = {"client.crt", "ca.crt"}
    secret = ours.until(
        "secrets", PLACE.name, lambda current: made <= (current.get("data") or {}).keys()
    )
    kubeconfig = Path(os.environ["CLUSTER_RUN"], "pki/kube-scheduler.kubeconfig")
    managed = [resource for pair in pod_request.RESOURCES for resource in pair]
    extender = {
        "urlPrefix": prefix,
        **{f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind", "preempt")},
        "weight": 10,
        "enableHTTPS": True,
        "tlsConfig": {
            "serverName": PLACE.host,
            "caData": secret["data"]["ca.crt"],
            "certData": secret["data"]["client.crt"],
            "keyData": secret["data"]["client.key"],
        },
        "httpTimeout": "30s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            {"name": resource, "ignoredByScheduler": False} for resource in managed
        ],
        **more,
    }
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000},
        "leaderElection": {"leaderElect": False},
        "extenders": [extender] if extended else [],
    }
    if percentage:
        config["percentageOfNodesToScore"] = percentage
    path.write_text(json.dumps(config))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Extender]:
    """Run the extender, and kube-scheduler configured as in docs/scheduler.md."""
    made = Extender(folder, "--resync", "5")
    made.prepare()
    made.start()
    write_scheduler(made.config)
    restart_scheduler(made.config)
    try:
        yield made
    finally:
        restart_scheduler(None)
        made.stop()
        made.remove()
    said = made.log.read_text()  # the shipped RBAC rules suffice
    # A freshly started API server has not loaded the RBAC rules yet.
    assert " 403 " not in said or not made.undisturbed
    assert "Traceback" not in said


def restart_scheduler(config: Path | None, features: str = "") -> None:
    """Restart kube-scheduler with another configuration; None: the rig's own."""
    subprocess.run([_CLUSTER, "stop", "kube-scheduler"], check=True, capture_output=True)
    more = {} if config is None else {"CLUSTER_SCHEDULER_CONFIG": str(config)}
    more |= {"CLUSTER_FEATURES": features} if features else {}
    command = [_CLUSTER, "start", "kube-scheduler"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **more})


def restart(name: str, features: str = "") -> None:
    """Kill and restart one of the cluster's servers, with these feature gates."""
    more = {"CLUSTER_FEATURES": features} if features else {}
    command = [_CLUSTER, "restart", name]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **more})


def key() -> bytes:
    """Return the key that seals device choices."""
    secret = rig.as_admin(KEY_PLACE.namespace).read("secrets", KEY_PLACE.name)
    return base64.b64decode(secret["data"]["key"])


def devices(node: str, count: int, gibibytes: int) -> tuple[datatypes.NodeDevice, ...]:
    """Return the devices of a fake node."""
    return tuple(
        datatypes.NodeDevice(f"GPU-{node}-{at}", at, gibibytes * GIB, model="Fake")
        for at in range(count)
    )


@contextlib.contextmanager
def fake_nodes(
    *named: str, count: int = 2, gibibytes: int = 16, hidden: tuple[str, ...] = ()
) -> Iterator[None]:
    """Create nodes without kubelets for the block; those in *hidden* publish cordoned devices."""
    api = rig.as_admin().server

    def make(name: str) -> None:
        had = devices(name, count, gibibytes)
        if name in hidden:
            had = tuple(
                datatypes.NodeDevice(device.uuid, device.index, device.memory_bytes, cordoned=True)
                for device in had
            )
        minors = {device.uuid: device.index for device in had}
        published = annotations.publish(annotations.Published(UNIT, had, minors))
        room = {
            "cpu": "64",
            "memory": "256Gi",
            "pods": "500",
        }
        for vcore, vmemory in pod_request.RESOURCES:  # of both naming schemes
            room[vcore] = str(100 * count)
            room[vmemory] = str(count * gibibytes * GIB // UNIT)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fake"}
        node = {
            "metadata": {
                "name": name,
                "labels": {"fake": "true", "kubernetes.io/hostname": name},
                "annotations": {names.NODE_DEVICES_ANNOTATION: published},
            },
            "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
        }
        api.call("POST", "/api/v1/nodes", body=node)
        free = {"spec": {"taints": None}}
        api.call("PATCH", f"/api/v1/nodes/{name}", body=free, kind=apiserver.MERGE_PATCH)

    try:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(make, named))
        yield
    finally:
        # Deleting thousands of nodes takes time.
        api.call("DELETE", "/api/v1/nodes", {"labelSelector": "fake=true"}, seconds=300)


def pod(
    name: str,
    vcore: int = 50,
    gibibytes: float = 2,
    noted: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod that requests a share of a device and runs only on fake nodes."""
    made = rig.pod(name, rig.container("main", "sleep 100000"), **spec)
    limits = {
        names.VCORE_RESOURCE: str(vcore),
        names.VMEMORY_RESOURCE: str(int(gibibytes * GIB / UNIT)),
    }
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    made["spec"].setdefault("nodeSelector", {"fake": "true"})
    made["spec"]["tolerations"] = [{"operator": "Exists"}]  # no kubelet keeps the nodes ready
    made["metadata"]["annotations"] = dict(noted or {})
    return made


def create_all(space: rig.Space, pods: list[dict[str, Any]]) -> None:
    """Create many pods in parallel."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda body: space.create("pods", body), pods))


def create_in_the_background(space: rig.Space, pods: list[dict[str, Any]]) -> None:
    """Start creating many pods in parallel."""
    threading.Thread(target=create_all, args=(space, pods), daemon=True).start()


def until_scheduling() -> None:
    """Wait until kube-scheduler binds pods."""
    with rig.space() as space:
        made = rig.pod("first", rig.container("main", "sleep 1000"))
        made["spec"] |= {"nodeSelector": {"fake": "true"}, "tolerations": [{"operator": "Exists"}]}
        space.create("pods", made)
        space.until("pods", "first", lambda current: current["spec"].get("nodeName"))


def create_slowly(space: rig.Space, pods: list[dict[str, Any]], seconds: float) -> None:
    """Create pods one by one, *seconds* apart; retry while servers are down."""
    for body in pods:
        while True:
            try:
                space.create("pods", body)
                break
            except apiserver.ServerError as exc:
                if exc.status == 409:  # created before, but the answer was lost
                    break
                time.sleep(0.2)
        time.sleep(seconds)


def admin_api() -> apiserver.ApiServer:
    """Return an API connection with cluster-admin rights."""
    return rig.as_admin().server


def bury(space: rig.Space, name: str) -> None:
    """Delete a pod of a fake node at once, since no kubelet will."""
    space.server.call("DELETE", space.path("pods", name), body={"gracePeriodSeconds": 0})


def assert_not_overcommitted(space: rig.Space, gibibytes: int = 16) -> dict[str, tuple[int, int]]:
    """Assert that no device is overcommitted; return (vcore, bytes) in use of each."""
    used = count_devices(space)
    over = {
        uuid: amounts
        for uuid, amounts in used.items()
        if amounts[0] > 100 or amounts[1] > gibibytes * GIB
    }
    assert not over
    return used


def bound(space: rig.Space) -> dict[str, str]:
    """Return the nodes of bound pods, by pod name."""
    return {
        bound_pod["metadata"]["name"]: bound_pod["spec"]["nodeName"]
        for bound_pod in space.pods()
        if bound_pod["spec"].get("nodeName")
    }


def until_bound(space: rig.Space, count: int, seconds: float = 120) -> None:
    """Wait until *count* pods are bound."""
    waiting.wait_until(
        lambda: len(bound(space)) >= count, seconds, lambda: f"{len(bound(space))} are bound"
    )


def choice(pod: dict[str, Any], *keys: bytes) -> annotations.DeviceChoice:
    """Return the device choice of a bound pod, which must be sealed for it and its node."""
    text, node = pod["metadata"]["annotations"][names.DEVICES_ANNOTATION], pod["spec"]["nodeName"]
    return annotations.open_sealed(text, keys or [key()], pod["metadata"]["uid"], node)


def count_devices(space: rig.Space) -> dict[str, tuple[int, int]]:
    """Return the vcore and bytes allocated of each device, from the pods' annotations alone.

    It is independent of the scheduler's code; each choice must be sealed for its pod and node.
    """
    used: dict[str, tuple[int, int]] = {}
    sealing = key()
    for thing in space.pods():
        node = thing["spec"].get("nodeName")
        if not node:
            continue
        found = choice(thing, sealing)
        for share in (share for own in found.containers.values() for share in own):
            assert share.uuid.startswith(f"GPU-{node}-"), share  # of that node and no other
            vcore, size = used.get(share.uuid, (0, 0))
            used[share.uuid] = vcore + share.vcore, size + share.vmemory
    return used
