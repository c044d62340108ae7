"""The node's devices, as the grant manager sees them.

They come from the driver, their health, and the administrator's cordons. When the driver is
replaced, everything is read again, and health checks and audit restart with the new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import device, errors, names, nvml, quota
from pyvgpu.deviceplugin.audit import auditor, quota_audit
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.deviceplugin.devices import health, inventory, mps_daemons, node_driver
from pyvgpu.deviceplugin.grants import events
from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.machine import arbiter
from pyvgpu.run import checkpoint_calls
from pyvgpu.volumes import node_mirror, tree_users

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.agent_settings import AgentSettings
    from pyvgpu.deviceplugin.containers import mig_instances
    from pyvgpu.deviceplugin.containers.backend import GrantBackend
    from pyvgpu.deviceplugin.devices import allocation_moves
    from pyvgpu.deviceplugin.devices.cordoned_devices import Cordons
    from pyvgpu.deviceplugin.grants import Grant, manager

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class ForClaims:
    """The node's devices, as ResourceSlices show them."""

    seen: tuple[inventory.InventoryDevice, ...]  # all of the node's
    devices: tuple[datatypes.NodeDevice, ...]  # those that ResourceClaims may get
    driver: inventory.DriverVersions


class Devices:
    """Updates the grant manager's list of devices from the driver and from their health."""

    def __init__(
        self,
        settings: AgentSettings,
        grant_manager: manager.GrantManager,
        made: GrantBackend,
        cordons: Cordons,
        gates: allocation_moves.DeviceApis,
        ended: Callable[[], None] = lambda: None,
        wake: Callable[[], None] = lambda: None,
        instances: mig_instances.MigInstances | None = None,
    ) -> None:
        self._settings = settings
        self._grant_manager = grant_manager
        self._made = made
        self._cordons = cordons
        self._gates = gates
        self._ended = ended  # called for each process that the audit has killed
        self.limits = made.limits(settings, lambda: grant_manager.known)
        self._instances = instances
        made.freed.add(self._see_freed)
        self.mps = mps_daemons.MpsDaemons(settings.run, self._hear_mps, self._hear_lost)
        self._by_mps: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._seen: tuple[inventory.InventoryDevice, ...] = ()
        self._driver = inventory.DriverVersions()
        self._nvml: arbiter.Nvml | None = None
        self._checkpoints: checkpoint_calls.CheckpointDriver | None = None
        self._reservable = 100  # percent of each device that the driver can suspend tenants of
        self._unhealthy: dict[str, str] = {}
        self._last_read: tuple[Path | None, node_mirror.MirrorState] | None = (
            None  # the source of _seen
        )
        self._other_plugin = ""
        self.outdated = False  # MIG mode or devices changed: the inventory must be read again
        self._wake = wake  # called when it is outdated
        self._away = False
        self._watcher: health.HealthWatcher | None = None
        self._auditor: auditor.Auditor | None = None

    def update(self, tree: Path | None, now: node_mirror.MirrorState) -> bool:
        """Read the devices from the driver as it is *now*; false if it could not be used."""
        if now.driver is not node_mirror.DriverState.PRESENT or tree is None:
            log.warning("the driver is %s: %s", now.driver, now.reason)
            self._away = True
            self.show()
            return True
        try:
            found = node_driver.read(tree, now.release, self._settings, self._instances)
        except errors.PyVgpuError as exc:
            log.warning("cannot list the devices: %s", exc)
            return False
        self.stop()
        with self._lock:
            before = self._unhealthy if (tree, now) == self._last_read else {}
            self._last_read, self.outdated = (tree, now), False
            self._seen, self._away = found.seen, False
            self._unhealthy = {
                seen.device.uuid: _first_reason(seen, before) for seen in found.seen
            } | dict.fromkeys(found.stranded, health.MIG_OFF)
            self._driver = inventory.DriverVersions(now.release, found.cuda_version)
            able = found.limits and self._settings.driver_limits and tree_users.sees_all()
            hook = self.limits.meet(found.library if able else None)
            mps = self._divide(found)
            self._made.driver = dataclasses.replace(found.driver, hook=hook, mps=mps)
            self._nvml = _nvml(found.library) if tree_users.sees_all() else None
            self._checkpoints = checkpoint_calls.CheckpointDriver(
                found.library.with_name(names.LIBCUDA), found.library, _machine(), now.release
            )
        self._reservable = _reservable(self._settings, self._checkpoints)
        self.mps.poll()  # so that a device with a daemon is not unhealthy for a moment
        self._gates.meet(
            (seen.device.uuid for seen in found.seen), self._grant_manager.known.values()
        )
        log.info("found driver %s with %d devices", now.release, len(found.seen))
        for uuid, reason in self._unhealthy.items():
            if reason:
                log.warning("device %s is unhealthy: %s", uuid, reason)
        self.show()
        self._grant_manager.recover()
        with contextlib.suppress(errors.PyVgpuError):  # the collector retries, and logs it
            self._made.fill()  # so the first containers to start do not wait for it
        unhealthy, rules = dict(self._unhealthy), self._settings.health
        divided = frozenset(seen.device.uuid for seen in found.seen if seen.profiles)
        divided |= found.stranded
        self._watcher = health.HealthWatcher(found.library, unhealthy, rules, self._hear, divided)
        self._watcher.start()
        means = auditor.AuditorDependencies(
            self._settings.audit_action,
            self._grant_manager.observers.reported,
            self._ended,
            limit=self.limits.poll,
            doomed=self.mps.before_kill,
            servers=self.mps.servers,
        )
        made, grant_manager = self._made, self._grant_manager
        self._auditor = auditor.Auditor(
            found.library, made.store, lambda: grant_manager.known, means, lambda: made.devices
        )
        threading.Thread(target=self._auditor.run, name="auditor", daemon=True).start()
        return True

    def _divide(self, found: node_driver.Hardware) -> cdi_edits.MpsFiles | None:
        """Have MPS daemons for the devices to divide, unless containers share them otherwise."""
        there: dict[str, set[quota.Isolation]] = {}
        for grant in self._grant_manager.known.values():
            for share in grant.shares:
                there.setdefault(share.uuid, set()).add(grant.isolation)
        divided = []
        for seen in found.seen:
            uuid = seen.device.uuid
            if seen.mps is not None and quota.Isolation.QUOTA in there.get(uuid, ()):
                log.warning(
                    "MPS does not divide device %s before the containers that have it now are "
                    "gone, and the agent has started again",
                    uuid,
                )
            elif seen.mps is not None:
                divided.append(mps_daemons.MpsDevice(uuid, seen.device.label, seen.mps))
        self._by_mps = frozenset(one.uuid for one in divided)
        driver = mps_daemons.MpsDriver(
            self._settings.driver_root,
            found.library,
            found.driver.release,
            found.driver.environment,
        )
        self.mps.follow(divided, driver)
        facts = {one.uuid: one.facts for one in divided}
        if not facts:
            return None
        return cdi_edits.MpsFiles(self.mps.folder, self.mps.shared_memory, facts)

    @property
    def nvml(self) -> arbiter.Nvml | None:
        """The driver's NVML; None while there is none, or in another pid namespace."""
        with self._lock:
            return self._nvml

    @property
    def backend(self) -> GrantBackend:
        """The files of the grants, and the driver's devices."""
        return self._made

    @property
    def checkpoints(self) -> checkpoint_calls.CheckpointDriver | None:
        """The driver's libraries, for suspensions; None: there is no driver at present."""
        with self._lock:
            return None if self._away else self._checkpoints

    @property
    def for_claims(self) -> ForClaims | None:
        """The devices that ResourceClaims may get; None: no device was seen yet."""
        with self._lock:
            seen, driver = self._seen, self._driver
        if not seen:
            return None
        if self._other_plugin:
            return ForClaims(seen, (), driver)
        open_to_claims = tuple(
            known
            for known in self._grant_manager.devices
            if self._gates.published(known.uuid)
            and known.unhealthy not in (nvml.MIG_MODE, nvml.MIG_DIVIDED)
            and not known.mps
        )
        return ForClaims(seen, open_to_claims, driver)

    @property
    def minors(self) -> dict[str, int]:
        """The minor numbers of the device nodes, by UUID, where known; MIG devices have none."""
        return {
            seen.device.uuid: seen.minor
            for seen in self._seen
            if seen.minor is not None and seen.device.instance is None
        }

    def cordon(self, uuid: str) -> None:
        """Place no new containers on a device."""
        if self._cordons.change(uuid, cordoned=True):
            log.warning("cordoned device %s", uuid)
        self.show()

    def uncordon(self, uuid: str) -> bool:
        """Offer it again; False if the node's annotation still cordons it."""
        if self._cordons.change(uuid, cordoned=False):
            log.warning("uncordoned device %s", uuid)
        self.show()
        return uuid not in self._cordons.uuids

    def follow_cordons(self, uuids: frozenset[str]) -> None:
        """Cordon exactly these devices, by the node's annotation."""
        if self._cordons.follow(uuids):
            log.warning(
                "cordoned by the node's annotation: %s", ", ".join(sorted(uuids)) or "none"
            )
            self.show()

    @property
    def other_plugin(self) -> str:
        """The other device plugin that gives out the same devices; empty: none."""
        return self._other_plugin

    def stand_back(self, other_plugin: str) -> None:
        """Offer no device while *other_plugin*, unless empty, gives out the same ones."""
        self._other_plugin = other_plugin
        self.show()

    def close(self) -> None:
        """End all, and the MPS daemons of devices that no container has."""
        self.stop()
        held = {
            share.uuid for grant in self._grant_manager.known.values() for share in grant.shares
        }
        self.mps.stop(held.__contains__)

    def stop(self) -> None:
        """Stop health checks and audit."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
        if self._auditor is not None:
            self._auditor.stop()

    @property
    def answers(self) -> Mapping[str, health.ProbeResult]:
        """NVML's last answer about each device that responds, by UUID.

        And about the MIG instances of pods, by the target of their shares.
        """
        watcher = self._watcher
        if watcher is None or self._away:
            return {}
        used = {} if self._instances is None else self._instances.used_bytes
        own = {key: health.ProbeResult(used_bytes=size, busy=None) for key, size in used.items()}
        return {**watcher.answers, **own}

    @property
    def findings(self) -> tuple[quota_audit.Violation, ...]:
        """The current findings of the audit."""
        found = self._auditor
        return () if found is None else found.findings

    @property
    def held(self) -> quota_audit.ProcessSnapshot:
        """The memory that processes held at the audit's last poll."""
        found = self._auditor
        return quota_audit.NOTHING if found is None else found.seen

    @property
    def audits(self) -> bool:
        """Whether the audit compares the usage of processes with their grants."""
        found = self._auditor
        return found is not None and found.sees_all

    def _hear(self, news: Mapping[str, str]) -> None:
        for uuid, reason in news.items():
            log.warning("device %s is %s", uuid, f"unhealthy: {reason}" if reason else "healthy")
            for grant in self._grants_on(uuid):
                self._grant_manager.observers.reported(_news(grant, uuid, reason))
        with self._lock:
            left = [new for new in news if self._unhealthy.get(new) in _MODES]
            self.outdated |= any(news[new] != self._unhealthy[new] for new in left)
            # A GPU that is in MIG mode again is not healthy before its profiles were read.
            again = {new for new in left if self._unhealthy[new] == health.MIG_OFF}
            self._unhealthy |= {uuid: news[uuid] for uuid in news if uuid not in again}
            self.outdated |= health.MIG_OFF in news.values()
            # MIG devices were made, or are gone, perhaps together with MIG mode.
            self.outdated |= any(
                reason == nvml.MIG_DIVIDED or (reason == health.GONE and device.is_instance(new))
                for new, reason in news.items()
            )
        self.show()
        if self.outdated:
            self._wake()

    def _hear_mps(self, uuid: str, reason: str, *, is_known: bool) -> None:
        """Show the health of a device that MPS divides; report it unless pods know it."""
        for grant in () if is_known else self._grants_on(uuid):
            self._grant_manager.observers.reported(_news(grant, uuid, reason))
        self.show()

    def _hear_lost(self, uuid: str, text: str) -> None:
        log.warning("device %s: %s", uuid, text)
        for grant in self._grants_on(uuid):
            said = f"device {uuid}, which this pod uses: {text}"
            reason = events.Reason.PROGRAMS_LOST
            self._grant_manager.observers.reported(_event(grant, said, reason))

    def _grants_on(self, uuid: str) -> list[Grant]:
        return [
            grant
            for grant in self._grant_manager.known.values()
            if any(share.uuid == uuid for share in grant.shares)
        ]

    def _see_freed(self) -> None:
        """Show the devices after the occupied MIG placements have changed, or read them again."""
        if self._instances is not None and self._instances.is_outdated:
            self.outdated = True
            self._wake()
        self.show()

    def _trouble(self, uuid: str) -> str:
        if self._away:
            return "the driver is gone"
        return (
            self._unhealthy.get(uuid, "")
            or self.mps.trouble(uuid)
            or device_ids.too_many(
                [seen.device.memory_bytes * self._reservable // 100 for seen in self._seen],
                self._settings.unit,
            )
        )

    def show(self) -> None:
        """Pass the current state of the devices to the grant manager."""
        with self._lock:
            self._grant_manager.see(
                [
                    seen.fact(
                        self._trouble(seen.device.uuid),
                        cordoned=seen.device.uuid in self._cordons.uuids,
                        allocated_by=self._other_plugin or self._gates.elsewhere(seen.device.uuid),
                        taken=()
                        if self._instances is None
                        else self._instances.taken(seen.device.uuid),
                        mps=seen.device.uuid in self._by_mps,
                        reservable=self._reservable,
                    )
                    for seen in self._seen
                ]
            )


def _reservable(settings: AgentSettings, driver: checkpoint_calls.CheckpointDriver) -> int:
    """Return the percent of a device that may be reserved: 100 if *driver* cannot suspend."""
    configured = settings.oversubscription
    if configured is None:
        return 100
    try:
        with checkpoint_calls.Calls(driver) as calls:
            calls.check_offered()
    except errors.PyVgpuError as exc:
        log.warning("--oversubscribe %g has no effect: %s", configured.ratio, exc)
        return 100
    return configured.percent


_MODES = (nvml.MIG_MODE, health.MIG_OFF)  # a device that leaves them must be read again


def _machine() -> Path | None:
    machine = os.environ.get(names.SIMULATED_MACHINE_VARIABLE)
    return None if machine is None else Path(machine)


def _nvml(library: Path) -> arbiter.Nvml:
    return arbiter.Nvml(library, _machine())


def _first_reason(seen: inventory.InventoryDevice, before: Mapping[str, str]) -> str:
    """Return why a device just read from the driver is unhealthy; *before* are older reasons."""
    if seen.device.mig:
        return nvml.MIG_MODE
    reason = before.get(seen.device.uuid, "")
    return "" if reason in _MODES else reason


def _news(grant: Grant, uuid: str, reason: str) -> events.GrantEvent:
    """Return the event that reports a device's health to the pod that uses it."""
    if not reason:
        text = f"device {uuid}, which this pod uses, is healthy again"
        return _event(grant, text, events.Reason.DEVICE_HEALTHY)
    text = (
        f"device {uuid}, which this pod uses, is unhealthy: {reason}. Work on it may fail; a new "
        "pod gets another device"
    )
    return _event(grant, text, events.Reason.DEVICE_UNHEALTHY)


def _event(grant: Grant, text: str, reason: events.Reason) -> events.GrantEvent:
    owner = grant.owner
    uid, namespace, pod = (owner.uid, owner.namespace, owner.pod) if owner else ("", "", "")
    return events.GrantEvent(uid, namespace, pod, text, reason)
