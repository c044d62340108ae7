"""What the node has to give: its devices as the driver tells them, and what containers need of it.

Everything is looked up anew when another driver has been mirrored.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml

from pyvgpu import device, errors, memorylimit, names, nvml, reserve, simulator
from pyvgpu.deviceplugin import containers, gaia, inventory
from pyvgpu.deviceplugin.settings import Profile
from pyvgpu.volumes import cdi, find, installation, manifest, plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyvgpu.deviceplugin.settings import Settings

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of a node, and the driver with which containers use them."""

    seen: tuple[inventory.Seen, ...]
    driver: containers.Driver
    library: Path  # NVML of that driver
    cuda_version: str = ""  # that it is for; empty: it does not say
    limits: bool = False  # whether it can hold cgroups to limits of memory itself


def look(tree: Path, release: str, settings: Settings) -> Hardware:
    """Look what the driver of a published *tree* has.

    What was measured is kept in the folder of the agent's state.
    """
    told = manifest.Manifest.read(tree)
    if told is None:
        raise errors.DataError(f"{tree}: is no finished mirror any more")
    libraries = tree / installation.EXCLUSIVE / plan.LIB64
    library = libraries / names.LIBNVIDIA_ML
    machine = os.environ.get(names.SIMULATED_MACHINE_VARIABLE)
    if machine is None:
        found = reserve.with_measured(
            device.installed(library), find.find_driver(libraries), settings.state, log.info
        )
    else:
        found = device.simulated(simulator.read_machine(Path(machine)))
    try:
        with nvml.session(library):
            seen = inventory.look(found, settings.classes)
            cuda_version = inventory.cuda_version()
            limits = any(memorylimit.is_offered(it.uuid) for it in found)
    except (OSError, pynvml.NVMLError) as exc:
        raise errors.UnavailableError(f"{library}: NVML does not start: {exc}") from exc
    nodes = () if settings.simulate else cdi.nodes(settings.driver_root)
    dev = _folder_of(nodes, settings.driver_root)
    return Hardware(
        seen,
        containers.Driver(
            release=release,
            tree=tree,
            contents={path: entry.target for path, entry in told.entries.items()},
            devices={it.uuid: it for it in found},
            nodes=inventory.nodes(seen, nodes),
            control=(
                *(it for it in nodes if it.name in cdi.FOR_ALL),
                *_more_nodes(settings.nodes, dev),
            ),
            whole_control=tuple(it for it in nodes if it.name in cdi.FOR_WHOLE_DEVICES),
            mounts=() if machine is None else ((machine, machine),),
            environment={} if machine is None else {names.SIMULATED_MACHINE_VARIABLE: machine},
            dev=settings.node_dev or dev,
            nodeless=bool(settings.simulate),
            folders=(gaia.FOLDER,) if settings.profile is Profile.GAIA else (),
        ),
        library,
        cuda_version,
        limits,
    )


def _more_nodes(wanted: Iterable[str], dev: Path) -> Iterator[cdi.Node]:
    for name in wanted:
        try:
            status = (dev / name).stat()
        except OSError as exc:
            log.warning("containers do without %s: %s", dev / name, exc.strerror)
            continue
        if stat.S_ISCHR(status.st_mode):
            yield cdi.Node(name, os.major(status.st_rdev), os.minor(status.st_rdev))
        else:
            log.warning("containers do without %s: it is no character device", dev / name)


def _folder_of(nodes: tuple[cdi.Node, ...], root: Path) -> Path:
    """Return the folder in which :func:`cdi.nodes` has found these."""
    below = root / "dev"
    return below if nodes and all((below / it.name).exists() for it in nodes) else Path("/dev")
