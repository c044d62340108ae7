"""Discovery of the node's devices through the driver, and of the files and nodes for containers.

Everything is read again when another driver was mirrored.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml

from pyvgpu import device, errors, names, nvml
from pyvgpu.deviceplugin import agent_settings
from pyvgpu.deviceplugin.agent_settings import Profile
from pyvgpu.deviceplugin.containers import cdi_edits, mig_instances
from pyvgpu.deviceplugin.devices import inventory
from pyvgpu.machine import memory_limit
from pyvgpu.run import context_overhead, mps_run
from pyvgpu.simulation import simulator
from pyvgpu.volumes import capabilities, cdi, find, installation, manifest, mirror_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyvgpu.deviceplugin.agent_settings import AgentSettings

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of a node, and the driver with which containers use them."""

    seen: tuple[inventory.InventoryDevice, ...]
    driver: cdi_edits.NodeDriver
    library: Path  # NVML of that driver
    cuda_version: str = ""  # that the driver supports; empty: not reported
    limits: bool = False  # whether the driver can enforce memory limits on cgroups
    stranded: frozenset[str] = frozenset()  # GPUs out of MIG mode, but with records of instances


def read(
    tree: Path,
    release: str,
    settings: AgentSettings,
    instances: mig_instances.MigInstances | None = None,
) -> Hardware:
    """Read the devices of the driver in a published *tree*.

    Measured values of the devices are stored in the agent's state folder. A GPU on which
    *instances* are created for pods is one device.
    """
    mirrored = manifest.Manifest.read(tree)
    if mirrored is None:
        raise errors.DataError(f"{tree}: is not a complete mirror any more")
    libraries = tree / installation.EXCLUSIVE / mirror_plan.LIB64
    library = libraries / names.LIBNVIDIA_ML
    machine = os.environ.get(names.SIMULATED_MACHINE_VARIABLE)
    if machine is None:
        found = context_overhead.with_measured(
            device.installed(library), find.find_driver(libraries), settings.state, log.info
        )
    else:
        found = device.simulated(simulator.read_machine(Path(machine)))
    try:
        with nvml.session(library):
            gpus = {} if instances is None else {gpu.uuid: gpu for gpu in instances.read(library)}
            found = tuple(_undivided(found, gpus))
            seen = tuple(
                dataclasses.replace(one, profiles=gpus[one.device.uuid].profiles)
                if one.device.uuid in gpus
                else one
                for one in inventory.read(found, settings.classes)
            )
            seen = tuple(_with_mps(one, settings.mps) for one in seen)
            for line in _not_divided(seen, settings.mps):
                log.warning("%s", line)
            cuda_version = inventory.cuda_version()
            limits = any(
                memory_limit.is_offered(gpu.uuid) for gpu in found if gpu.uuid not in gpus
            )
    except (OSError, pynvml.NVMLError) as exc:
        raise errors.UnavailableError(f"{library}: NVML does not start: {exc}") from exc
    nodes = () if settings.simulate else cdi.nodes(settings.driver_root)
    dev = _folder_of(nodes, settings.driver_root)
    return Hardware(
        seen,
        cdi_edits.NodeDriver(
            release=release,
            tree=tree,
            contents={path: entry.target for path, entry in mirrored.entries.items()},
            devices={gpu.uuid: gpu for gpu in found},
            nodes=inventory.nodes(seen, nodes),
            capabilities=({} if settings.simulate else _capabilities(seen, settings.driver_root)),
            control=(
                *(node for node in nodes if node.name in cdi.FOR_ALL),
                *_more_nodes(settings.nodes, dev),
            ),
            whole_control=tuple(node for node in nodes if node.name in cdi.FOR_WHOLE_DEVICES),
            mounts=() if machine is None else ((machine, machine),),
            environment={} if machine is None else {names.SIMULATED_MACHINE_VARIABLE: machine},
            dev=settings.node_dev or dev,
            minors={one.device.uuid: one.minor for one in seen if one.minor is not None},
            proc=capabilities.proc_of(settings.driver_root),
            nodeless=bool(settings.simulate),
            folders=(cdi.CONTAINER_FOLDER,) if settings.profile is Profile.GAIA else (),
        ),
        library,
        cuda_version,
        limits,
        frozenset() if instances is None else instances.stranded,
    )


def _with_mps(one: inventory.InventoryDevice, wanted: frozenset[str]) -> inventory.InventoryDevice:
    """Return a device with the facts that MPS needs, if its UUID or ALL is *wanted*."""
    if one.profiles or one.device.mig or not wanted & {one.device.uuid, agent_settings.ALL}:
        return one
    return dataclasses.replace(one, mps=mps_run.read_facts(one.device.uuid))


def _not_divided(
    seen: Iterable[inventory.InventoryDevice], wanted: frozenset[str]
) -> Iterator[str]:
    """Yield a line for each GPU in MIG mode that *wanted* names: only MIG devices can have MPS."""
    for one in seen:
        if one.profiles and one.device.uuid in wanted:
            yield (
                f"--mps: {one.device.uuid} is not divided by MPS, since pods get MIG instances of "
                "it (--dynamic-mig)"
            )
    own: dict[str, list[str]] = {}
    for one in seen:
        if one.device.mig:
            own.setdefault(one.device.uuid, [])
        elif one.device.instance is not None:
            own.setdefault(one.device.instance.parent, []).append(one.device.uuid)
    for uuid, devices in own.items():
        if uuid in wanted:
            yield (
                f"--mps: {uuid} is not divided by MPS, since it is in MIG mode; name its MIG "
                f"devices: {', '.join(devices) or 'it has none'}"
            )


def _undivided(
    found: Iterable[device.Device], gpus: Mapping[str, mig_instances.Gpu]
) -> Iterator[device.Device]:
    """Yield *found* with each of *gpus* in place of its MIG devices."""
    done: set[str] = set()
    for one in found:
        uuid = one.instance.parent if one.instance else one.uuid
        if uuid not in gpus:
            yield one
        elif uuid not in done:
            done.add(uuid)
            gpu = gpus[uuid]
            yield dataclasses.replace(
                one,
                uuid=uuid,
                index=gpu.index,
                name=gpu.name,
                memory_bytes=max(profile.memory_bytes for profile in gpu.profiles),
                mig=False,
                instance=None,
            )


def _capabilities(
    seen: Iterable[inventory.InventoryDevice], driver_root: Path
) -> dict[str, tuple[cdi.CdiNode, ...]]:
    """Return the capability nodes of each MIG device."""
    found: dict[str, tuple[cdi.CdiNode, ...]] = {}
    proc = capabilities.proc_of(driver_root)
    for one in seen:
        part = one.device.instance
        if part is None or one.minor is None:
            continue
        try:
            found[one.device.uuid] = capabilities.of_instance(
                one.minor, part.gpu_instance, part.compute_instance, proc
            )
        except errors.UnavailableError as exc:
            log.warning("no container gets MIG device %s: %s", one.device.uuid, exc)
    return found


def _more_nodes(wanted: Iterable[str], dev: Path) -> Iterator[cdi.CdiNode]:
    for name in wanted:
        try:
            status = (dev / name).stat()
        except OSError as exc:
            log.warning("containers do not get %s: %s", dev / name, exc.strerror)
            continue
        if stat.S_ISCHR(status.st_mode):
            yield cdi.CdiNode(name, os.major(status.st_rdev), os.minor(status.st_rdev))
        else:
            log.warning("containers do not get %s: it is not a character device", dev / name)


def _folder_of(nodes: tuple[cdi.CdiNode, ...], root: Path) -> Path:
    """Return the folder in which :func:`cdi.nodes` has found *nodes*."""
    below = root / "dev"
    return below if nodes and all((below / node.name).exists() for node in nodes) else Path("/dev")
