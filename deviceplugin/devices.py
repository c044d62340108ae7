"""What devices the node has, as the granter shall know them.

By the driver, by their health, and by what the node's administrator says of them. When another
driver has come, all of it is looked up anew; health and audit then watch by that one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import arbiter, errors, names, nvml
from pyvgpu.deviceplugin import audit, auditor, events, hardware, health
from pyvgpu.deviceplugin.dra import slices
from pyvgpu.volumes import node, uses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.deviceplugin import granting, inventory
    from pyvgpu.deviceplugin.cordons import Cordons
    from pyvgpu.deviceplugin.dra import moving
    from pyvgpu.deviceplugin.grants import Grant
    from pyvgpu.deviceplugin.making import Grants
    from pyvgpu.deviceplugin.settings import Settings

log = logging.getLogger(__name__)


class Devices:
    """What the node has, as the granter shall know it: by the driver, and by their health."""

    def __init__(
        self,
        settings: Settings,
        granter: granting.Granter,
        made: Grants,
        cordons: Cordons,
        gates: moving.Doors,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._granter = granter
        self._made = made
        self._cordons = cordons
        self._doors = gates
        self._ended = ended  # called for each process that the audit has ended
        self.limits = made.limits(settings, lambda: granter.known)
        self._changing = threading.Lock()
        self._seen: tuple[inventory.Seen, ...] = ()
        self._told = slices.Driver()
        self._nvml: arbiter.Nvml | None = None
        self._sick: dict[str, str] = {}
        self._looked_at: tuple[Path | None, node.State] | None = None  # what is seen comes of it
        self._other_plugin = ""
        self.outdated = False  # a device left MIG mode, so the inventory must be read again
        self.wake: Callable[[], None] = lambda: None  # called when it is outdated
        self._away = False
        self._watcher: health.Watcher | None = None
        self._auditor: auditor.Auditor | None = None

    def look(self, tree: Path | None, now: node.State) -> bool:
        """Take note of the driver as it is *now*; false if it could not be used."""
        if now.driver is not node.Driver.PRESENT or tree is None:
            log.warning("the driver is %s: %s", now.driver, now.reason)
            self._away = True
            self.show()
            return True
        try:
            found = hardware.look(tree, now.release, self._settings)
        except errors.PyVgpuError as exc:
            log.warning("the devices cannot be seen: %s", exc)
            return False
        self.stop()
        with self._changing:
            before = self._sick if (tree, now) == self._looked_at else {}
            self._looked_at, self.outdated = (tree, now), False
            self._seen, self._away = found.seen, False
            self._sick = {it.device.uuid: _first_reason(it, before) for it in found.seen}
            self._told = slices.Driver(now.release, found.cuda_version)
            able = found.limits and self._settings.driver_limits and uses.sees_all()
            hook = self.limits.meet(found.library if able else None)
            self._made.driver = dataclasses.replace(found.driver, hook=hook)
            self._nvml = _nvml(found.library) if uses.sees_all() else None
        self._doors.meet((it.device.uuid for it in found.seen), self._granter.known.values())
        log.info("found driver %s with %d devices", now.release, len(found.seen))
        for uuid, reason in self._sick.items():
            if reason:
                log.warning("device %s is sick: %s", uuid, reason)
        self.show()
        self._granter.recover()
        with contextlib.suppress(errors.PyVgpuError):  # the collector tries again, and complains
            self._made.fill()  # the first who start do not wait for it
        sick, rules = dict(self._sick), self._settings.health
        self._watcher = health.Watcher(found.library, sick, rules, self._hear)
        self._watcher.start()
        means = auditor.Means(
            self._settings.audit_action, self._granter.tell, self._ended, self.limits.look
        )
        self._auditor = self._made.auditor(found.library, lambda: self._granter.known, means)
        threading.Thread(target=self._auditor.run, name="auditor", daemon=True).start()
        return True

    @property
    def nvml(self) -> arbiter.Nvml | None:
        """The driver's NVML; None while there is none, or its pids are not ours."""
        with self._changing:
            return self._nvml

    def slice(self, able: slices.Able) -> list[dict[str, Any]] | None:
        """Return the devices that claims may have, as a ResourceSlice has them; None: not seen."""
        with self._changing:
            seen, told = self._seen, self._told
        if self._other_plugin:
            known = []
        else:
            known = [
                it
                for it in self._granter.devices
                if self._doors.published(it.uuid) and it.sick != nvml.MIG_MODE
            ]
        return slices.devices_of(seen, known, told, able) if seen else None

    @property
    def minors(self) -> dict[str, int]:
        """The minors of the devices' nodes, by UUID, of those that are known."""
        return {it.device.uuid: it.minor for it in self._seen if it.minor is not None}

    def cordon(self, uuid: str) -> None:
        """Let nothing new come onto a device."""
        if self._cordons.change(uuid, cordoned=True):
            log.warning("cordoned device %s", uuid)
        self.show()

    def uncordon(self, uuid: str) -> bool:
        """Let it be given out again; whether it is, for the node's annotation may say no."""
        if self._cordons.change(uuid, cordoned=False):
            log.warning("uncordoned device %s", uuid)
        self.show()
        return uuid not in self._cordons.uuids

    def follow_cordons(self, uuids: frozenset[str]) -> None:
        """Let nothing new come onto these devices, by the node's annotation, and these alone."""
        if self._cordons.follow(uuids):
            log.warning(
                "cordoned by the node's annotation: %s", ", ".join(sorted(uuids)) or "none"
            )
            self.show()

    @property
    def other_plugin(self) -> str:
        """Which other device plugin gives out the same devices; empty: none."""
        return self._other_plugin

    def stand_back(self, other_plugin: str) -> None:
        """Offer no device while another plugin, if this names one, gives out the same ones."""
        self._other_plugin = other_plugin
        self.show()

    def stop(self) -> None:
        """Watch no more."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
        if self._auditor is not None:
            self._auditor.stop()

    @property
    def answers(self) -> Mapping[str, health.Answer]:
        """What NVML said last of each device that answers, by UUID."""
        watcher = self._watcher
        return {} if watcher is None or self._away else watcher.answers

    @property
    def findings(self) -> tuple[audit.Finding, ...]:
        """What the audit finds wrong now."""
        found = self._auditor
        return () if found is None else found.findings

    @property
    def held(self) -> audit.Seen:
        """What processes held of the devices when the audit looked last."""
        found = self._auditor
        return audit.NOTHING if found is None else found.seen

    @property
    def audits(self) -> bool:
        """Whether anybody compares what processes hold with what was granted."""
        found = self._auditor
        return found is not None and found.looks

    def _hear(self, news: Mapping[str, str]) -> None:
        for uuid, reason in news.items():
            log.warning("device %s is %s", uuid, f"sick: {reason}" if reason else "well again")
            for grant in self._granter.known.values():
                if any(share.uuid == uuid for share in grant.shares):
                    self._granter.tell(_news(grant, uuid, reason))
        with self._changing:
            left = [it for it in news if self._sick.get(it) == nvml.MIG_MODE]
            self._sick |= news
            self.outdated |= any(news[it] != nvml.MIG_MODE for it in left)
        self.show()
        if self.outdated:
            self.wake()

    def show(self) -> None:
        """Let the granter know how the devices are now."""
        with self._changing:
            self._granter.see(
                [
                    it.fact(
                        "the driver is away" if self._away else self._sick.get(it.device.uuid, ""),
                        cordoned=it.device.uuid in self._cordons.uuids,
                        door=self._other_plugin or self._doors.elsewhere(it.device.uuid),
                    )
                    for it in self._seen
                ]
            )


def _nvml(library: Path) -> arbiter.Nvml:
    machine = os.environ.get(names.SIMULATED_MACHINE_VARIABLE)
    return arbiter.Nvml(library, None if machine is None else Path(machine))


def _first_reason(seen: inventory.Seen, before: Mapping[str, str]) -> str:
    """Return why a device is sick that the driver has just described; *before*: as it was."""
    if seen.device.mig:
        return nvml.MIG_MODE
    reason = before.get(seen.device.uuid, "")
    return "" if reason == nvml.MIG_MODE else reason


def _news(grant: Grant, uuid: str, reason: str) -> events.Event:
    """Return what the user of a device should know of its health."""
    who = grant.owner
    uid, namespace, pod = (who.uid, who.namespace, who.pod) if who else ("", "", "")
    if not reason:
        text = f"device {uuid}, which this pod uses, is well again"
        return events.Event(uid, namespace, pod, text, events.Reason.DEVICE_WELL)
    text = (
        f"device {uuid}, which this pod uses, is sick: {reason}. What runs on it may fail; a new "
        "pod gets another device"
    )
    return events.Event(uid, namespace, pod, text, events.Reason.DEVICE_SICK)
