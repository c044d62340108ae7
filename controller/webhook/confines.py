"""What a pod with devices may not be beside: what would let it past the one who chooses them.

Whoever names the node of a pod passes by the scheduler. A privileged container opens every device
of its node, whatever it asked for, and so can one that administers the system. A folder of the
node may hold the very files by which a share is held to its limits, and the node's own processes
have those, its agent among them. Where an administrator has allowed one of these, it is no fault.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from typing import TYPE_CHECKING

from pyvgpu.controller import objects

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from pyvgpu.controller.objects import Object

PARTS = ("initContainers", "containers", "ephemeralContainers")

# Capabilities that come to the same as privileged: who mounts, loads modules, writes to memory and
# ports, or opens files by their numbers reaches all of the node. SYS_PTRACE is for the processes
# that one sees, which are the pod's own.
MIGHTY = frozenset({"ALL", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO"})


@dataclasses.dataclass(frozen=True, slots=True)
class Confines:
    """What an administrator allows; namespaces are patterns, such as ``team-*``."""

    named_nodes: tuple[str, ...] = ()  # namespaces where pods may name their node
    privileged: tuple[str, ...] = ()  # namespaces where containers may be, or may be as mighty
    host_pids: tuple[str, ...] = ()  # namespaces where pods may see their node's processes
    host_paths: tuple[str, ...] = ()  # folders of nodes, each with everything below it

    def allows_path(self, path: str) -> bool:
        """Tell whether a folder of the node may be mounted."""
        plain = clean(path)
        return any(
            (plain + "/").startswith(allowed.rstrip("/") + "/") for allowed in self.host_paths
        )


def clean(path: str) -> str:
    """Return a path without what means nothing in it."""
    return "/" + "/".join(it for it in re.split("/+", path) if it not in ("", "."))


def why_no_node(pod: Object, namespace: str, confines: Confines) -> str:
    """Return why a pod with devices may not name its node so; empty if it may."""
    node = objects.section(pod, "spec").get("nodeName")
    if not node or _in(namespace, confines.named_nodes):
        return ""
    return (
        f"spec.nodeName {node}: a pod that asks for devices may not name its node, since "
        "its devices would not be chosen; valid would be the nodeSelector kubernetes.io/hostname: "
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
                "that asks for devices it would open all devices of its node; valid would be "
                "false, or a namespace that --allow-privileged names"
            )
        for added in objects.words(objects.section(context, "capabilities"), "add"):
            if added.upper().removeprefix("CAP_") in MIGHTY:
                return (
                    f"container {name}: securityContext.capabilities.add {added}: in a pod that "
                    "asks for devices it could open all devices of its node; valid would be to "
                    "leave it out, or a namespace that --allow-privileged names"
                )
    return ""


def why_no_host_pid(pod: Object, namespace: str, confines: Confines) -> str:
    """Return why a pod with a share may not see its node's processes; empty if it may."""
    if not objects.section(pod, "spec").get("hostPID") or _in(namespace, confines.host_pids):
        return ""
    return (
        "spec.hostPID true: a pod that asks for a share of a device would reach what its limits "
        "lie in by the node's own processes; valid would be false, or a namespace that "
        "--allow-host-pid names"
    )


def why_no_host_path(pod: Object, confines: Confines, parts: Container[str] = PARTS) -> str:
    """Return why a pod with a share may not have these volumes; empty if it may.

    Asked about some *parts* alone, it looks at the volumes that their containers mount.
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
                "device may not mount what its limits may lie in; valid would be another kind of "
                f"volume, or a folder that --allow-host-path names: {allowed}"
            )
    return ""


def _in(namespace: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(namespace, pattern) for pattern in patterns)


def _containers(pod: Object, parts: Container[str]) -> Iterator[Object]:
    spec = objects.section(pod, "spec")
    for part in PARTS:
        if part in parts:
            yield from objects.entries(spec, part)
