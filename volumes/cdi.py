"""Write a node's mirror as a CDI specification, so that container runtimes can give it out.

    pyvgpu.io/driver=<volume>       the volume, such as shared, and the nodes of every device's
    pyvgpu.io/driver=nvidia0        the node of one device
    pyvgpu.io/driver=library-path   LD_LIBRARY_PATH, for images that do not set it

A volume is mounted whole, so its links come with it and no hook has to make them; what programs
find by its place (programs, ICDs, firmware) is mounted there once more. All paths are those of
the tree itself and not of ``current``: a specification never speaks of two drivers at once.

What CDI sets in the environment wins over the image's and the pod's, so nothing that these may
want to say is set, unless it is asked for by name. See docs/mirror.md.
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
from pyvgpu.volumes import drafts, plan, root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyvgpu.volumes import installation

KIND = "pyvgpu.io/driver"
LIBRARY_PATH = "library-path"  # the device whose one edit is that variable
CONTAINER_FOLDER = "/usr/local/nvidia"  # where images for NVIDIA's devices look

# The oldest version of the format that has all that we write: whoever reads a newer one reads it.
VERSION = "0.5.0"
NOTED_VERSION = "0.6.0"  # from which on a device can have annotations
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
# Folders of a volume whose files are found by their place in the file system, and that place.
_PLACES = {"bin": "/usr/bin", "etc": "/etc", "firmware": "/lib/firmware", "share": "/usr/share"}
# The nodes that every user of a device needs. Profiling and mode setting reach beyond a share.
FOR_ALL = ("nvidiactl", "nvidia-uvm", "dxg")
FOR_WHOLE_DEVICES = ("nvidia-modeset", "nvidia-uvm-tools")
_DEVICE = re.compile(r"nvidia\d+", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
_SUFFIX = ".json"  # by which a runtime knows a file of this format


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A device node; the numbers are what counts, wherever it was seen."""

    name: str  # in /dev
    major: int
    minor: int

    def edit(self) -> dict[str, object]:
        """Return what CDI wants to know of it."""
        return {"path": f"/dev/{self.name}", "type": "c", "major": self.major, "minor": self.minor}


def nodes(within: Path) -> tuple[Node, ...]:
    """Return the driver's device nodes below the root *within*, or else the machine's own."""
    for folder in dict.fromkeys((root.Root(within).outside("/dev"), Path("/dev"))):
        found = tuple(_nodes(folder))
        if found:
            return found
    return ()


def _nodes(folder: Path) -> Iterator[Node]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return
    for name in names:
        if name not in (*FOR_ALL, *FOR_WHOLE_DEVICES) and not _DEVICE.fullmatch(name):
            continue
        status = (folder / name).lstat()
        if stat.S_ISCHR(status.st_mode):
            yield Node(name, os.major(status.st_rdev), os.minor(status.st_rdev))


def specification(
    tree: Path,
    entries: Iterable[plan.Entry],
    volumes: Iterable[installation.Volume],
    nodes: Iterable[Node],
) -> dict[str, Any]:
    """Return the specification of the published *tree*, which holds *entries*.

    Raises DataError if it has a volume that no device of CDI can be called after, or a path
    that JSON cannot carry.
    """
    try:
        str(tree).encode()
    except UnicodeEncodeError as exc:
        raise errors.DataError(
            f"{root.shown(tree)}: a CDI specification can name only paths that are UTF-8"
        ) from exc
    entries, nodes = tuple(entries), tuple(nodes)
    devices: dict[str, dict[str, object]] = {
        LIBRARY_PATH: {"env": [f"LD_LIBRARY_PATH={CONTAINER_FOLDER}/{plan.LIB64}"]}
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


def document(kind: str, devices: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
    """Return the specification of *devices*, which have their edits by name."""
    return {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": edits} for name, edits in sorted(devices.items())
        ],
        # NVIDIA's own runtime, where it is in use as well, is to add nothing.
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }


def placed(tree: Path, volume: str, paths: Iterable[str]) -> Iterator[dict[str, object]]:
    """Mount the files that programs find by their place there, of those of *tree* with *paths*."""
    for path in paths:
        name, _, within = path.partition("/")
        top, _, rest = within.partition("/")
        if name == volume and top in _PLACES:
            yield mount(tree / path, f"{_PLACES[top]}/{rest}")


def mount(source: Path, target: str, options: Iterable[str] = READ_ONLY) -> dict[str, object]:
    """Return the mount of *source*, a file or folder of the node, at *target* in a container."""
    return {"hostPath": str(source), "containerPath": target, "options": list(options)}


def check_name(file: Path) -> None:
    """Refuse a *file* that no runtime would read, before anything is made."""
    if file.suffix != _SUFFIX:
        raise errors.UsageError(
            f"{root.shown(file)}: runtimes read only files whose name ends in {_SUFFIX}, such as "
            "/var/run/cdi/pyvgpu.io-driver.json"
        )


def content(specification: Mapping[str, Any]) -> bytes:
    """Return what the file of a *specification* has in it."""
    return json.dumps(specification).encode() + b"\n"


def write(specification: Mapping[str, Any], file: Path) -> bool:
    """Put *specification* into *file* at once, unless it is there; return whether it was not."""
    return put(content(specification), file)


def put(text: bytes, file: Path, *, lasting: bool = True) -> bool:
    """Do the same with a specification's :func:`content`; *lasting* as for drafts.write.

    Runtimes read the folder whenever it changes and complain of what they cannot read: a draft
    has a name that they pass over.
    """
    try:
        if file.is_file() and file.read_bytes() == text:
            return False
        try:
            drafts.write(file, text, lasting=lasting)
        except FileNotFoundError:
            file.parent.mkdir(parents=True)
            drafts.write(file, text, lasting=lasting)
    except OSError as exc:
        raise errors.of_files(
            f"{root.shown(file)}: the CDI specification cannot be written", exc
        ) from exc
    return True
