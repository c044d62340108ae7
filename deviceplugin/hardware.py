"""What the node has to give: its devices as the driver tells them, and what containers need of it.

Everything is looked up anew when another driver has been mirrored.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import device, errors, names, reserve, share, simulator
from pyvgpu.allocator import facts
from pyvgpu.deviceplugin import containers
from pyvgpu.volumes import cdi, find, installation, manifest, plan

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

_DEVICE = re.compile(r"nvidia(\d+)", re.ASCII)
_WHOLE = ("nvidia-modeset", "nvidia-uvm-tools")


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of a node, and the driver with which containers use them."""

    devices: tuple[facts.Device, ...]
    driver: containers.Driver


def look(tree: Path, release: str, root: Path, cache: Path) -> Hardware:
    """Look what the driver of a published *tree* has.

    *root* is where its device nodes are. What was measured is kept in *cache*.
    """
    told = manifest.Manifest.read(tree)
    if told is None:
        raise errors.DataError(f"{tree}: is no finished mirror any more")
    machine = os.environ.get(names.SIMULATED_MACHINE_VARIABLE)
    if machine is None:
        libraries = tree / installation.EXCLUSIVE / plan.LIB64
        driver = find.find_driver(libraries)
        found = reserve.with_measured(
            device.installed(libraries / names.LIBNVIDIA_ML), driver, cache, log.info
        )
    else:
        found = device.simulated(simulator.read_machine(Path(machine)))
    nodes = cdi.nodes(root)
    by_minor = {int(it[1]): node for node in nodes if (it := _DEVICE.fullmatch(node.name))}
    return Hardware(
        tuple(_fact(it) for it in found),
        containers.Driver(
            release=release,
            tree=tree,
            contents={path: entry.target for path, entry in told.entries.items()},
            devices={it.uuid: it for it in found},
            nodes={it.uuid: by_minor[it.index] for it in found if it.index in by_minor},
            control=tuple(_control(nodes)),
            whole_control=tuple(it for it in nodes if it.name in _WHOLE),
            mounts=() if machine is None else ((machine, machine),),
            environment={} if machine is None else {names.SIMULATED_MACHINE_VARIABLE: machine},
        ),
    )


def _control(nodes: Iterable[cdi.Node]) -> Iterable[cdi.Node]:
    return (it for it in nodes if it.name not in _WHOLE and not _DEVICE.fullmatch(it.name))


def _fact(one: device.Device) -> facts.Device:
    return facts.Device(
        one.uuid,
        one.index,
        one.memory_bytes,
        model=one.name,
        least_bytes=one.context_bytes + share.LEAST_ROOM_BYTES,
    )
