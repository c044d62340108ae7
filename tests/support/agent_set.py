"""The node agent as it is installed, `kubectl apply -k deploy/agent`, on a simulated node."""

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

import rig
import yaml

from pyvgpu import simulator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import agents

NAMESPACE, ACCOUNT = "pyvgpu-agent", "agent"
DEPLOY = Path(__file__).parents[2] / "deploy"

_RIGHTS = DEPLOY / "agent" / "rights.yaml"
_RIGHTS_OF_GAIA = DEPLOY / "agent-gaia" / "rights.yaml"


def kubectl(*arguments: str | Path, text: str | None = None) -> str:
    """Run kubectl in the agent's namespace, and return what it says."""
    command = ["kubectl", "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_kubeconfig(path: Path, node: str) -> None:
    """Write how to be the agent of *node*, with the rights that are shipped and no others."""
    kubectl("apply", "-f", _RIGHTS)
    ours = rig.everybodys(NAMESPACE)
    ours.until("serviceaccounts", ACCOUNT, lambda _: True)
    # A token names the node of its pod, which need not run.
    pod = rig.pod(
        f"account-{uuid.uuid4().hex[:8]}",
        rig.container("none", "true"),
        serviceAccountName=ACCOUNT,
    )
    pod["spec"] |= {"nodeName": node, "nodeSelector": {"none": "such"}}
    rig.write_kubeconfig(path, NAMESPACE, ACCOUNT, ours.create("pods", pod))


@contextlib.contextmanager
def rights_of_gaia() -> Iterator[None]:
    """Let the account have what `deploy/agent-gaia` gives it beside."""
    kubectl("apply", "-f", _RIGHTS_OF_GAIA)
    try:
        yield
    finally:
        kubectl("delete", "-f", _RIGHTS_OF_GAIA)


class AgentSet:
    """What is installed, for the node of *agent*, whose own process must not run."""

    def __init__(self, agent: agents.Agent, overlay: str = "agent") -> None:
        self._agent = agent
        self._objects = json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": list(self._adapted(overlay))}
        )

    def install(self) -> None:
        """Apply it, and wait until the node has its resources."""
        kubectl("apply", "-f", "-", text=self._objects)
        for it in json.loads(self._objects)["items"]:
            if it["kind"] == "DaemonSet":
                self.roll_out(it["metadata"]["name"])
        self._agent.wait_for_offers()

    def roll_out(self, name: str = "agent") -> None:
        """Wait until a part is as it is to be."""
        kubectl("rollout", "status", "--timeout=90s", f"daemonset/{name}")

    def remove(self) -> None:
        """Remove it, and wait until its pods are gone."""
        kubectl("delete", "--ignore-not-found", "-f", "-", text=self._objects)
        ours = rig.everybodys(NAMESPACE)
        self._agent.wait(lambda: not [it for it in ours.pods() if it["metadata"].get("labels")])

    def execute(self, name: str, program: str) -> str:
        """Run a Python program in the container of a part; return what it says."""
        return kubectl(
            *("exec", f"daemonset/{name}", "--", "/usr/local/bin/python3.11", "-c", program)
        )

    def story(self) -> str:
        """Return what became of all pods, for whoever wonders why."""
        return kubectl("describe", "pods") + "".join(
            subprocess.run(
                ["kubectl", "--namespace", NAMESPACE, "logs", "--tail=-1", f"--selector=app={it}"],
                capture_output=True,
                text=True,
                check=False,
            ).stdout
            for it in ("control-nodes", "agent")
        )

    def figures(self, name: str) -> dict[str, str]:
        """Return a figure of each container, as the agent's pod shows it now."""
        query = {"labelSelector": "app=agent"}
        ours = rig.everybodys(NAMESPACE)
        (pod,) = ours.server.items(ours.path("pods"), query)[0]
        address = f"http://{pod['status']['podIP']}:5678/metrics"
        with urllib.request.urlopen(address, timeout=rig.SECONDS) as answer:
            text = answer.read().decode()
        lines = re.findall(rf'^{name}{{.*container="([^"]*)".*}} (\S+)$', text, re.MULTILINE)
        return dict(lines)

    def logs(self, name: str = "agent") -> str:
        """Return what the pods of a part wrote."""
        return kubectl("logs", f"--selector=app={name}", "--tail=-1")

    def _adapted(self, overlay: str) -> Iterator[dict[str, Any]]:
        """Give the objects but the rights; on the rig some of the node's folders are elsewhere."""
        for it in yaml.safe_load_all(kubectl("kustomize", DEPLOY / overlay)):
            if it["kind"] == "DaemonSet":
                self._adapt(it["spec"]["template"]["spec"])
                yield it
            elif it["metadata"]["name"] == "pyvgpu-control":
                yield it

    def _adapt(self, spec: dict[str, Any]) -> None:
        agent, root = self._agent, self._agent.root
        state, run = str(agent.folder / "state"), str(agent.folder / "run")
        places = {
            "usr": root / "usr",
            "dev": root / "dev",
            "pod-resources": Path(os.environ["CLUSTER_RUN"], "kubelet/pod-resources"),
            "state": state,
            "run": run,
        }

        def own(text: str) -> str:
            return text.replace("/var/lib/pyvgpu", state).replace("/run/pyvgpu-agent", run)

        for it in spec["volumes"]:
            if it["name"] in places:
                it["hostPath"]["path"] = str(places[it["name"]])
        (container,) = spec["containers"]
        container["args"] = [own(it) for it in container["args"]]
        for it in container["volumeMounts"]:
            it.pop("mountPropagation", None)  # the rig's root is shared with nobody
            it["mountPath"] = own(it["mountPath"])
        machine = str(agent.machine.folder)
        container["env"].append({"name": simulator.MACHINE_VARIABLE, "value": machine})
        container["volumeMounts"].append({"name": "machine", "mountPath": machine})
        spec["volumes"].append({"name": "machine", "hostPath": {"path": machine}})
