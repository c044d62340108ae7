"""The real cluster of ``make e2e``, as tests speak to it: objects as JSON, news by watches."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import charted

from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEPLOY = Path(__file__).parents[2] / "deploy"
BUSYBOX = "localhost/busybox:1"
FAST_EXIT = "localhost/fast-exit:1"
GROUPS = {  # of kinds that are not in the first one
    "jobs": "apis/batch/v1",
    "cronjobs": "apis/batch/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "deployments": "apis/apps/v1",
    "statefulsets": "apis/apps/v1",
    "resourceclaims": "apis/resource.k8s.io/v1",
    "resourceclaimtemplates": "apis/resource.k8s.io/v1",
    "pytorchjobs": "apis/kubeflow.org/v1",
}
_SHOWN = (
    "scheduler.mode=patch",
    "statusPage.enabled=true",
)  # all templates' objects
SECONDS = 150  # for anything to happen on busy cores; what happens is waited for, never this

# What a sidecar does when it is told to end; a shell is PID 1, which TERM does not end by itself.
RUNS = "while true; do sleep 0.1; done"
ENDS_WITH_0 = f"trap 'exit 0' TERM; {RUNS}"
ENDS_WITH_143 = f"trap 'exit 143' TERM; {RUNS}"
IGNORES_TERM = f"trap '' TERM; {RUNS}"


class NotSeenError(AssertionError):
    """What was waited for did not come."""


@dataclasses.dataclass(frozen=True, slots=True)
class Space:
    """A namespace of the test's own."""

    server: apiserver.ApiServer
    name: str

    def path(self, kind: str, name: str = "") -> str:
        """Return where objects of *kind* are, in a URL."""
        folder = f"/{GROUPS.get(kind, 'api/v1')}/namespaces/{self.name}/{kind}"
        return f"{folder}/{name}" if name else folder

    def create(self, kind: str, thing: dict[str, Any]) -> dict[str, Any]:
        """Create an object."""
        return self.server.call("POST", self.path(kind), body=thing)

    def read(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object as it is now."""
        return self.server.call("GET", self.path(kind, name))

    def patch(self, name: str, *operations: dict[str, Any], part: str = "") -> dict[str, Any]:
        """Change a pod by a JSON patch."""
        path = self.path("pods", name) + part
        return self.server.call("PATCH", path, body=operations, kind=apiserver.JSON_PATCH)

    def until(
        self, kind: str, name: str, true: Callable[[dict[str, Any]], Any], seconds: int = SECONDS
    ) -> dict[str, Any]:
        """Return an object when something is *true* of it."""
        return self._follow(kind, {"fieldSelector": f"metadata.name={name}"}, true, seconds)

    def delete_job(self, name: str) -> None:
        """Delete a Job, and leave its pods."""
        self.server.call("DELETE", self.path("jobs", name), {"propagationPolicy": "Orphan"})

    def until_gone(self, kind: str, name: str) -> bool:
        """Wait until there is no such object; return False if that does not come."""
        end = time.monotonic() + SECONDS
        query = {"fieldSelector": f"metadata.name={name}"}
        while self.server.items(self.path(kind), query)[0]:
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def until_any(
        self,
        kind: str,
        selector: str,
        true: Callable[[dict[str, Any]], Any],
        seconds: int = SECONDS,
    ) -> dict[str, Any]:
        """Return the first object with these labels that something is *true* of."""
        return self._follow(kind, {"labelSelector": selector}, true, seconds)

    def until_event(self, pod: str, reason: str, text: str = "") -> dict[str, Any]:
        """Return an event on *pod* when there is one."""
        query = {"fieldSelector": f"involvedObject.name={pod},reason={reason}"}
        return self._follow("events", query, lambda it: text in it["message"], SECONDS)

    def first_line(self, pod: str, container: str) -> bytes:
        """Return the first line that a container has written, once it has."""
        command = ["kubectl", "logs", "--namespace", self.name, pod, "--container", container]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            line, newline, _ = subprocess.run(command, capture_output=True).stdout.partition(b"\n")
            if newline:
                return line
            time.sleep(0.2)
        raise NotSeenError(f"pod {pod}: container {container} wrote no line")

    def until_event_of(self, reason: str, text: str = "") -> dict[str, Any]:
        """Return an event with this reason on whatever there is, when there is one."""
        query = {"fieldSelector": f"reason={reason}"}
        return self._follow("events", query, lambda it: text in it["message"], SECONDS)

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods that are there."""
        return self.server.items(self.path("pods"), {})[0]

    def pods_of(self, job: str) -> list[dict[str, Any]]:
        """Return a Job's pods."""
        query = {"labelSelector": f"batch.kubernetes.io/job-name={job}"}
        return self.server.items(self.path("pods"), query)[0]

    def _follow(
        self,
        kind: str,
        query: dict[str, str],
        true: Callable[[dict[str, Any]], Any],
        seconds: int,
    ) -> dict[str, Any]:
        found, version = self.server.items(self.path(kind), query)
        last = None
        for last in found:
            if true(last):
                return last
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            left = max(int(end - time.monotonic()), 1)
            for event, thing in self.server.watch(self.path(kind), query, version, left):
                if event in ("ADDED", "MODIFIED"):
                    last = thing
                    if true(thing):
                        return thing
        raise NotSeenError(f"{kind} {query}: {seconds} s: {brief(last)}; {warnings(self.server)}")


def brief(thing: dict[str, Any] | None) -> str:
    """Return, in a line, how an object is and what it waits for."""
    if thing is None:
        return "there is none"
    status = thing.get("status", {})
    said = [str(status.get("phase", ""))]
    for it in (*status.get("conditions", ()), *status.get("containerStatuses", ())):
        states = it.get("state", {})
        waits = states.get("waiting") or states.get("terminated") or {}
        if it.get("status") == "False" or waits:
            name = it.get("type", it.get("name"))
            said.append(
                f"{name}: {it.get('reason') or waits.get('reason')} {it.get('message', '')}"
            )
            said.append(waits.get("message", ""))
    return " ".join(" ".join(filter(None, said)).split()) or json.dumps(thing)[:500]


def warnings(server: apiserver.ApiServer, count: int = 8) -> str:
    """Return, in a line, the last warnings of all namespaces, each reason and object once."""
    found, _ = server.items("/api/v1/events", {"fieldSelector": "type=Warning"})
    told = {}
    for it in sorted(found, key=lambda it: it.get("lastTimestamp") or it.get("eventTime") or ""):
        if it["reason"] != "MissingClusterDNS":  # which the rig's cluster has not
            what = f"{it['involvedObject'].get('namespace', '')}/{it['involvedObject']['name']}"
            told.pop((what, it["reason"]), None)
            told[what, it["reason"]] = f"{what}: {it['reason']}: {it['message']}"
    return " | ".join(" ".join(it.split())[:400] for it in list(told.values())[-count:])


def everybodys(namespace: str = "default") -> Space:
    """Return a namespace that is there."""
    return Space(apiserver.connect(os.environ["KUBECONFIG"]), namespace)


def until_node(name: str, true: Callable[[dict[str, Any]], Any]) -> None:
    """Wait until something is *true* of a node."""
    connection, where = everybodys().server, "/api/v1/nodes"
    query = {"fieldSelector": f"metadata.name={name}"}
    (node,), version = connection.items(where, query)
    end = time.monotonic() + SECONDS
    while not true(node):
        left = end - time.monotonic()
        if left < 0:
            raise NotSeenError(f"node {name}: the last that was seen: {node['status']}")
        for kind, seen in connection.watch(where, query, version, max(int(left), 1)):
            node = node if kind == "BOOKMARK" else seen
            if true(node):
                return


def apply(*templates: str) -> None:
    """Apply what the chart's templates make, and before it the namespaces that all lives in."""
    made = charted.part(templates, *_SHOWN) if templates else []
    text = charted.listed([*charted.namespaces(), *made])
    subprocess.run(
        ["kubectl", "apply", "-f", "-"], input=text, check=True, text=True, capture_output=True
    )


def delete(*templates: str) -> None:
    """Delete what `apply` has made of templates, but for the namespaces."""
    text = charted.listed(charted.part(templates, *_SHOWN))
    command = ["kubectl", "delete", "--ignore-not-found", "-f", "-"]
    subprocess.run(command, input=text, check=True, capture_output=True, text=True)


def write_kubeconfig(path: Path, namespace: str, account: str, pod: Any = None) -> None:
    """Write how to speak to the API server as a ServiceAccount, with its rights alone.

    *pod*: as that pod, whose node the token then names.
    """
    admin = everybodys(namespace)
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if pod is not None:
        bound = {key: pod["metadata"][key] for key in ("name", "uid")}
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **bound}
    asked = {"spec": spec}
    where = admin.path("serviceaccounts", account) + "/token"
    token = admin.server.call("POST", where, body=asked)["status"]["token"]
    command = ["kubectl", "config", "view", "--raw", "--minify", "--output", "json"]
    config = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    config["users"][0]["user"] = {"token": token}
    path.write_text(json.dumps(config))


def anything(name: str, namespace: str, *accounts: str) -> dict[str, Any]:
    """Return the binding by which ServiceAccounts may do anything where it stands."""
    return {
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [
            {"kind": "ServiceAccount", "name": it, "namespace": namespace} for it in accounts
        ],
    }


@contextlib.contextmanager
def space(prefix: str = "test") -> Iterator[Space]:
    """Make a namespace, and remove it with all that is in it."""
    made = everybodys(f"{prefix}-{uuid.uuid4().hex[:8]}")
    connection = made.server
    namespace = {"metadata": {"name": made.name}}
    connection.call("POST", "/api/v1/namespaces", body=namespace)
    try:
        made.until("serviceaccounts", "default", lambda _: True)
        yield made
    finally:
        now = {"gracePeriodSeconds": 0}
        connection.call("DELETE", made.path("jobs"), {"propagationPolicy": "Background"}, now)
        connection.call("DELETE", made.path("pods"), body=now)
        connection.call("DELETE", f"/api/v1/namespaces/{made.name}")


def container(name: str, script: str, **more: Any) -> dict[str, Any]:
    """Return a container in which a shell runs *script*."""
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        **more,
    }


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a pod; *spec* has what is not as usual."""
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": list(containers),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": 2,
            **spec,
        },
    }


def job(name: str, template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a Job of pods as *template*."""
    metadata = {k: v for k, v in template["metadata"].items() if k in ("annotations", "labels")}
    return {
        "metadata": {"name": name},
        "spec": {"template": {"metadata": metadata, "spec": template["spec"]}, **spec},
    }


def state(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what kubelet last said of a container: its status."""
    lists = ("containerStatuses", "initContainerStatuses")
    found = [it for part in lists for it in pod["status"].get(part, ()) if it["name"] == name]
    return found[0] if found else {"state": {}, "lastState": {}, "restartCount": 0}


def exit_code(pod: dict[str, Any], name: str) -> int | None:
    """Return the code with which a container ended, None while it has not."""
    return state(pod, name)["state"].get("terminated", {}).get("exitCode")


def runs(pod: dict[str, Any], name: str) -> bool:
    """Tell whether a container runs."""
    return "running" in state(pod, name)["state"]


def phase(pod: dict[str, Any]) -> str:
    """Return a pod's phase."""
    return str(pod["status"].get("phase", ""))


def has_ended(pod: dict[str, Any]) -> bool:
    """Tell whether a pod has ended."""
    return phase(pod) in ("Succeeded", "Failed")


def condition(job: dict[str, Any], kind: str) -> bool:
    """Tell whether a Job has a condition, such as Complete."""
    found = job["status"].get("conditions") or ()
    return any(it["type"] == kind and it["status"] == "True" for it in found)
