"""Write the CDI specification of a node's mirror, for container runtimes.

    pyvgpu.io/driver=<volume>       the volume, such as shared, and the nodes common to all devices
    pyvgpu.io/driver=nvidia0        the node of one device
    pyvgpu.io/driver=library-path   LD_LIBRARY_PATH, for images that do not set it

A volume is mounted as a whole, including its links, so no hook has to create them; files that are
found by path (programs, ICDs, firmware) are also mounted at their path. All source paths are in
the tree itself, not in ``current``: a specification never mixes two drivers.

CDI's environment overrides the image's and the pod's, so variables that these may set are not set
unless they are requested by name. See docs/mirror.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.volumes import atomic_files, mirror_plan, root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyvgpu.volumes import installation

KIND = "pyvgpu.io/driver"
LIBRARY_PATH = "library-path"  # the CDI device that sets only that variable
CONTAINER_FOLDER = "/usr/local/nvidia"  # where images for NVIDIA GPUs look for libraries

# The oldest format version with all that we write: a runtime for a newer one can read it, too.
VERSION = "0.5.0"
NOTED_VERSION = "0.6.0"  # the first version with annotations of devices
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
# Folders of a volume whose files are found by path, and that path.
_PLACES = {"bin": "/usr/bin", "etc": "/etc", "firmware": "/lib/firmware", "share": "/usr/share"}
# The nodes that every user of a device needs. Profiling and mode setting affect the whole device.
FOR_ALL = ("nvidiactl", "nvidia-uvm", "dxg")
FOR_WHOLE_DEVICES = ("nvidia-modeset", "nvidia-uvm-tools")
_DEVICE = re.compile(r"nvidia\d+", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
_SUFFIX = ".json"  # by which a runtime recognizes the format


@dataclasses.dataclass(frozen=True, slots=True)
class CdiNode:
    """A device node, identified by its numbers."""

    name: str  # in /dev
    major: int
    minor: int

    def edit(self) -> dict[str, object]:
        """Return its CDI device node entry."""
        return {"path": f"/dev/{self.name}", "type": "c", "major": self.major, "minor": self.minor}


def nodes(within: Path) -> tuple[CdiNode, ...]:
    """Return the driver's device nodes below the root *within*, else the machine's own."""
    for folder in dict.fromkeys((root.Root(within).outside("/dev"), Path("/dev"))):
        found = tuple(_nodes(folder))
        if found:
            return found
    return ()


def _nodes(folder: Path) -> Iterator[CdiNode]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return
    for name in names:
        if name not in (*FOR_ALL, *FOR_WHOLE_DEVICES) and not _DEVICE.fullmatch(name):
            continue
        status = (folder / name).lstat()
        if stat.S_ISCHR(status.st_mode):
            yield CdiNode(name, os.major(status.st_rdev), os.minor(status.st_rdev))


def specification(
    tree: Path,
    entries: Iterable[mirror_plan.Entry],
    volumes: Iterable[installation.DriverVolume],
    nodes: Iterable[CdiNode],
) -> dict[str, Any]:
    """Return the specification of the published *tree*, which holds *entries*.

    Raises DataError if a volume's name is not a valid name of a CDI device or a path is not UTF-8.
    """
    try:
        str(tree).encode()
    except UnicodeEncodeError as exc:
        raise errors.DataError(
            f"{root.shown(tree)}: a CDI specification can name only paths that are UTF-8"
        ) from exc
    entries, nodes = tuple(entries), tuple(nodes)
    devices: dict[str, dict[str, object]] = {
        LIBRARY_PATH: {"env": [f"LD_LIBRARY_PATH={CONTAINER_FOLDER}/{mirror_plan.LIB64}"]}
    }
    devices |= {
        node.name: {"deviceNodes": [node.edit()]} for node in nodes if _DEVICE.fullmatch(node.name)
    }
    taken = frozenset(devices)
    for volume in volumes:
        if volume.name in taken or not _NAME.fullmatch(volume.name):
            raise errors.DataError(
                f"volume {volume.name!r}: CDI needs a name that begins and ends with a letter or "
                f"a digit and is none of {', '.join(sorted(taken))}; such as shared"
            )
        wanted = FOR_ALL if volume.shared else (*FOR_ALL, *FOR_WHOLE_DEVICES)
        given = [node.edit() for node in nodes if node.name in wanted]
        paths = (entry.path for entry in entries)
        mounts = [mount(tree / volume.name, CONTAINER_FOLDER), *placed(tree, volume.name, paths)]
        devices[volume.name] = {"mounts": mounts}
        if given:
            devices[volume.name]["deviceNodes"] = given
    return document(KIND, devices)


# NVIDIA's own runtime, if it is in use, too, must add nothing.
NO_DEVICES = ("NVIDIA_VISIBLE_DEVICES", "void")


def document(kind: str, devices: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
    """Return the specification of *devices*, a mapping of names to container edits."""
    return {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": edits} for name, edits in sorted(devices.items())
        ],
        "containerEdits": {"env": ["=".join(NO_DEVICES)]},
    }


def placed(tree: Path, volume: str, paths: Iterable[str]) -> Iterator[dict[str, object]]:
    """Yield mounts at their usual path for those of *paths* in *tree* that are found by path."""
    for path in paths:
        name, _, within = path.partition("/")
        top, _, rest = within.partition("/")
        if name == volume and top in _PLACES:
            yield mount(tree / path, f"{_PLACES[top]}/{rest}")


def mount(source: Path, target: str, options: Iterable[str] = READ_ONLY) -> dict[str, object]:
    """Return the mount of *source*, a file or folder of the node, at *target* in a container."""
    return {"hostPath": str(source), "containerPath": target, "options": list(options)}


def check_name(file: Path) -> None:
    """Refuse a *file* that no runtime would read, before anything is created."""
    if file.suffix != _SUFFIX:
        raise errors.UsageError(
            f"{root.shown(file)}: runtimes read only files whose name ends in {_SUFFIX}, such as "
            "/var/run/cdi/pyvgpu.io-driver.json"
        )


def content(specification: Mapping[str, Any]) -> bytes:
    """Return the file content of a *specification*."""
    return json.dumps(specification).encode() + b"\n"


def write(specification: Mapping[str, Any], file: Path) -> bool:
    """Write *specification* to *file* atomically; return whether the file changed."""
    return put(content(specification), file)


def put(text: bytes, file: Path, *, lasting: bool = True) -> bool:
    """Like :func:`write`, with the encoded :func:`content`; for *lasting* see drafts.write.

    Runtimes read the folder whenever it changes and report unreadable files: a draft has a name
    that they ignore.
    """
    try:
        if file.is_file() and file.read_bytes() == text:
            return False
        try:
            atomic_files.write(file, text, lasting=lasting)
        except FileNotFoundError:
            file.parent.mkdir(parents=True)
            atomic_files.write(file, text, lasting=lasting)
    except OSError as exc:
        raise errors.of_files(
            f"{root.shown(file)}: the CDI specification cannot be written", exc
        ) from exc
    return True
