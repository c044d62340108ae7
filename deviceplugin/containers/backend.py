"""Grant backend for the node's current driver: Allocate's answers, and the folders of grants."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.containers import cdi_edits, driver_limits, usage_file_guard
from pyvgpu.deviceplugin.kubelet import plugin_messages
from pyvgpu.deviceplugin.subscribers import Subscribers
from pyvgpu.volumes import cdi

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu import device
    from pyvgpu.deviceplugin.agent_settings import AgentSettings
    from pyvgpu.deviceplugin.containers import mig_instances
    from pyvgpu.deviceplugin.containers.store import GrantStore
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

_NO_OTHERS = dict([cdi.NO_DEVICES])  # from NVIDIA's runtime


class GrantBackend:
    """The folders of grants, written for the node's current driver."""

    def __init__(
        self,
        made: GrantStore,
        instances: mig_instances.MigInstances | None = None,
        *,
        cdi: bool = True,
    ) -> None:
        self.store = made
        self._instances = instances  # of MIG, for containers that request their own
        self._cdi = cdi
        self.guard = usage_file_guard.UsageFileGuard(made)
        self.driver: cdi_edits.NodeDriver | None = None
        self.freed: Subscribers[[]] = Subscribers()  # the occupied MIG placements have changed

    def answer(self, grant_id: str, vcore: int) -> plugin_messages.AllocateResponse:
        """Return Allocate's answer: a CDI device that has no specification yet.

        Without CDI the answer is all that a container ever gets: the grant's own folder, without a
        quota until it is bound, and the nodes of all devices. Either way NVIDIA's own runtime
        adds no device, even if it is the default and the image names devices.
        """
        annotations = {names.GRANT_KIND: grant_id}
        if self._cdi:
            return plugin_messages.AllocateResponse(
                annotations, (f"{names.GRANT_KIND}={grant_id}",), _NO_OTHERS
            )
        if vcore >= quantity.WHOLE_DEVICE:
            raise errors.UsageError(
                f"vcore {vcore}: whole devices need CDI, which this node does not use; valid "
                f"would be 1 to {quantity.WHOLE_DEVICE - 1}"
            )
        driver = self._driver()
        mounts, nodes = cdi_edits.unbound(self.store.prepare(grant_id), driver)
        return plugin_messages.AllocateResponse(
            annotations,
            variables={**driver.environment, **_NO_OTHERS},
            mounts=tuple(
                plugin_messages.Mount(
                    mount["containerPath"], mount["hostPath"], "ro" in mount["options"]
                )
                for mount in mounts
            ),
            nodes=tuple((f"/dev/{node.name}", str(driver.dev / node.name)) for node in nodes),
        )

    def make(self, grant: Grant) -> None:
        """Write the files of a bound grant, or the missing ones."""
        self.store.make(*self._backed(grant))

    def repair(self, grant: Grant) -> None:
        """Write missing files of a grant whose container may run; its driver stays the same."""
        self.store.repair(*self._backed(grant))

    def _backed(self, grant: Grant) -> tuple[Grant, cdi_edits.NodeDriver]:
        """Return a grant with the driver of its files; one with a MIG instance has all of that.

        The instance is created if it does not exist.
        """
        driver = self._driver()
        if not grant.mig:
            return grant, driver
        if self._instances is None or not self._cdi:
            raise errors.UnavailableError("this node creates no MIG instances, or has no CDI")
        (share,) = grant.shares
        if share.uuid not in driver.devices:
            raise errors.DataError(f"grant {grant.id}: no device {share.uuid}")
        record = self._instances.ensure(grant.id, share)
        made = driver.with_instance(
            share.uuid, record.uuid, record.gpu_instance, record.compute_instance
        )
        own = datatypes.NodeShare(record.uuid, quantity.WHOLE_DEVICE, share.vmemory)
        return dataclasses.replace(grant, shares=(own,)), made

    def _driver(self) -> cdi_edits.NodeDriver:
        if self.driver is None:
            raise errors.UnavailableError("the node has no driver at present")
        return self.driver

    def recall(self, grant_id: str) -> tuple[datatypes.NodeShare, ...]:
        """Return the shares in the files of a grant that is not in the checkpoint."""
        record = self._instances and self._instances.records.get(grant_id)
        if record:
            return (record.share,)
        limits = self.store.limits(grant_id)
        if limits:
            return tuple(
                datatypes.NodeShare(limit.uuid, limit.vcore, limit.vmemory) for limit in limits
            )
        if self.driver is None:
            return ()
        given = set(self.store.whole_nodes(grant_id))
        # MIG devices of one GPU differ by their capability nodes only.
        found = [
            uuid
            for uuid, node in self.driver.nodes.items()
            if {node.name, *(cap.name for cap in self.driver.capabilities.get(uuid, ()))} <= given
        ]
        return tuple(
            datatypes.NodeShare(
                uuid, quantity.WHOLE_DEVICE, self.driver.devices[uuid].memory_bytes
            )
            for uuid in found
        )

    def revoke(self, grant_id: str) -> None:
        """Start no container on it again, and let its processes allocate no more."""
        self.store.revoke(grant_id)

    def remove(self, grant_id: str) -> None:
        """Remove all its files, and its MIG instance."""
        self.store.remove(grant_id)
        if self._instances is not None:
            self._instances.release(grant_id)

    def is_used(self, grant_id: str) -> bool:
        """Return whether a process of it is running."""
        return self.store.is_used(grant_id)

    @property
    def devices(self) -> Mapping[str, device.Device]:
        """The devices of the node's current driver."""
        return {} if self.driver is None else self.driver.devices

    def limits(
        self, settings: AgentSettings, granted: Callable[[], Mapping[str, Grant]]
    ) -> driver_limits.DriverLimits:
        """Return the memory limits that the driver itself enforces on these grants."""
        return driver_limits.DriverLimits(self.store, settings.state, settings.run, granted)

    def fill(self) -> None:
        """Prepare folders and templates for future grants."""
        if self.driver is not None:
            self.store.fill(self.driver)

    def close(self) -> None:
        """Release all resources."""
        self.store.close()

    def collect(self, wanted: Callable[[], set[str]]) -> None:
        """Remove the files of grants that are not *wanted*."""
        for grant_id in self.store.collect(wanted):
            log.info("removed the remaining files of %s", grant_id)
        if self._instances is not None and self._instances.collect(wanted):
            self.freed()
