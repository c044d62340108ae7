"""Start a sidecar through our launcher, on nodes that do not expand ``$(NAME)`` in commands.

An init container of the fast-exit image copies the launcher into a volume. The sidecar runs it
from there, and the launcher execs the program whose argv is in an annotation, mounted as a file by
the downward API. In the fast-exit image the launcher exits with 0, so a swap changes only the
image.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.webhook import drafts
    from pyvgpu.kube.objects import Object

VOLUME = "pyvgpu-launch"
ARGV_VOLUME = "pyvgpu-argv"
FOLDER = "/pyvgpu/launch"
ARGV_FOLDER = "/pyvgpu/argv"


def is_exact(container: Object, *, expands: bool) -> bool:
    """Return whether the launcher, which expands nothing, preserves the argv.

    *expands*: the node may expand references in commands.
    """
    elements = (*objects.words(container, "command"), *objects.words(container, "args"))
    return not any("\0" in text or (expands and "$" in text) for text in elements)


def is_free(pod: Object) -> bool:
    """Return whether the volume and container names that we add are free."""
    spec = objects.section(pod, "spec")
    taken = {
        entry.get("name")
        for part in ("volumes", "containers", "initContainers")
        for entry in objects.entries(spec, part)
    }
    return not taken & {VOLUME, ARGV_VOLUME}


def annotation(container: Object) -> tuple[str, str]:
    """Return the key and value of the annotation that holds the argv of *container*."""
    argv = [*objects.words(container, "command"), *objects.words(container, "args")]
    return f"{names.START_COMMAND_ANNOTATION}.{_key(container)}", json.dumps(argv)


def start(draft: drafts.Draft, places: Sequence[int], image: str) -> None:
    """Start the containers at *places* by the launcher; the caller sets their annotations."""
    items = []
    for place in places:
        path = ("spec", "containers", place)
        container = draft.document["spec"]["containers"][place]
        field = f"metadata.annotations['{annotation(container)[0]}']"
        items.append({"path": _key(container), "fieldRef": {"fieldPath": field}})
        draft.put([names.LAUNCH_PROGRAM, f"{ARGV_FOLDER}/{_key(container)}"], *path, "command")
        draft.remove(*path, "args")
        for volume, folder in ((VOLUME, FOLDER), (ARGV_VOLUME, ARGV_FOLDER)):
            mount = {"name": volume, "mountPath": folder, "readOnly": True}
            draft.append(mount, *path, "volumeMounts")
    draft.append({"name": VOLUME, "emptyDir": {}}, "spec", "volumes")
    draft.append({"name": ARGV_VOLUME, "downwardAPI": {"items": items}}, "spec", "volumes")
    draft.insert(_installer(image), 0, "spec", "initContainers")


def _installer(image: str) -> Object:
    """Return the installing init container; it is valid in restricted namespaces with quotas."""
    return {
        "name": VOLUME,
        "image": image,
        "command": ["/pyvgpu-launch", "-i", names.LAUNCH_PROGRAM],
        "volumeMounts": [{"name": VOLUME, "mountPath": FOLDER}],
        "resources": {kind: {"cpu": "10m", "memory": "16Mi"} for kind in ("requests", "limits")},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _key(container: Object) -> str:
    return hashlib.sha256(str(container.get("name")).encode()).hexdigest()[:32]
