"""FlexVolume driver that mounts a volume of a node's mirror into pods.

kubelet runs the driver with an operation and its arguments and reads one JSON object. A volume is
a read-only bind mount of a folder of the current tree, which is kept while it is mounted; see
:mod:`pyvgpu.volumes.tree_users`.

Files of a mirror may be hard links to the node's driver, so no pod may ever write to one. Our
read-only mount does not ensure that: the container runtime bind-mounts it again, writable, if the
pod does not declare the volume as read-only. So such a volume is rejected.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.machine import mounts
from pyvgpu.volumes import installation, root

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu.volumes import node_mirror

    Answer = dict[str, object]

_FLAGS = mounts.BIND | mounts.READ_ONLY | mounts.NO_SET_UID | mounts.NO_DEVICES
_KUBELETS_OWN = "kubernetes.io/"  # prefix of the options that kubelet adds to the pod's
_ACCESS = "kubernetes.io/readwrite"  # "ro" if the pod declares readOnly: true
_VOLUME = "volume"


class FlexVolumeError(errors.UsageError):
    """A request of kubelet, or of the pod through it, is not valid."""


def answer(mirror: node_mirror.NodeMirror, operation: str, arguments: Sequence[str]) -> Answer:
    """Carry out *operation* with *arguments* and return the response for kubelet."""
    known = _OPERATIONS.get(operation)
    if known is None:
        return {"status": "Not supported"}
    takes, act = known
    try:
        if len(arguments) != len(takes):
            wanted = " ".join([operation, *takes])
            raise FlexVolumeError(f"{operation}: must be called as {wanted}")
        return {"status": "Success"} | act(mirror, *arguments)
    except errors.PyVgpuError as exc:
        return {"status": "Failure", "message": str(exc)}
    except OSError as exc:
        where = root.shown(exc.filename or operation)
        return {"status": "Failure", "message": f"{where}: {exc.strerror}"}


def _init(_: node_mirror.NodeMirror) -> Answer:
    """Disable capabilities: above all, a pod's fsGroup or label must not change a file."""
    cannot = ("attach", "fsGroup", "requiresFSResize", "selinuxRelabel", "supportsMetrics")
    return {"capabilities": dict.fromkeys(cannot, False)}


def _mount(mirror: node_mirror.NodeMirror, folder: str, given: str) -> Answer:
    target = _target(folder)
    source = _source(mirror, _options(given))
    if target in mounts.points():
        return {}
    target.mkdir(parents=True, exist_ok=True)
    mounts.mount(str(source), str(target), None, mounts.BIND)
    try:
        mounts.mount(None, str(target), None, mounts.REMOUNT | _FLAGS)
    except OSError:
        mounts.unmount(target)
        raise
    return {}


def _unmount(_: node_mirror.NodeMirror, folder: str) -> Answer:
    target = _target(folder)
    if target in mounts.points():
        mounts.unmount(target)
    return {}


def _target(folder: str) -> Path:
    path = Path(folder)
    if not path.is_absolute() or ".." in path.parts:
        raise FlexVolumeError(f"{root.shown(folder)}: must be the absolute path of a folder")
    return path.parent.resolve() / path.name


def _source(mirror: node_mirror.NodeMirror, options: Mapping[str, str]) -> Path:
    tree = mirror.current()
    if tree is None:
        raise errors.UnavailableError(
            f"{root.shown(mirror.output)}: no mirror of a driver in it yet; `pyvgpu mirror` "
            "creates one, in the folder of --output"
        )
    there = sorted(path.name for path in tree.iterdir() if path.is_dir())
    name = options.get(_VOLUME, installation.SHARED)
    if name not in there:
        raise FlexVolumeError(f"{_VOLUME} {name!r}: must be one of {', '.join(there)}")
    return tree / name


def _options(given: str) -> dict[str, str]:
    """Return the pod's own options; reject unknown options and writable volumes."""
    try:
        document: Any = json.loads(given)
    except (ValueError, RecursionError) as exc:
        raise FlexVolumeError(f"the options are not JSON ({exc})") from exc
    if not isinstance(document, dict):
        raise FlexVolumeError("the options must be a JSON object")
    if document.get(_ACCESS, "ro") != "ro":
        raise FlexVolumeError(
            "the volume must be declared with readOnly: true, beside its driver and options"
        )
    own = {name: text for name, text in document.items() if not name.startswith(_KUBELETS_OWN)}
    for name, text in own.items():
        if name != _VOLUME or not isinstance(text, str):
            raise FlexVolumeError(
                f"option {name!r}: must be {_VOLUME}, with the name of a volume, such as "
                f"{installation.SHARED}"
            )
    return own


_OPERATIONS: dict[str, tuple[tuple[str, ...], Callable[..., Answer]]] = {
    "init": ((), _init),
    "mount": (("FOLDER", "OPTIONS"), _mount),
    "unmount": (("FOLDER",), _unmount),
}
