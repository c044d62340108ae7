"""What a container of a grant sees, as edits of CDI; pure.

    /usr/local/pyvgpu         the mirror of the driver, with the shim in it for a share
    /etc/pyvgpu               the grant's folder, read-only: its quota
    /run/pyvgpu/usage         the file of it that the container writes
    /run/pyvgpu-clock         the clocks of its devices, read-only
    /usr/lib/<triplet>/...    the libraries once more, where the loader looks by itself
    /usr/local/cuda/compat    the same, where images keep a newer driver that they would use
    /dev/...                  the nodes of its devices, and those that all devices need

A container of whole devices has the driver itself and no quota. LD_LIBRARY_PATH is never set: it
would overwrite the user's.
"""

from __future__ import annotations

import dataclasses
import platform
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.volumes import cdi, installation, plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyvgpu import device
    from pyvgpu.deviceplugin.grants import Grant

LIBRARIES = "/usr/local/pyvgpu"
QUOTA = "/etc/pyvgpu"
USAGE = "/run/pyvgpu/usage"
CLOCKS = "/run/pyvgpu-clock"
COMPAT = "/usr/local/cuda/compat"
CLOCK_FOLDER = "clock"  # in the grant's folder

# Where a loader looks without being told: Debian's, then Red Hat's.
LOADER_FOLDERS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")

_READ_WRITE = ("rw", "nosuid", "nodev", "noexec", "bind", "rprivate")
_SONAME = re.compile(r".+\.so\.\d+", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Driver:
    """What a node has to give to containers."""

    release: str
    tree: Path  # of the mirror, a published one: never `current`
    contents: Mapping[str, str | None]  # of the tree: paths, and what links lead to
    devices: Mapping[str, device.Device]  # by UUID
    nodes: Mapping[str, cdi.Node]  # of the devices, by UUID
    control: tuple[cdi.Node, ...] = ()  # what a user of any device needs
    whole_control: tuple[cdi.Node, ...] = ()  # what only a user of whole devices gets
    mounts: tuple[tuple[str, str], ...] = ()  # more of them, writable: a path and where it goes
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dev: Path = Path("/dev")  # where the nodes are, outside of containers
    folders: tuple[str, ...] = ()  # of containers, in which the mirror is looked for, too
    # The mounts of each volume, the same for all containers: made for the first that needs them.
    mounted: dict[str, tuple[dict[str, Any], ...]] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )


def specification(grant: Grant, folder: Path, driver: Driver) -> dict[str, Any]:
    """Return the CDI specification of a bound *grant* whose files are in *folder*.

    DataError if *driver* has not what it needs.
    """
    missing = [share.uuid for share in grant.shares if share.uuid not in driver.nodes]
    if missing or not grant.bound:
        raise errors.DataError(
            f"grant {grant.id}: no node in /dev is known of {', '.join(missing) or 'no device'}"
        )
    volume = installation.EXCLUSIVE if grant.whole else installation.SHARED
    nodes = [
        *driver.control,
        *(driver.whole_control if grant.whole else ()),
        *(driver.nodes[share.uuid] for share in grant.shares),
    ]
    edits: dict[str, object] = {
        "mounts": list(_mounts(volume, None if grant.whole else folder, driver)),
        # Two devices may share a stand-in; runtimes refuse the same node twice.
        "deviceNodes": [node.edit() for node in dict.fromkeys(nodes)],
    }
    if driver.environment:
        edits["env"] = [f"{name}={value}" for name, value in sorted(driver.environment.items())]
    return cdi.document(names.GRANT_KIND, {grant.id: edits})


def unbound(folder: Path, driver: Driver) -> tuple[list[dict[str, Any]], list[cdi.Node]]:
    """Return the mounts and nodes of a share of which it is not known yet what it will be.

    For a runtime without CDI, which is told at Allocate, and never again: so it gets the nodes of
    all devices. What is in *folder* when it starts decides what it may do with which of them.
    """
    nodes = [*driver.control, *driver.nodes.values()]
    return list(_mounts(installation.SHARED, folder, driver)), list(dict.fromkeys(nodes))


def _mounts(volume: str, folder: Path | None, driver: Driver) -> Iterator[dict[str, Any]]:
    """Give the mounts of a volume of the driver, and of the quota in *folder*, if there is one."""
    if volume not in driver.mounted:
        driver.mounted[volume] = tuple(_volume(volume, driver))
    yield from driver.mounted[volume]
    if folder is not None:
        yield from _held(folder, driver)
    for source, target in driver.mounts:
        yield cdi.mount(Path(source), target, _READ_WRITE)


def _volume(volume: str, driver: Driver) -> Iterator[dict[str, Any]]:
    for place in (LIBRARIES, *driver.folders):
        yield cdi.mount(driver.tree / volume, place)
    yield from cdi.placed(driver.tree, volume, driver.contents)
    yield from _libraries(driver, volume)


def _held(folder: Path, driver: Driver) -> Iterator[dict[str, Any]]:
    """Mount what holds a container to its quota, and leaves it no other driver."""
    yield from _region(folder)
    yield cdi.mount(driver.tree / installation.SHARED / plan.LIB64, COMPAT)


def _region(folder: Path) -> Iterator[dict[str, Any]]:
    yield cdi.mount(folder, QUOTA, (*cdi.READ_ONLY, "noexec"))
    yield cdi.mount(folder / names.USAGE_FILE, USAGE, _READ_WRITE)
    yield cdi.mount(folder / CLOCK_FOLDER, CLOCKS, (*cdi.READ_ONLY, "noexec"))


def _libraries(driver: Driver, volume: str) -> Iterator[dict[str, Any]]:
    """Mount each library under the name by which programs ask for it."""
    beginning = f"{volume}/{plan.LIB64}/"
    found = {
        path.removeprefix(beginning): target
        for path, target in driver.contents.items()
        if path.startswith(beginning) and "/" not in path.removeprefix(beginning)
    }
    linked = {target for target in found.values() if target}
    for name, target in sorted(found.items()):
        asked_for = name in names.SHIM_NAMES or (
            _SONAME.fullmatch(name) if target else name not in linked
        )
        if asked_for:
            source = posixpath.normpath(beginning + (target or name))
            for folder in LOADER_FOLDERS:
                yield cdi.mount(driver.tree / source, f"{folder}/{name}")
