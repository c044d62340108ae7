"""Time slices: devices that several containers share whole, without limits.

Each device that is allocated by ``time-slices`` has as many ids as --time-slicing-replicas says.
Each id gives a container the whole device; the driver alone divides its time among the processes
that have work. ``allocation_api`` sees to it that a device has either ids here or shares.

An id names its device (``GPU-8c9f5a3e-...::0``, as NVIDIA's plugin writes it), so Allocate's
answer needs no later choice: its CDI device is named by its set of devices. PreStartContainer
writes the specification of that CDI device for the node's current driver.

time-slices.json    {"pyvgpu.io/gpu-shared": 4}, in the agent's state folder: the resources that
                    were served, and their replicas, until no device is allocated by them
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.deviceplugin.allocation_api import Api
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.deviceplugin.grants import events
from pyvgpu.deviceplugin.grants.placement import RefusedError
from pyvgpu.deviceplugin.kubelet import device_ids, offers, plugin_messages
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind
from pyvgpu.volumes import atomic_files, cdi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.agent_settings import TimeSlicing
    from pyvgpu.deviceplugin.allocation_api import ApiState
    from pyvgpu.deviceplugin.grants import interfaces, prestart

log = logging.getLogger(__name__)

FILE = "time-slices.json"  # in the state folder
LOCK = "pyvgpu-time-slices.lock"  # in kubelet's folder
POLL_SECONDS = 5.0

_BETWEEN = "::"
_PREFIX, _SUFFIX = "pyvgpu.io-time-slice-", ".json"
_SHARES = (ResourceKind.VCORE, ResourceKind.VMEMORY)


def resource(name: str) -> device_ids.Resource:
    """Return the resource called *name*."""
    return device_ids.Resource(ResourceKind.TIME_SLICE, name, "GPU-")


def ids(uuid: str, replicas: int) -> tuple[str, ...]:
    """Return the ids of a device."""
    return tuple(f"{uuid}{_BETWEEN}{number}" for number in range(replicas))


def devices_of(given: Iterable[str]) -> tuple[str, ...]:
    """Return the UUIDs of the devices that the ids *given* name, each once."""
    return tuple(sorted({each.partition(_BETWEEN)[0] for each in given}))


@dataclasses.dataclass(frozen=True, slots=True)
class SlicedDevice:
    """A device that is allocated by time slices."""

    uuid: str
    unhealthy: bool = False
    closed: bool = False  # it takes no new containers


def sliced(
    devices: Iterable[datatypes.NodeDevice],
    state_of: Callable[[str], ApiState | None],
    other_plugin: str,
) -> tuple[SlicedDevice, ...]:
    """Return the devices that are, or still are, allocated by time slices.

    None takes new containers while *other_plugin*, unless empty, gives out the same devices.
    """
    found = []
    for device in devices:
        state = state_of(device.uuid)
        if state is not None and state.now is Api.TIME_SLICES:
            closed = device.cordoned or state.moves or bool(other_plugin)
            found.append(SlicedDevice(device.uuid, bool(device.unhealthy), closed))
    return tuple(found)


def unavailable(
    devices: Iterable[SlicedDevice], replicas: int, held: frozenset[str]
) -> frozenset[str]:
    """Return the ids that kubelet must not allocate; *held* are allocated ids.

    Of a closed device those not held, so that its containers can restart.
    """
    found: set[str] = set()
    for device in devices:
        own = ids(device.uuid, replicas)
        if device.unhealthy:
            found.update(own)
        elif device.closed:
            found.update(frozenset(own) - held)
    return frozenset(found)


def preferred(asked: plugin_messages.PreferredRequest) -> tuple[str, ...]:
    """Return the ids that kubelet should take: of as many devices as possible, the emptiest first.

    A second id of a device gives a container no more of it.
    """
    chosen = list(asked.must)
    left: dict[str, list[str]] = {}
    for each in sorted(set(asked.available).difference(chosen), key=_place, reverse=True):
        left.setdefault(each.partition(_BETWEEN)[0], []).append(each)
    while len(chosen) < asked.size and left:
        taken = [each.partition(_BETWEEN)[0] for each in chosen]
        uuid = min(left, key=lambda one: (taken.count(one), -len(left[one]), one))
        chosen.append(left[uuid].pop())
        if not left[uuid]:
            del left[uuid]
    return tuple(chosen)


def _place(one: str) -> tuple[str, int]:
    uuid, _, number = one.partition(_BETWEEN)
    return uuid, int(number) if number.isdecimal() else 0


def cdi_name(uuids: Sequence[str]) -> str:
    """Return the name of the CDI device of these devices together."""
    return hashlib.sha256("\n".join(uuids).encode()).hexdigest()[:16]


class ServedResources:
    """The resources that were served on this node, with their replicas, in the state folder.

    DataError if the file is invalid: a device with tenants could be offered for shares.
    """

    def __init__(self, state: Path) -> None:
        self._file = state / FILE
        self.replicas: Mapping[str, int] = self._read()

    def add(self, name: str, replicas: int) -> None:
        """Record that *name* is served from now on."""
        rest = {known: count for known, count in self.replicas.items() if known != name}
        self._write({**rest, name: replicas})

    def forget(self) -> None:
        """Forget all of them: no device is allocated by time slices."""
        if self.replicas:
            self._write({})

    def _write(self, found: Mapping[str, int]) -> None:
        if list(found.items()) != list(self.replicas.items()):
            try:
                atomic_files.write(self._file, json.dumps(found).encode())
            except OSError as exc:
                raise errors.of_files(f"{self._file}: cannot be written", exc) from exc
            self.replicas = dict(found)

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(self._file.read_bytes())
            return {str(name): int(count) for name, count in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise errors.DataError(
                f"{self._file}: cannot be read ({errors.reason_of(exc)}); fix it, for "
                f'example {{"{names.GPU_SHARED_RESOURCE}": 4}}, or remove it if no container uses '
                "a device"
            ) from exc


@dataclasses.dataclass(frozen=True, slots=True)
class TimeSliceNode:
    """What time slices read of the other parts of the agent."""

    devices: Callable[[], Sequence[datatypes.NodeDevice]]
    state_of: Callable[[str], ApiState | None]  # the allocation API of a device
    other_plugin: Callable[[], str]  # that gives out the same devices; empty: none
    driver: Callable[[], cdi_edits.NodeDriver | None]
    specifications: Path  # folder of CDI
    claims_of: Callable[[str], bool]  # whether the pod with that uid has devices through claims
    ready: Callable[[], object]  # returns when the devices were looked for once
    # Whether the pod with that uid exists and runs, by the API server; None: there is none.
    is_alive: Callable[[str], bool] | None = None
    report: Callable[[events.GrantEvent], object] = lambda _: None


class TimeSlices:
    """Decides kubelet's calls for time slices, and offers their ids."""

    def __init__(
        self, settings: TimeSlicing, node: TimeSliceNode, kubelet: interfaces.KubeletSources
    ) -> None:
        self._replicas = settings.replicas
        self._same_device = settings.same_device
        self._node = node
        self._kubelet = kubelet
        self.offer = offers.Offer(resource(settings.resource))
        self._in_use = frozenset[str]()  # ids that containers have, while a device is closed
        self._news = threading.Event()
        self._stopped = False

    def allocate(
        self, _kind: ResourceKind, given: frozenset[str]
    ) -> plugin_messages.AllocateResponse:
        """Answer with the CDI device of the devices that the ids name.

        RefusedError if one of them takes no new containers, or is named by two ids, unless the
        settings allow that.
        """
        uuids = devices_of(given)
        useless = self._why_useless(given)
        if useless and not self._same_device:
            raise RefusedError(useless, final=True)
        self._check(uuids, new=True)
        return plugin_messages.AllocateResponse(
            {}, (f"{names.TIME_SLICE_KIND}={cdi_name(uuids)}",)
        )

    def prefer(
        self, _kind: ResourceKind, asked: plugin_messages.PreferredRequest
    ) -> tuple[str, ...]:
        """Return ids of as many devices as possible, the emptiest first."""
        return preferred(asked)

    def start(self, _kind: ResourceKind, held: frozenset[str], done: prestart.Done) -> None:
        """Write the CDI device of a container; RefusedError if it may not have these devices.

        Its pod hears of slices that give it no more of a device.
        """
        self._check_alone(held)
        uuids = devices_of(held)
        self._check(uuids, new=False)
        driver = self._node.driver()
        if driver is None:
            raise errors.UnavailableError("the node has no driver now")
        name = cdi_name(uuids)
        document = cdi_edits.sliced(names.TIME_SLICE_KIND, name, uuids, driver)
        path = self._node.specifications / f"{_PREFIX}{name}{_SUFFIX}"
        cdi.put(cdi.content(document), path, lasting=False)
        useless = self._why_useless(held)
        if useless:
            log.warning("%s", useless)
            self._report(held, useless)
        done(None)

    def held(self) -> set[str] | None:
        """Return the UUIDs of devices that containers have; None if that is not known now."""
        try:
            entries = self._kubelet.state.read()
            listed = {
                each
                for pod in self._kubelet.pods.pods()
                for own in pod.containers.values()
                for each in own.get(ResourceKind.TIME_SLICE, ())
            }
            # PodResources omits init containers; the checkpoint may keep pods that have ended.
            alive = self._node.is_alive
            for entry in entries if alive else ():
                if entry.kind is ResourceKind.TIME_SLICE and alive and alive(entry.uid):
                    listed |= entry.ids
        except errors.PyVgpuError as exc:
            log.debug("the holders of time slices are not known: %s", exc)
            return None
        return set(devices_of(listed))

    def poll(self) -> None:
        """Update the ids that kubelet sees."""
        found = self._sliced()
        if any(device.closed for device in found):
            try:
                entries = self._kubelet.state.read()
            except errors.UnavailableError as exc:  # the ids read last still count
                log.debug("the ids of time slices in use are not known: %s", exc)
            else:
                slices = (entry for entry in entries if entry.kind is ResourceKind.TIME_SLICE)
                self._in_use = frozenset().union(*(entry.ids for entry in slices))
        everything = tuple(each for device in found for each in ids(device.uuid, self._replicas))
        self.offer.show(everything, unavailable(found, self._replicas, self._in_use))

    def changed(self) -> None:
        """Wake :meth:`run`: a device has changed."""
        self._news.set()

    def run(self) -> None:
        """Keep the offer up to date until :meth:`stop`."""
        while not self._stopped:
            self._news.clear()
            self.poll()
            self._news.wait(POLL_SECONDS)

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stopped = True
        self._news.set()

    def _sliced(self) -> tuple[SlicedDevice, ...]:
        node = self._node
        return sliced(node.devices(), node.state_of, node.other_plugin())

    def _why_useless(self, given: frozenset[str]) -> str:
        """Return why a container does not need all ids *given*; empty: it needs them."""
        uuids, name = devices_of(given), self.offer.resource.name
        if len(uuids) == len(given):
            return ""
        return (
            f"{name} {len(given)}: a container gets no more of a device by a second slice of it, "
            f"and others have none left; valid would be {name} {len(uuids)}"
        )

    def _report(self, held: frozenset[str], text: str) -> None:
        """Write an event for the pod that has the ids *held*."""
        alive = self._node.is_alive or (lambda _: True)
        for entry in self._kubelet.state.read():
            if (entry.kind, entry.ids) == (ResourceKind.TIME_SLICE, held) and alive(entry.uid):
                said = f"container {entry.container}: {text}"
                self._node.report(
                    events.GrantEvent(entry.uid, "", "", said, events.Reason.SAME_DEVICE)
                )

    def _check(self, uuids: Sequence[str], *, new: bool) -> None:
        """Refuse devices that a container, a *new* one or one that restarts, cannot have now."""
        known = {device.uuid: device for device in self._sliced()}
        for uuid in uuids:
            device = known.get(uuid)
            if device is None:
                raise RefusedError(f"device {uuid} is not allocated by time slices", final=False)
            if device.unhealthy:
                raise RefusedError(f"device {uuid} is unhealthy", final=False)
            if new and device.closed:
                raise RefusedError(f"device {uuid} takes no new containers", final=False)

    def _check_alone(self, held: frozenset[str]) -> None:
        """Refuse a container that also has a share: the driver would replace the shim in it."""
        entries = self._kubelet.state.read()
        name = self.offer.resource.name
        for uid in entries.pods_with(ResourceKind.TIME_SLICE, held):
            own = entries.of_pod(uid)
            here = {entry.container for entry in own if entry.ids == held}
            both = sorted(
                entry.container
                for entry in own
                if entry.kind in _SHARES and entry.container in here
            )
            if both:
                raise RefusedError(
                    f"container {both[0]} asks for {name} and for {names.VCORE_RESOURCE}: it can "
                    f"have one of them; valid would be {name} 1 alone",
                    final=True,
                )
            if self._node.claims_of(uid):
                raise RefusedError(
                    f"its pod asks for {name} and has devices through claims: it can have one of "
                    f"them; valid would be {name} 1 alone",
                    final=True,
                )
