"""Settings that would let a pod with devices bypass its allocation, and their exceptions.

A pod with spec.nodeName bypasses the scheduler. A privileged container can open every device of
its node, and so can one with certain capabilities. A hostPath volume may contain the files that
enforce a share's limits, and processes of the node, such as our agent, give access to them. An
administrator can allow each of these by namespace or folder.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from typing import TYPE_CHECKING

from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from pyvgpu.kube.objects import Object

PARTS = ("initContainers", "containers", "ephemeralContainers")

# Capabilities equivalent to privileged: mounting, loading modules, raw memory and port access, and
# opening files by handle reach the whole node. SYS_PTRACE is not: it covers only visible
# processes, which are the pod's own.
MIGHTY = frozenset({"ALL", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO"})


@dataclasses.dataclass(frozen=True, slots=True)
class Confines:
    """The exceptions; namespaces are patterns, such as ``team-*``."""

    named_nodes: tuple[str, ...] = ()  # namespaces where pods may name their node
    privileged: tuple[str, ...] = ()  # namespaces where containers may be as mighty
    host_pids: tuple[str, ...] = ()  # namespaces where pods may share the node's PID namespace
    host_paths: tuple[str, ...] = ()  # folders of nodes, including everything below

    def allows_path(self, path: str) -> bool:
        """Return whether pods may mount a folder of the node."""
        plain = clean(path)
        return any(
            (plain + "/").startswith(allowed.rstrip("/") + "/") for allowed in self.host_paths
        )


def clean(path: str) -> str:
    """Return a path without empty and ``.`` components."""
    return "/" + "/".join(part for part in re.split("/+", path) if part not in ("", "."))


def why_no_node(pod: Object, namespace: str, confines: Confines) -> str:
    """Return why a pod with devices may not name its node; empty if it may."""
    node = objects.section(pod, "spec").get("nodeName")
    if not node or _in(namespace, confines.named_nodes):
        return ""
    return (
        f"spec.nodeName {node}: a pod that asks for devices may not name its node, because no "
        f"devices would be chosen for it; valid would be the nodeSelector kubernetes.io/hostname: "
        f"{node}, or a namespace that --allow-node-name names"
    )


def why_not_privileged(
    pod: Object, namespace: str, confines: Confines, parts: Container[str] = PARTS
) -> str:
    """Return why a pod with devices may not have these containers; empty if it may."""
    if _in(namespace, confines.privileged):
        return ""
    for container in _containers(pod, parts):
        name, context = container.get("name"), objects.section(container, "securityContext")
        if context.get("privileged"):
            return (
                f"container {name}: securityContext.privileged true: in a pod "
                "that asks for devices it would have access to all devices of its node; valid "
                "would be "
                "false, or a namespace that --allow-privileged names"
            )
        for added in objects.words(objects.section(context, "capabilities"), "add"):
            if added.upper().removeprefix("CAP_") in MIGHTY:
                return (
                    f"container {name}: securityContext.capabilities.add {added}: in a pod that "
                    "asks for devices it could get access to all devices of its node; valid "
                    "would be to "
                    "leave it out, or a namespace that --allow-privileged names"
                )
    return ""


def why_no_host_pid(pod: Object, namespace: str, confines: Confines) -> str:
    """Return why a pod with a share may not set hostPID; empty if it may."""
    if not objects.section(pod, "spec").get("hostPID") or _in(namespace, confines.host_pids):
        return ""
    return (
        "spec.hostPID true: a pod that asks for a share of a device could reach the files with "
        "its limits through the node's processes; valid would be false, or a namespace that "
        "--allow-host-pid names"
    )


def why_no_host_path(pod: Object, confines: Confines, parts: Container[str] = PARTS) -> str:
    """Return why a pod with a share may not have its hostPath volumes; empty if it may.

    With fewer *parts*, only volumes that their containers mount are checked.
    """
    mounted = {
        mount.get("name")
        for container in _containers(pod, parts)
        for mount in objects.entries(container, "volumeMounts")
    }
    for volume in objects.entries(objects.section(pod, "spec"), "volumes"):
        path = objects.section(volume, "hostPath").get("path")
        if path is None or (parts is not PARTS and volume.get("name") not in mounted):
            continue
        if not confines.allows_path(str(path)):
            allowed = ", ".join(confines.host_paths) or "none of the node's"
            return (
                f"volume {volume.get('name')}: hostPath {path}: a pod that asks for a share of a "
                "device may not mount files that may hold its limits; valid would be another kind "
                f"of volume, or a folder that --allow-host-path names: {allowed}"
            )
    return ""


def _in(namespace: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(namespace, pattern) for pattern in patterns)


def _containers(pod: Object, parts: Container[str]) -> Iterator[Object]:
    spec = objects.section(pod, "spec")
    for part in PARTS:
        if part in parts:
            yield from objects.entries(spec, part)
