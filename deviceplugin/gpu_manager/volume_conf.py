"""Parser for gpu-manager's ``volume.conf``, which assigns driver files to volumes.

    {"volume": [{"name": "nvidia", "base": "/etc/gpu-manager/vdriver", "mode": "ro",
                 "components": {"binaries": ["nvidia-smi"], "libraries": ["libcuda.so"]}}]}

Binaries are names, libraries are prefixes of names. The volume ``nvidia`` is for containers that
share a device, any other for containers with whole devices. gpu-manager's own files are ignored:
our shim replaces its library, and needs no client program.
"""

from __future__ import annotations

import json
import logging
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.volumes import find, installation, root

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

SHARED = "nvidia"  # gpu-manager's name for the volume with the shim

_MOST_BYTES = 1 << 20
_MODES = ("ro", "rw")
_KINDS = ("binaries", "libraries")
_GPU_MANAGERS = ("gpu-client", names.SHIM_FILE)
_EXAMPLE = '{"name": "nvidia", "base": "/etc/gpu-manager/vdriver", "components": {...}}'


class VolumeConfigError(errors.DataError):
    """A ``volume.conf`` is not valid."""


def read(path: Path) -> tuple[installation.ConfiguredVolume, ...]:
    """Return the volumes of the file *path*, in its order; VolumeConfigError if it has none."""
    name = root.shown(path)
    try:
        document: Any = json.loads(root.read_regular(path, _MOST_BYTES))
    except OSError as exc:
        raise VolumeConfigError(f"{name}: cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise VolumeConfigError(f"{name}: must be JSON: {errors.reason_of(exc)}") from exc
    try:
        return parse(document)
    except VolumeConfigError as exc:
        raise VolumeConfigError(f"{name}: {exc}") from exc


def parse(document: object) -> tuple[installation.ConfiguredVolume, ...]:
    """Return the volumes of *document*, a decoded ``volume.conf``."""
    listed = _field(document, "volume", list, "the document")
    if not listed:
        raise VolumeConfigError(f"volume: must name at least one volume, such as {_EXAMPLE}")
    volumes = tuple(_parse_volume(each, f"volume[{i}]") for i, each in enumerate(listed))
    called = [volume.name for volume in volumes]
    if len(set(called)) < len(called):
        raise VolumeConfigError(f"volume: names must be unique: {', '.join(sorted(called))}")
    return volumes


def _parse_volume(document: object, where: str) -> installation.ConfiguredVolume:
    name = _field(document, "name", str, where)
    if not find.is_plain(name) or name[0] in ".+":
        raise VolumeConfigError(f"{where}.name={name!r}: must be the name of a folder")
    base = PurePosixPath(_field(document, "base", str, where))
    if not base.is_absolute() or ".." in base.parts or not str(base).isprintable():
        raise VolumeConfigError(
            f"{where}.base={str(base)!r}: must be an absolute path, such as "
            "/etc/gpu-manager/vdriver"
        )
    mode = _field(document, "mode", str, where, default="ro")
    if mode not in _MODES:
        raise VolumeConfigError(f"{where}.mode={mode!r}: must be ro or rw")
    components = _field(document, "components", dict, where)
    for kind in components:
        if kind not in _KINDS:
            log.warning("ignored %s.components.%r: neither binaries nor libraries", where, kind)
    binaries, libraries = (_names(components, kind, f"{where}.components") for kind in _KINDS)
    return installation.ConfiguredVolume(
        name, base, mode, binaries, libraries, shared=name == SHARED
    )


def _names(components: Mapping[str, object], kind: str, where: str) -> tuple[str, ...]:
    listed = _field(components, kind, list, where, default=[])
    for name in listed:
        # An empty prefix would match every name.
        if not isinstance(name, str) or not find.is_plain(name):
            raise VolumeConfigError(
                f"{where}.{kind}: {name!r} must be the name of a file, such as libcuda.so"
            )
    return tuple(name for name in dict.fromkeys(listed) if name not in _GPU_MANAGERS)


def _field(document: object, key: str, kind: type, where: str, default: object = None) -> Any:
    """Return the value of *key*, which must be of *kind*; like Go, treat null as missing."""
    if not isinstance(document, dict):
        raise VolumeConfigError(f"{where}: must be an object, such as {_EXAMPLE}")
    value = document.get(key)
    value = default if value is None else value
    if not isinstance(value, kind):
        given = "is missing" if value is None else f"is {type(value).__name__}"
        raise VolumeConfigError(f"{where}.{key}: {given}; must be a {_WORDS[kind]}")
    return value


_WORDS: Mapping[type, str] = {list: "list", dict: "object", str: "string"}
