"""Which devices a pod's scheduler has chosen, or its user wants: read from the pod itself.

What nobody has sealed counts for nothing. The choice comes with the binding, in one write, so it
is there in whatever is seen of a pod on this node; a pod that was not seen yet is asked for. So
none is refused because the word of its scheduler had not come yet. See
pyvgpu/allocator/annotations.py for what is sealed.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.allocator import annotations as notes
from pyvgpu.allocator import wanted
from pyvgpu.deviceplugin import placing, pods
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyvgpu.deviceplugin import identity

log = logging.getLogger(__name__)

_LONGEST = 4096  # bytes of a key; what is longer is some other file


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys in a file, or in the files of a folder, as a Secret is mounted.

    They are what stands there, byte for byte; none while what is there is empty: the scheduler
    makes its key when it first leads. DataError for a path that cannot be read, and for a key of
    a wrong size.
    """
    try:
        files = (
            [it for it in sorted(path.iterdir()) if not it.name.startswith(".")]
            if path.is_dir()
            else [path]
        )
        found = (it.read_bytes()[: _LONGEST + 1] for it in files)
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


class Keys:
    """The keys at a path, read anew each time; may be asked by several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading = threading.Lock()
        self._complaint = ""

    def read(self) -> tuple[bytes, ...]:
        """Return the keys; DataError if one is malformed, UnavailableError while there is none."""
        with self._reading:
            try:
                keys = read_keys(self._path)
                if not keys:
                    raise errors.UnavailableError(
                        f"{self._path}: there is no key yet; the scheduler makes it when it first "
                        "leads, and kubelet brings it here within two minutes"
                    )
            except errors.PyVgpuError as exc:
                if str(exc) != self._complaint:
                    log.warning("no pod can start for which the scheduler chose devices: %s", exc)
                self._complaint = str(exc)
                raise
            if self._complaint:
                log.info("%s: found %d keys", self._path, len(keys))
            self._complaint = ""
            return keys

    @property
    def trouble(self) -> str:
        """What is wrong with the keys; empty: nothing."""
        try:
            self.read()
        except errors.PyVgpuError as exc:
            return str(exc)
        return ""


def pod_of(known: pods.Pods, pod: identity.Pod) -> dict[str, Any]:
    """Return a pod as the API server has it; WaitsError if it cannot be asked.

    RefusedError, which passes, if it has none.
    """
    try:
        found = known.find(pod.uid, pod.namespace, pod.name)
    except apiserver.ServerError as exc:
        raise placing.WaitsError(
            f"it is not known yet which devices it is to have: {exc}"
        ) from exc
    if found is None:
        raise placing.RefusedError("the API server has this pod no more", final=False)
    return found


def wanted_of(pod: Mapping[str, Any]) -> wanted.Wanted:
    """Return which devices the user of a pod wants; RefusedError if that makes no sense."""
    try:
        return wanted.read(pod["metadata"].get("annotations") or {})
    except errors.UsageError as exc:
        raise placing.RefusedError(str(exc), final=True) from exc


class Wished:
    """Reads which devices a pod wants, of which nobody else chooses any."""

    def __init__(self, known: pods.Pods) -> None:
        self._known = known

    def choose(self, pod: identity.Pod) -> placing.Chosen:
        """Return what *pod* wants; of a static one that the API server does not know, nothing."""
        try:
            found = pod_of(self._known, pod)
        except placing.RefusedError:
            if pods.is_static(pod.uid):
                return placing.NOTHING
            raise
        return placing.Chosen(wanted=wanted_of(found))


class Sealed:
    """Reads what the scheduler extender has sealed; a pod without it is not for this node."""

    def __init__(self, known: pods.Pods, node: str, keys: Callable[[], tuple[bytes, ...]]) -> None:
        self._known = known
        self._node = node
        self._keys = keys

    def choose(self, pod: identity.Pod) -> placing.Chosen:
        """Return what was chosen for *pod*; RefusedError if nothing was, or without our seal.

        WaitsError while there is no key to check the seal by: the pod waits, however long.
        """
        found = pod_of(self._known, pod)
        return self._read(found["metadata"].get("annotations") or {}, pod.uid)

    def _read(self, noted: Mapping[str, str], uid: str) -> placing.Chosen:
        text = noted.get(names.DEVICES_ANNOTATION)
        if text is None:
            raise placing.RefusedError(
                f"it has no {names.DEVICES_ANNOTATION}: this node takes only pods for which the "
                "scheduler extender has chosen devices (--placement extender)",
                final=True,
            )
        try:
            keys = self._keys()
        except errors.DataError as exc:
            raise placing.RefusedError(str(exc), final=False) from exc
        except errors.UnavailableError as exc:
            raise placing.WaitsError(str(exc)) from exc
        try:
            choice = notes.open_sealed(text, keys, uid, self._node)
        except errors.DataError as exc:
            raise placing.RefusedError(str(exc), final=True) from exc
        shares = {name: tuple(own) for name, own in choice.containers.items()}
        devices = {name: tuple(it.uuid for it in own) for name, own in shares.items()}
        return placing.Chosen(devices, shares)
