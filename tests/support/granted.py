"""Fixtures for grant tests: a node's simulated driver, grants, containers without a runtime.

A container is an overlay of this machine's root in a mount namespace, with the edits of a CDI
specification applied as a runtime would, as far as a program can see.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import installed
import shim_room
from waiting import WHOLE

from pyvgpu import device, names, shim
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.volumes import cdi, manifest, node_mirror

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.simulation import simulator

GIB = 1 << 30
NULL = Path("/dev/null").stat()  # a node that always exists, in place of a GPU's

_ENTER = """
set -e
root=$1; shift
mount -t tmpfs tmpfs "$root"
mkdir "$root/up" "$root/work" "$root/all"
mount -t overlay -o "lowerdir=/,upperdir=$root/up,workdir=$root/work" overlay "$root/all"
mount --rbind /proc "$root/all/proc"
mount --rbind /dev "$root/all/dev"
while [ "$1" != -- ]; do
    target=$root/all$2
    if [ -d "$1" ]; then mkdir -p "$target"; else mkdir -p "${target%/*}"; touch "$target"; fi
    mount --bind "$1" "$target"
    [ "$3" = rw ] || mount -o remount,bind,ro "$target"
    shift 3
done
shift
exec chroot "$root/all" "$@"
"""


def driver_of(machine: simulator.Machine, output: Path) -> cdi_edits.NodeDriver:
    """Return the simulated driver of *machine*, mirrored below *output*."""
    found = installed.installation_of(shim.simulator_libraries())
    mirror = node_mirror.NodeMirror(output, shim.shim_library())
    mirror.mirror(found)
    tree = mirror.current()
    mirrored = manifest.Manifest.read(tree) if tree else None
    assert tree
    assert mirrored
    devices = {one.uuid: one for one in device.simulated(machine)}
    return cdi_edits.NodeDriver(
        release=found.release,
        tree=tree,
        contents={path: entry.target for path, entry in mirrored.entries.items()},
        devices=devices,
        nodes={uuid: node_of(one.index) for uuid, one in devices.items()},
        control=(cdi.CdiNode("nvidiactl", 1, 3),),
        whole_control=(cdi.CdiNode("nvidia-uvm-tools", 1, 3),),
        mounts=((str(machine.folder), str(machine.folder)),),
        environment=machine.environment,
    )


def node_of(index: int) -> cdi.CdiNode:
    return cdi.CdiNode(f"nvidia{index}", os.major(NULL.st_rdev), os.minor(NULL.st_rdev))


def grant_of(*shares: datatypes.NodeShare, number: int = 1, **fields: Any) -> grants.Grant:
    """Return a bound grant of *shares*."""
    owner = grants.Owner("uid", "team", f"pod-{number}", "main")
    return grants.Grant(
        f"{number:016x}", frozenset({f"c{number}"}), 1.0, owner, shares=shares, **fields
    )


def share_of(machine: simulator.Machine, index: int = 0, vcore: int = 30, size: int = 2 * GIB):
    whole = machine.devices[index].memory_bytes if vcore == 100 else size
    return datatypes.NodeShare(machine.devices[index].uuid, vcore, whole)


def edits_of(specification: Path) -> dict[str, Any]:
    """Return the container edits of a CDI specification with one device."""
    document = json.loads(specification.read_bytes())
    (only,) = document["devices"]
    assert document["kind"] == names.GRANT_KIND
    return only["containerEdits"]


def command(edits: dict[str, Any], root: Path, *words: object) -> list[object]:
    """Return the command that runs *words* in a container with *edits*."""
    mounts = [
        word
        for mount in edits["mounts"]
        for word in (mount["hostPath"], mount["containerPath"], mount["options"][0])
    ]
    return ["unshare", "--mount", "sh", "-c", _ENTER, "sh", root, *mounts, "--", *words]


def start(
    edits: dict[str, Any],
    root: Path,
    source: str,
    *,
    around: Sequence[object] = (),
    within: Sequence[object] = (),
) -> subprocess.Popen[str]:
    """Start *source* with shim_room's prelude in a container, with pipes to it.

    *around* is a command prefix outside the container, *within* one inside it.
    """
    root.mkdir(exist_ok=True)
    program = (sys.executable, "-c", shim_room.PRELUDE + source)
    return subprocess.Popen(
        [*around, *command(edits, root, *within, *program)],
        env=variables(edits),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def variables(edits: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a container with *edits*."""
    given = dict(word.split("=", 1) for word in edits.get("env", ()))
    return {"PATH": os.environ["PATH"], **given}


def ask(edits: dict[str, Any], root: Path, source: str) -> tuple[object, str]:
    """Run *source* with shim_room's prelude in a container; return its answer and its stderr."""
    root.mkdir(exist_ok=True)
    done = subprocess.run(
        command(edits, root, sys.executable, "-c", shim_room.PRELUDE + source),
        env=variables(edits),
        capture_output=True,
        text=True,
        timeout=WHOLE,
    )
    return json.loads(done.stdout) if done.stdout else None, done.stderr
