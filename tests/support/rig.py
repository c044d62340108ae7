"""Access to the real cluster of ``make e2e``: namespaces, objects as JSON, waits by watches."""

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
GROUPS = {  # API groups of kinds outside the core group
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
    charted.SIDECARS,
)  # all templates' objects
SECONDS = 150  # timeout of every wait, for busy cores; no test waits this long on purpose

# Sidecars' reactions to SIGTERM; the shell is PID 1, which SIGTERM does not end by default.
RUNS = "while true; do sleep 0.1; done"
# Until it has set its trap, a SIGTERM is lost: it then writes a line.
ENDS_WITH_0 = f"trap 'exit 0' TERM; echo ready; {RUNS}"
ENDS_WITH_143 = f"trap 'exit 143' TERM; echo ready; {RUNS}"
IGNORES_TERM = f"trap '' TERM; echo ready; {RUNS}"


class NotSeenError(AssertionError):
    """A wait timed out."""


@dataclasses.dataclass(frozen=True, slots=True)
class Space:
    """A namespace, and a connection to its API server."""

    server: apiserver.ApiServer
    name: str

    def path(self, kind: str, name: str = "") -> str:
        """Return the API path of objects of *kind*, or of one object."""
        folder = f"/{GROUPS.get(kind, 'api/v1')}/namespaces/{self.name}/{kind}"
        return f"{folder}/{name}" if name else folder

    def create(self, kind: str, thing: dict[str, Any]) -> dict[str, Any]:
        """Create an object."""
        return self.server.call("POST", self.path(kind), body=thing)

    def read(self, kind: str, name: str) -> dict[str, Any]:
        """Return the current state of an object."""
        return self.server.call("GET", self.path(kind, name))

    def patch(self, name: str, *operations: dict[str, Any], part: str = "") -> dict[str, Any]:
        """Apply a JSON patch to a pod."""
        path = self.path("pods", name) + part
        return self.server.call("PATCH", path, body=operations, kind=apiserver.JSON_PATCH)

    def until(
        self, kind: str, name: str, true: Callable[[dict[str, Any]], Any], seconds: int = SECONDS
    ) -> dict[str, Any]:
        """Wait until *true* holds for an object; return the object."""
        return self._follow(kind, {"fieldSelector": f"metadata.name={name}"}, true, seconds)

    def delete_job(self, name: str) -> None:
        """Delete a Job, orphaning its pods."""
        self.server.call("DELETE", self.path("jobs", name), {"propagationPolicy": "Orphan"})

    def until_gone(self, kind: str, name: str) -> bool:
        """Wait until there is no such object; return False after the timeout."""
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
        """Wait until *true* holds for an object with these labels; return the object."""
        return self._follow(kind, {"labelSelector": selector}, true, seconds)

    def until_event(self, pod: str, reason: str, text: str = "") -> dict[str, Any]:
        """Wait for an event on *pod*; return it."""
        query = {"fieldSelector": f"involvedObject.name={pod},reason={reason}"}
        return self._follow("events", query, lambda event: text in event["message"], SECONDS)

    def first_line(self, pod: str, container: str) -> bytes:
        """Wait for the first line in a container's log; return it."""
        command = ["kubectl", "logs", "--namespace", self.name, pod, "--container", container]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            line, newline, _ = subprocess.run(command, capture_output=True).stdout.partition(b"\n")
            if newline:
                return line
            time.sleep(0.2)
        raise NotSeenError(f"pod {pod}: container {container} wrote no line")

    def until_event_of(self, reason: str, text: str = "") -> dict[str, Any]:
        """Wait for an event with this reason on any object; return it."""
        query = {"fieldSelector": f"reason={reason}"}
        return self._follow("events", query, lambda event: text in event["message"], SECONDS)

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods of the namespace."""
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
    """Return an object's phase, false conditions and waiting containers, in one line."""
    if thing is None:
        return "there is none"
    status = thing.get("status", {})
    said = [str(status.get("phase", ""))]
    for entry in (*status.get("conditions", ()), *status.get("containerStatuses", ())):
        states = entry.get("state", {})
        waits = states.get("waiting") or states.get("terminated") or {}
        if entry.get("status") == "False" or waits:
            name = entry.get("type", entry.get("name"))
            said.append(
                f"{name}: {entry.get('reason') or waits.get('reason')} {entry.get('message', '')}"
            )
            said.append(waits.get("message", ""))
    return " ".join(" ".join(filter(None, said)).split()) or json.dumps(thing)[:500]


def warnings(server: apiserver.ApiServer, count: int = 8) -> str:
    """Return the last warnings of all namespaces in one line, each reason and object once."""
    found, _ = server.items("/api/v1/events", {"fieldSelector": "type=Warning"})
    latest = {}
    for event in sorted(
        found, key=lambda warning: warning.get("lastTimestamp") or warning.get("eventTime") or ""
    ):
        reason = event.get("reason", "")
        if reason != "MissingClusterDNS":  # the rig's cluster has no DNS
            about = event["involvedObject"]  # whose name and namespace may be left out
            what = f"{about.get('namespace', '')}/{about.get('name', about.get('kind', ''))}"
            latest.pop((what, reason), None)
            latest[what, reason] = f"{what}: {reason}: {event.get('message', '')}"
    return " | ".join(" ".join(line.split())[:400] for line in list(latest.values())[-count:])


def as_admin(namespace: str = "default") -> Space:
    """Return an existing namespace, with a cluster-admin connection."""
    return Space(apiserver.connect(os.environ["KUBECONFIG"]), namespace)


def until_node(name: str, true: Callable[[dict[str, Any]], Any]) -> None:
    """Wait until *true* holds for a node."""
    connection, where = as_admin().server, "/api/v1/nodes"
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
    """Apply the chart's namespaces, and the objects of these chart templates."""
    made = charted.part(templates, *_SHOWN) if templates else []
    text = charted.listed([*charted.namespaces(), *made])
    subprocess.run(
        ["kubectl", "apply", "-f", "-"], input=text, check=True, text=True, capture_output=True
    )


def delete(*templates: str) -> None:
    """Delete the objects of these chart templates, but not the namespaces."""
    text = charted.listed(charted.part(templates, *_SHOWN))
    command = ["kubectl", "delete", "--ignore-not-found", "-f", "-"]
    subprocess.run(command, input=text, check=True, capture_output=True, text=True)


def write_kubeconfig(path: Path, namespace: str, account: str, pod: Any = None) -> None:
    """Write a kubeconfig with a token of a ServiceAccount.

    With *pod* the token is bound to that pod, and names its node.
    """
    admin = as_admin(namespace)
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
    """Return a binding of ServiceAccounts to cluster-admin, for one namespace or the cluster."""
    return {
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [
            {"kind": "ServiceAccount", "name": account, "namespace": namespace}
            for account in accounts
        ],
    }


@contextlib.contextmanager
def space(prefix: str = "test") -> Iterator[Space]:
    """Create a namespace for the block; delete it with its contents afterwards."""
    made = as_admin(f"{prefix}-{uuid.uuid4().hex[:8]}")
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
    """Return a pod; *spec* overrides the defaults."""
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
    """Return a Job with the pod *template*."""
    metadata = {k: v for k, v in template["metadata"].items() if k in ("annotations", "labels")}
    return {
        "metadata": {"name": name},
        "spec": {"template": {"metadata": metadata, "spec": template["spec"]}, **spec},
    }


def state(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the status of a container, as kubelet last reported it."""
    lists = ("containerStatuses", "initContainerStatuses")
    found = [
        status
        for part in lists
        for status in pod["status"].get(part, ())
        if status["name"] == name
    ]
    return found[0] if found else {"state": {}, "lastState": {}, "restartCount": 0}


def exit_code(pod: dict[str, Any], name: str) -> int | None:
    """Return a container's exit code, None while it has not terminated."""
    return state(pod, name)["state"].get("terminated", {}).get("exitCode")


def runs(pod: dict[str, Any], name: str) -> bool:
    """Return whether a container is running."""
    return "running" in state(pod, name)["state"]


def phase(pod: dict[str, Any]) -> str:
    """Return a pod's phase."""
    return str(pod["status"].get("phase", ""))


def has_ended(pod: dict[str, Any]) -> bool:
    """Return whether a pod has terminated."""
    return phase(pod) in ("Succeeded", "Failed")


def condition(job: dict[str, Any], kind: str) -> bool:
    """Return whether a Job's condition, such as Complete, is true."""
    found = job["status"].get("conditions") or ()
    return any(entry["type"] == kind and entry["status"] == "True" for entry in found)
