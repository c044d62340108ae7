"""Device choice of the scheduler, or selection by the user, read from a pod's annotations.

An unsigned choice is ignored. The scheduler writes the choice and the binding in one request, so
every version of the pod that this node sees has it; a pod that was not seen yet is read from the
API server. So no pod is refused because its choice has not arrived. See
pyvgpu/allocator/annotations.py for the sealed content.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.allocator import annotations as notes
from pyvgpu.allocator import device_selector
from pyvgpu.deviceplugin.grants import placement, pod_identity
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyvgpu.deviceplugin.cluster import node_pods


log = logging.getLogger(__name__)

_LONGEST = 4096  # bytes of a key; a longer file is not a key


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys in a file, or in the files of a folder, as a Secret is mounted.

    A key is a file's content, byte for byte; empty files are skipped: the scheduler creates its
    key when it first becomes leader. DataError for a path that cannot be read, and for a key of
    invalid size.
    """
    try:
        files = (
            [file for file in sorted(path.iterdir()) if not file.name.startswith(".")]
            if path.is_dir()
            else [path]
        )
        found = (file.read_bytes()[: _LONGEST + 1] for file in files)
        keys = tuple(filter(None, found))
    except OSError as exc:
        raise errors.DataError(f"{path}: the key cannot be read: {exc.strerror}") from exc
    for key in keys:
        if not notes.LEAST_KEY_BYTES <= len(key) <= _LONGEST:
            raise errors.DataError(
                f"{path}: a key of {len(key)} bytes: must have from {notes.LEAST_KEY_BYTES} "
                f"to {_LONGEST}, such as `head -c 32 /dev/urandom` gives"
            )
    return keys


class KeyFile:
    """The keys at a path, re-read each time; thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._problem = ""

    def read(self) -> tuple[bytes, ...]:
        """Return the keys; DataError if one is malformed, UnavailableError while there is none."""
        with self._lock:
            try:
                keys = read_keys(self._path)
                if not keys:
                    raise errors.UnavailableError(
                        f"{self._path}: there is no key yet; the scheduler creates it when it "
                        f"first becomes leader, and kubelet updates this folder within two minutes"
                    )
            except errors.PyVgpuError as exc:
                if str(exc) != self._problem:
                    log.warning("pods whose devices the scheduler chose cannot start: %s", exc)
                self._problem = str(exc)
                raise
            if self._problem:
                log.info("%s: found %d keys", self._path, len(keys))
            self._problem = ""
            return keys

    @property
    def trouble(self) -> str:
        """What is wrong with the keys; empty: nothing."""
        try:
            self.read()
        except errors.PyVgpuError as exc:
            return str(exc)
        return ""


def pod_of(known: node_pods.Pods, pod: pod_identity.KnownPod) -> dict[str, Any]:
    """Return a pod as the API server has it; WaitsError if the API server is unavailable.

    RefusedError, not final, if it has no such pod.
    """
    try:
        found = known.find(pod.uid, pod.namespace, pod.name)
    except apiserver.ServerError as exc:
        raise placement.WaitsError(f"its choice of devices cannot be read yet: {exc}") from exc
    if found is None:
        raise placement.RefusedError("the pod no longer exists in the API server", final=False)
    return found


def wanted_of(pod: Mapping[str, Any]) -> device_selector.DeviceSelector:
    """Return the device selection of a pod's user; RefusedError if it is invalid."""
    try:
        return device_selector.read(pod["metadata"].get("annotations") or {})
    except errors.UsageError as exc:
        raise placement.RefusedError(str(exc), final=True) from exc


class UserSelection:
    """Reads the user's device selection of a pod, whose devices the agent chooses."""

    def __init__(self, known: node_pods.Pods) -> None:
        self._known = known

    def choose(self, pod: pod_identity.KnownPod) -> placement.Chosen:
        """Return *pod*'s selection; none for a static pod that the API server does not know."""
        try:
            found = pod_of(self._known, pod)
        except placement.RefusedError:
            if pod_identity.is_static(pod.uid):
                return placement.NOTHING
            raise
        return placement.Chosen(wanted=wanted_of(found))


class Sealed:
    """Reads the choice that the scheduler extender has sealed; a pod without one is refused."""

    def __init__(
        self, known: node_pods.Pods, node: str, keys: Callable[[], tuple[bytes, ...]]
    ) -> None:
        self._known = known
        self._node = node
        self._keys = keys

    def choose(self, pod: pod_identity.KnownPod) -> placement.Chosen:
        """Return the choice for *pod*; RefusedError if there is none, or its seal is invalid.

        WaitsError while there is no key to verify the seal: the pod waits without a deadline.
        """
        found = pod_of(self._known, pod)
        return self._read(found["metadata"].get("annotations") or {}, pod.uid)

    def _read(self, noted: Mapping[str, str], uid: str) -> placement.Chosen:
        text = noted.get(names.DEVICES_ANNOTATION)
        if text is None:
            raise placement.RefusedError(
                f"it has no {names.DEVICES_ANNOTATION}: this node accepts only pods whose "
                f"devices the scheduler extender has chosen (--placement extender)",
                final=True,
            )
        try:
            keys = self._keys()
        except errors.DataError as exc:
            raise placement.RefusedError(str(exc), final=False) from exc
        except errors.UnavailableError as exc:
            raise placement.WaitsError(str(exc)) from exc
        try:
            choice = notes.open_sealed(text, keys, uid, self._node)
        except errors.DataError as exc:
            raise placement.RefusedError(str(exc), final=True) from exc
        shares = {name: tuple(own) for name, own in choice.containers.items()}
        devices = {name: tuple(share.uuid for share in own) for name, own in shares.items()}
        return placement.Chosen(devices, shares)
