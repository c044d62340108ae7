"""The node agent as the chart installs it, on a simulated node."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import charted
import rig

from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import agents

NAMESPACE, ACCOUNT = "pyvgpu-agent", "agent"


def kubectl(*arguments: str | Path, text: str | None = None) -> str:
    """Run kubectl in the agent's namespace and return its output."""
    command = ["kubectl", "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_kubeconfig(path: Path, node: str) -> None:
    """Write a kubeconfig for the agent of *node*, with exactly the RBAC rules of the chart."""
    rig.apply("agent/rights.yaml")
    ours = rig.as_admin(NAMESPACE)
    ours.until("serviceaccounts", ACCOUNT, lambda _: True)
    # A bound token names the node of its pod; the pod need not run.
    pod = rig.pod(
        f"account-{uuid.uuid4().hex[:8]}",
        rig.container("none", "true"),
        serviceAccountName=ACCOUNT,
    )
    pod["spec"] |= {"nodeName": node, "nodeSelector": {"none": "such"}}
    rig.write_kubeconfig(path, NAMESPACE, ACCOUNT, ours.create("pods", pod))


@contextlib.contextmanager
def rights_of(template: str, setting: str) -> Iterator[None]:
    """Grant the account the extra RBAC rules of a chart template rendered with *setting*."""
    rights = charted.listed(charted.part([template], setting))
    kubectl("apply", "-f", "-", text=rights)
    try:
        yield
    finally:
        kubectl("delete", "-f", "-", text=rights)


class AgentSet:
    """The chart's agent objects for the node of *agent*, whose own process must not run.

    *offered* waits until the node's devices are allocatable.
    """

    def __init__(self, agent: agents.Agent, offered: Callable[[], None] | None = None) -> None:
        self._agent = agent
        self._offered = offered or agent.wait_for_offers
        self._objects: list[dict[str, Any]] = []
        self._is: tuple[str, ...] = ()

    def install(self, setting: str = "agent.enabled=true", *options: str) -> None:
        """Apply the chart's agents with extra *options*; wait until the node offers its devices.

        Objects of an earlier installation that this one lacks are deleted.
        """
        self._is = (setting, *options)
        before, self._objects = self._objects, list(self._adapted(setting, options))
        stays = {_key(thing) for thing in self._objects}
        gone = [thing for thing in before if _key(thing) not in stays]
        if gone:
            kubectl("delete", "--ignore-not-found", "-f", "-", text=_list(gone))
        kubectl("apply", "-f", "-", text=_list(self._objects))
        for thing in self._objects:
            if thing["kind"] == "DaemonSet":
                self.roll_out(thing["metadata"]["name"])
        self._offered()

    def become(self, setting: str, *options: str) -> None:
        """Install this configuration unless it is installed already."""
        if self._is != (setting, *options):
            self.install(setting, *options)

    def roll_out(self, name: str = "agent") -> None:
        """Wait for the rollout of a DaemonSet."""
        kubectl("rollout", "status", "--timeout=90s", f"daemonset/{name}")

    def remove(self) -> None:
        """Delete the objects, and wait until their pods are gone."""
        kubectl("delete", "--ignore-not-found", "-f", "-", text=_list(self._objects))
        ours = rig.as_admin(NAMESPACE)
        self._agent.wait(lambda: not [pod for pod in ours.pods() if pod["metadata"].get("labels")])

    def execute(self, name: str, program: str) -> str:
        """Run a Python program in a container of the DaemonSet *name*; return its output."""
        return kubectl(
            *("exec", f"daemonset/{name}", "--", "/usr/local/bin/python3.11", "-c", program)
        )

    def story(self) -> str:
        """Return the description and logs of all pods, for messages of failed tests."""
        return kubectl("describe", "pods") + "".join(
            subprocess.run(
                [
                    "kubectl",
                    "--namespace",
                    NAMESPACE,
                    "logs",
                    "--tail=-1",
                    f"--selector=app={name}",
                ],
                capture_output=True,
                text=True,
                check=False,
            ).stdout
            for name in ("control-nodes", "agent")
        )

    def figures(self, name: str) -> dict[str, str]:
        """Return the current value of a metric for each container, from the agent's pod."""
        found = rf'^{name}{{.*container="([^"]*)".*}} (\S+)$'
        return dict(re.findall(found, self.metrics(), re.MULTILINE))

    def metrics(self) -> str:
        """Return all metrics of the agent's pod."""
        query = {"labelSelector": "app=agent"}
        ours = rig.as_admin(NAMESPACE)
        (pod,) = ours.server.items(ours.path("pods"), query)[0]
        address = f"http://{pod['status']['podIP']}:5678/metrics"
        with urllib.request.urlopen(address, timeout=rig.SECONDS) as answer:
            text: str = answer.read().decode()
        return text

    def logs(self, name: str = "agent") -> str:
        """Return the logs of a component's pods."""
        return kubectl("logs", f"--selector=app={name}", "--tail=-1")

    def _adapted(self, setting: str, options: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the objects without the agent's permissions, with the rig's host paths."""
        kept = {"pyvgpu-control", "control-nodes"}
        for thing in charted.part(["agent/"], setting):
            if thing["kind"] == "DaemonSet":
                spec = thing["spec"]["template"]["spec"]
                self._adapt(spec)
                if thing["metadata"]["name"] == "agent":
                    spec["containers"][0]["args"] += options
                yield thing
            elif thing["kind"] == "NetworkPolicy" or thing["metadata"]["name"] in kept:
                yield thing

    def _adapt(self, spec: dict[str, Any]) -> None:
        agent, root = self._agent, self._agent.root
        kubelet = Path(os.environ["CLUSTER_RUN"], "kubelet")
        state, run = str(agent.folder / "state"), str(agent.folder / "run")
        places = {
            "usr": root / "usr",
            "dev": root / "dev",
            "pod-resources": kubelet / "pod-resources",
            "registry": kubelet / "plugins_registry",
            "state": state,
            "run": run,
        }

        def own(text: str) -> str:
            text = text.replace("--node-dev=/dev", f"--node-dev={places['dev']}")
            return text.replace("/var/lib/pyvgpu", state).replace("/run/pyvgpu-agent", run)

        for volume in spec["volumes"]:
            if volume["name"] in places:
                volume["hostPath"]["path"] = str(places[volume["name"]])
        (container,) = spec["containers"]
        container["args"] = [own(argument) for argument in container["args"]]
        for mount in container["volumeMounts"]:
            mount.pop("mountPropagation", None)  # the rig's root is not a shared mount
            mount["mountPath"] = own(mount["mountPath"])
        machine = str(agent.machine.folder)
        container["env"].append({"name": simulator.MACHINE_VARIABLE, "value": machine})
        container["volumeMounts"].append({"name": "machine", "mountPath": machine})
        spec["volumes"].append({"name": "machine", "hostPath": {"path": machine}})


def _key(thing: dict[str, Any]) -> tuple[str, str]:
    return thing["kind"], thing["metadata"]["name"]


def _list(things: Iterable[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(things)})
