"""Compatibility with gpu-manager, for pods written for it: `--profile gaia`.

    tencent.com/vcuda-core, tencent.com/vcuda-memory    resources of pods (ids.GAIA)
    gaia.tencent.com/gpu-model                          node label, for pods' node selectors
    /usr/local/nvidia, and LD_LIBRARY_PATH into it      the driver in containers
    tencent.com/vcuda-core, tencent.com/vcuda-memory    container annotations, for the runtime
    volume.conf, extra-config.json                      configuration by the administrator

Allocate sets LD_LIBRARY_PATH, which overrides the image's value, but not the pod's own. With any
other value, or none, programs find the libraries all the same.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.deviceplugin.gpu_manager import volume_conf
from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.volumes import cdi, installation, mirror_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.kubelet import plugin_messages
    from pyvgpu.deviceplugin.plugin import plugin_server
    from pyvgpu.volumes import driver_follower

FOLDER = cdi.CONTAINER_FOLDER
# 32-bit programs of `compat32=true` search the second one, which a share does not have.
LIBRARY_PATH = f"{FOLDER}/{mirror_plan.LIB64}:{FOLDER}/{mirror_plan.LIB32}"

MODEL_LABEL = "gaia.tencent.com/gpu-model"

_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_LABEL = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?(?=.){_VALUE.pattern}")
_MOST_BYTES = 1 << 20
_NEEDED = (names.LIBCUDA, names.LIBNVIDIA_ML)  # of each volume


class Dressed:
    """Wraps a decider, and adds gpu-manager's annotations and variables to its answers."""

    def __init__(self, decider: plugin_server.CallDecider, unit: int) -> None:
        self._decider = decider
        self._unit = unit  # bytes of one vmemory
        self.start = decider.start
        self.prefer = decider.prefer

    def allocate(
        self, kind: device_ids.ResourceKind, given: frozenset[str]
    ) -> plugin_messages.AllocateResponse:
        """Return the response for a container that is allocated these ids."""
        answer = self._decider.allocate(kind, given)
        if kind is device_ids.ResourceKind.VMEMORY:
            more = {names.GAIA_VMEMORY_RESOURCE: str(len(given) * self._unit)}
            return dataclasses.replace(answer, annotations={**answer.annotations, **more})
        return dataclasses.replace(
            answer,
            annotations={**answer.annotations, names.GAIA_VCORE_RESOURCE: str(len(given))},
            variables={**answer.variables, "LD_LIBRARY_PATH": LIBRARY_PATH},
        )


class Volumes:
    """Finds the driver's files that a volume.conf selects, as pyvgpu's two volumes."""

    def __init__(self, finder: driver_follower.DriverFinder) -> None:
        self._finder = finder
        self.folders = finder.folders

    def find(self) -> installation.Installation:
        """Return the driver with the first shared and the first other volume only."""
        found = self._finder.find()
        shared = next(volume for volume in found.volumes if volume.shared)
        whole = next(volume for volume in found.volumes if not volume.shared)
        return dataclasses.replace(
            found,
            volumes=(
                dataclasses.replace(shared, name=installation.SHARED),
                dataclasses.replace(whole, name=installation.EXCLUSIVE),
            ),
        )


def labels(devices: Sequence[datatypes.NodeDevice]) -> dict[str, str]:
    """Return the label for pods that select the model of a node's devices, such as V100."""
    words = devices[0].model.split() if devices else []
    if not words:
        return {}
    model = re.sub(r"[^A-Za-z0-9._-]", "-", words[min(1, len(words) - 1)])[:63].strip("._-")
    return {MODEL_LABEL: model} if model else {}


def read_labels(text: str, flag: str) -> tuple[tuple[str, str], ...]:
    """Return the labels in *text*, without the model's, whose value comes from the devices."""
    found = dict(_label(word, text, flag) for word in text.split(",") if word)
    found.pop(MODEL_LABEL, None)
    return tuple(found.items())


def _label(part: str, text: str, flag: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    if not equals or not _LABEL.fullmatch(key) or not _VALUE.fullmatch(value):
        raise errors.UsageError(
            f"{flag} {text!r}: must be node labels, separated by commas, such as "
            "pool=training,example.com/rack=7"
        )
    return key, value


def read_volumes(text: str, flag: str) -> tuple[installation.ConfiguredVolume, ...]:
    """Return the volumes of the volume.conf *text*, which must suffice for an agent."""
    found = volume_conf.read(_path(text, flag))
    if {parsed.shared for parsed in found} != {True, False}:
        raise errors.DataError(
            f"{flag} {text}: must have a volume {volume_conf.SHARED!r}, for shares, and one of "
            "another name, for whole devices, such as 'origin'"
        )
    for volume in found:
        missing = [library for library in _NEEDED if not volume.wants_library(library)]
        if missing:
            raise errors.DataError(
                f"{flag} {text}: volume {volume.name!r} leaves out {' and '.join(missing)}: name "
                "libcuda.so and libnvidia-ml.so among its libraries"
            )
    return found


def read_nodes(text: str, flag: str) -> tuple[str, ...]:
    """Return the device nodes for containers in the extra-config.json *text*, such as "fuse".

    Only its part for all devices counts: {"default": {"devices": ["/dev/fuse"]}}.
    """
    path = _path(text, flag)
    try:
        with path.open("rb") as file:
            document: Any = json.loads(file.read(_MOST_BYTES))
        return tuple(_nodes((document.get("default") or {}).get("devices") or ()))
    except OSError as exc:
        raise errors.DataError(f"{flag} {text}: cannot be read: {exc.strerror}") from exc
    except (ValueError, AttributeError, TypeError, RecursionError) as exc:
        raise errors.DataError(
            f"{flag} {text}: {errors.reason_of(exc)}; must be JSON, such as "
            '{"default": {"devices": ["/dev/fuse"]}}'
        ) from exc


def _nodes(listed: Iterable[object]) -> Iterable[str]:
    for each in listed:
        path = Path(each) if isinstance(each, str) else Path()
        if not path.is_relative_to("/dev") or ".." in path.parts or len(path.parts) < 3:
            raise ValueError(f"{each!r} is not a node in /dev")
        yield str(path.relative_to("/dev"))


def _path(text: str, flag: str) -> Path:
    if not text:
        raise errors.UsageError(f"{flag} '': must name a file")
    return Path(text).absolute()
