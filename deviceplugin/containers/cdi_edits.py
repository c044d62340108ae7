"""CDI edits of a grant's container: mounts, device nodes, hooks; pure.

    /usr/local/pyvgpu         the mirror of the driver, for a share with the shim
    /etc/pyvgpu               the grant's folder, read-only: its quota
    /run/pyvgpu/usage         the grant's usage file, which the container writes
    /run/pyvgpu-clock         the clocks of its devices, read-only
    /usr/lib/<triplet>/...    the libraries again, in the loader's default path
    /usr/local/cuda/compat    the same, over a newer driver that an image brings along
    /run/pyvgpu-mps           of a device that MPS divides: the folder of its daemon
    /dev/shm                  the same: the one that the daemon has
    /dev/...                  the nodes of its devices, and those that every device needs

A container of whole devices has the driver itself and no quota. LD_LIBRARY_PATH is never set: it
would overwrite the user's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import platform
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import device, errors, names, quota
from pyvgpu.deviceplugin import grants
from pyvgpu.machine import mps_limits
from pyvgpu.volumes import capabilities, cdi, installation, mirror_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

LIBRARIES = "/usr/local/pyvgpu"
QUOTA = "/etc/pyvgpu"
USAGE = "/run/pyvgpu/usage"
CLOCKS = "/run/pyvgpu-clock"
COMPAT = "/usr/local/cuda/compat"
MPS = "/run/pyvgpu-mps"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- a mount point
CLOCK_FOLDER = "clock"  # in the grant's folder

# The loader's default folders: Debian's, then Red Hat's.
LOADER_FOLDERS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")

_ANY = grants.new_id()  # a random placeholder for a grant's id in a template

MOST_TEXTS = 512  # templates of a driver that are cached

_HOOK_SECONDS = 5  # it waits for two at most
_READ_WRITE = ("rw", "nosuid", "nodev", "noexec", "bind", "rprivate")
_SONAME = re.compile(r".+\.so\.\d+", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Hook:
    """The createRuntime hook: the runtime runs it on the node before a container's program."""

    program: Path
    socket: Path  # through which it notifies the agent


@dataclasses.dataclass(frozen=True, slots=True)
class MpsFiles:
    """The devices that MPS divides, and the folders of their daemons."""

    folder: Path  # has a folder for each device, named by its UUID
    shared_memory: Path
    facts: Mapping[str, mps_limits.DeviceFacts]  # by UUID


@dataclasses.dataclass(frozen=True, slots=True)
class NodeDriver:
    """The node's driver files, devices and device nodes for containers."""

    release: str
    tree: Path  # of the mirror, a published one: never `current`
    contents: Mapping[str, str | None]  # of the tree: paths, and the targets of links
    devices: Mapping[str, device.Device]  # by UUID
    nodes: Mapping[str, cdi.CdiNode]  # of the devices, by UUID
    # Of the MIG devices, by UUID: those of its two instances, which no other container gets.
    capabilities: Mapping[str, tuple[cdi.CdiNode, ...]] = dataclasses.field(default_factory=dict)
    control: tuple[cdi.CdiNode, ...] = ()  # that every container with a device needs
    whole_control: tuple[cdi.CdiNode, ...] = ()  # that only containers with whole devices get
    mounts: tuple[tuple[str, str], ...] = ()  # further ones, writable: source and target
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dev: Path = Path("/dev")  # where the nodes are, outside of containers
    nodeless: bool = False  # devices are simulated, and have no nodes
    folders: tuple[str, ...] = ()  # further mount points of the mirror in containers
    minors: Mapping[str, int] = dataclasses.field(default_factory=dict)  # of GPUs, by UUID
    proc: Path = Path("/proc")  # with the driver's list of capabilities
    mps: MpsFiles | None = None  # None: MPS divides no device
    hook: Hook | None = None  # for containers of shares, where the driver can limit them itself
    # Cache of each volume's mounts, the same for all containers.
    mounted: dict[str, tuple[dict[str, Any], ...]] = dataclasses.field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    # Cache of specification templates, by folder and devices.
    texts: dict[tuple[object, ...], bytes] = dataclasses.field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def with_instance(
        self, gpu: str, uuid: str, gpu_instance: int, compute_instance: int
    ) -> NodeDriver:
        """Return the driver with one more MIG device of a GPU; UnavailableError without nodes."""
        parent = self.devices[gpu]
        instance = device.MigInstance(gpu, parent.index, 0, gpu_instance, compute_instance, 1)
        own = dataclasses.replace(parent, uuid=uuid, instance=instance)
        devices = {**self.devices, uuid: own}
        if self.nodeless:
            # No device nodes keep the container from the other instances.
            seen = {**self.environment, "CUDA_VISIBLE_DEVICES": uuid}
            return dataclasses.replace(self, devices=devices, environment=seen)
        if gpu not in self.minors or gpu not in self.nodes:
            raise errors.UnavailableError(f"GPU {gpu}: has no device node")
        caps = capabilities.of_instance(
            self.minors[gpu], gpu_instance, compute_instance, self.proc
        )
        return dataclasses.replace(
            self,
            devices=devices,
            nodes={**self.nodes, uuid: self.nodes[gpu]},
            capabilities={**self.capabilities, uuid: caps},
        )


def written(grant: Grant, folder: Path, driver: NodeDriver) -> bytes:
    """Return the CDI specification of a bound *grant* whose files are in *folder*.

    The CDI device is named by the grant's id. DataError if *driver* lacks a device.
    """
    if grant.isolation is quota.Isolation.MPS:
        edits = _under_mps(grant, folder, driver)
        return cdi.content(cdi.document(names.GRANT_KIND, {grant.id: edits}))
    uuids = tuple(share.uuid for share in grant.shares)
    form = _form(f"grant {grant.id}", folder.parent, uuids, driver, whole=grant.whole)
    text = form.replace(_ANY.encode(), grant.id.encode())
    if grant.claim is None:
        return text
    # Kubelet does not store a claim's grant, as it does Allocate's answer: so store it here, too.
    name = b'"name": "%s"' % grant.id.encode()
    noted = json.dumps({names.GRANT_KIND: json.dumps(grants.dump(grant))}).encode()
    text = text.replace(cdi.VERSION.encode(), cdi.NOTED_VERSION.encode(), 1)
    return text.replace(name, name + b', "annotations": ' + noted, 1)


def _under_mps(grant: Grant, folder: Path, driver: NodeDriver) -> dict[str, object]:
    """Return the edits of a share of a device that MPS divides; they differ by its amounts."""
    (one,) = grant.shares
    facts = None if driver.mps is None else driver.mps.facts.get(one.uuid)
    if driver.mps is None or facts is None:
        raise errors.DataError(f"grant {grant.id}: MPS does not divide device {one.uuid}")
    edits = _edits(f"grant {grant.id}", (one.uuid,), folder, driver)
    limit = mps_limits.limit_sms(one.vcore, facts)
    if limit.lowered:
        log.info("%s: %s", grant.label, mps_limits.describe_lowered(one.vcore, limit, one.uuid))
    limited = grant.share_of(one, driver.devices[one.uuid])
    variables = {**driver.environment, **mps_limits.variables(limited, limit, Path(MPS))}
    mounts = (
        cdi.mount(driver.mps.folder / one.uuid, MPS, _READ_WRITE),
        cdi.mount(driver.mps.shared_memory, SHARED_MEMORY, _READ_WRITE),
    )
    return {
        **edits,
        "mounts": [*_mounts(installation.SHARED, folder, driver), *mounts],
        "env": [f"{name}={value}" for name, value in sorted(variables.items())],
    }


def ready(folder: Path, driver: NodeDriver) -> None:
    """Fill the cache of templates for shares of each device, for later grants in *folder*."""
    for uuid in driver.devices:
        with contextlib.suppress(errors.DataError):  # reported when the device is granted
            _form(uuid, folder, (uuid,), driver, whole=False)


def _form(
    what: str, within: Path, uuids: tuple[str, ...], driver: NodeDriver, *, whole: bool
) -> bytes:
    """Return the specification template for these devices, with _ANY in place of the id."""
    key = within, whole, uuids
    text = driver.texts.get(key)
    if text is None:
        edits = _edits(what, uuids, None if whole else within / _ANY, driver)
        text = cdi.content(cdi.document(names.GRANT_KIND, {_ANY: edits}))
        if len(driver.texts) >= MOST_TEXTS:  # 16 devices have 65,535 combinations
            driver.texts.clear()
        driver.texts[key] = text
    return text


def sliced(kind: str, name: str, uuids: Sequence[str], driver: NodeDriver) -> dict[str, Any]:
    """Return the specification of a CDI device with time slices of devices, without a quota.

    Other containers have the same devices, so it lacks the nodes that affect a whole device.
    DataError if *driver* lacks one of the devices.
    """
    shared = dataclasses.replace(driver, whole_control=())
    return cdi.document(kind, {name: _edits(name, uuids, None, shared)})


def held(kind: str, name: str, uuid: str, folder: Path, driver: NodeDriver) -> dict[str, Any]:
    """Return the specification of one quota, whose files are in *folder*, on the device *uuid*.

    DataError if *driver* lacks the device.
    """
    return cdi.document(kind, {name: _edits(name, (uuid,), folder, driver)})


def whole_devices(
    kind: str, devices: Sequence[device.Device], driver: NodeDriver
) -> dict[str, Any]:
    """Return the specification of *devices* without a quota, by index and UUID, and of ``all``.

    DataError if *driver* lacks one of them.
    """
    named: dict[str, tuple[str, ...]] = {
        name: (one.uuid,) for one in devices for name in (str(one.index), one.uuid)
    }
    named["all"] = tuple(one.uuid for one in devices)
    return cdi.document(
        kind, {name: _edits(name, uuids, None, driver) for name, uuids in named.items()}
    )


def for_admin(kind: str, name: str, uuids: Sequence[str], driver: NodeDriver) -> dict[str, Any]:
    """Return the specification of a CDI device for monitoring devices, without a quota.

    It stores their UUIDs. DataError if *driver* lacks one of them.
    """
    found = cdi.document(kind, {name: _edits(name, uuids, None, driver)})
    (only,) = found["devices"]
    only["annotations"] = {kind: json.dumps(list(uuids))}
    return {**found, "cdiVersion": cdi.NOTED_VERSION}


def _edits(
    what: str, uuids: Sequence[str], folder: Path | None, driver: NodeDriver
) -> dict[str, object]:
    """Return the CDI edits for a container; without a *folder* the devices are whole."""
    has_node = driver.devices if driver.nodeless else driver.nodes
    missing = [uuid for uuid in uuids if uuid not in has_node]
    if not driver.nodeless:
        missing += [
            f"the capabilities of {uuid}"
            for uuid in uuids
            if device.is_instance(uuid) and uuid not in driver.capabilities
        ]
    if missing or not uuids:
        raise errors.DataError(
            f"{what}: no device node in /dev for {', '.join(missing) or 'no device'}"
        )
    volume = installation.EXCLUSIVE if folder is None else installation.SHARED
    nodes = [
        *driver.control,
        *(driver.whole_control if folder is None else ()),
        *(driver.nodes[uuid] for uuid in uuids if uuid in driver.nodes),
        *(node for uuid in uuids for node in driver.capabilities.get(uuid, ())),
    ]
    edits: dict[str, object] = {
        "mounts": list(_mounts(volume, folder, driver)),
        # Two devices may share a substitute node; runtimes refuse the same node twice.
        "deviceNodes": [node.edit() for node in dict.fromkeys(nodes)],
    }
    if folder is not None and driver.hook is not None:
        program = str(driver.hook.program)
        arguments = [program, str(driver.hook.socket), folder.name]
        edits["hooks"] = [
            {
                "hookName": "createRuntime",
                "path": program,
                "args": arguments,
                "timeout": _HOOK_SECONDS,
            }
        ]
    if driver.environment:
        edits["env"] = [f"{name}={value}" for name, value in sorted(driver.environment.items())]
    return edits


def unbound(folder: Path, driver: NodeDriver) -> tuple[list[dict[str, Any]], list[cdi.CdiNode]]:
    """Return the mounts and nodes of a share whose devices are not chosen yet.

    For a runtime without CDI, which gets them at Allocate and never again: so it gets the nodes of
    all devices. The quota in *folder* at its start decides which of them it may use, and how much.
    """
    caps = [node for nodes in driver.capabilities.values() for node in nodes]
    nodes = [*driver.control, *driver.nodes.values(), *caps]
    return list(_mounts(installation.SHARED, folder, driver)), list(dict.fromkeys(nodes))


def _mounts(volume: str, folder: Path | None, driver: NodeDriver) -> Iterator[dict[str, Any]]:
    """Yield the mounts of a volume of the driver, and those of the quota in *folder*, if given."""
    if volume not in driver.mounted:
        driver.mounted[volume] = tuple(_volume(volume, driver))
    yield from driver.mounted[volume]
    if folder is not None:
        yield from _held(folder, driver)
    for source, target in driver.mounts:
        yield cdi.mount(Path(source), target, _READ_WRITE)


def _volume(volume: str, driver: NodeDriver) -> Iterator[dict[str, Any]]:
    for place in (LIBRARIES, *driver.folders):
        yield cdi.mount(driver.tree / volume, place)
    yield from cdi.placed(driver.tree, volume, driver.contents)
    yield from _libraries(driver, volume)


def _held(folder: Path, driver: NodeDriver) -> Iterator[dict[str, Any]]:
    """Yield the mounts that enforce a quota: the region, and the shim over any other driver."""
    yield from _region(folder)
    yield cdi.mount(driver.tree / installation.SHARED / mirror_plan.LIB64, COMPAT)


def _region(folder: Path) -> Iterator[dict[str, Any]]:
    yield cdi.mount(folder, QUOTA, (*cdi.READ_ONLY, "noexec"))
    yield cdi.mount(folder / names.USAGE_FILE, USAGE, _READ_WRITE)
    yield cdi.mount(folder / CLOCK_FOLDER, CLOCKS, (*cdi.READ_ONLY, "noexec"))


def _libraries(driver: NodeDriver, volume: str) -> Iterator[dict[str, Any]]:
    """Yield mounts of each library under the name by which programs load it."""
    beginning = f"{volume}/{mirror_plan.LIB64}/"
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
