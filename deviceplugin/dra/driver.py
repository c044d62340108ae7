"""Assemble the DRA driver from its components, and add them to the agent.

dra           the sockets through which kubelet discovers and calls the driver
slices        keeps the node's ResourceSlices up to date with the devices
claims        writes the status of claims, and ends the grants of deleted ones
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin.dra import (
    admin_access,
    claim_status,
    dra_server,
    mig_partitions,
    prepare,
    resource_slices,
    slice_publisher,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.agent_settings import AgentSettings
    from pyvgpu.deviceplugin.cluster import own_node
    from pyvgpu.deviceplugin.components import Components
    from pyvgpu.deviceplugin.containers.backend import GrantBackend
    from pyvgpu.deviceplugin.devices.allocation_moves import DeviceApis
    from pyvgpu.deviceplugin.devices.node_devices import Devices
    from pyvgpu.deviceplugin.grants.manager import GrantManager
    from pyvgpu.deviceplugin.kubelet import call_timing


@dataclasses.dataclass(frozen=True, slots=True)
class NodeServices:
    """The objects that device plugin and DRA driver share."""

    grant_manager: GrantManager
    made: GrantBackend
    devices: Devices
    gates: DeviceApis


@dataclasses.dataclass(frozen=True, slots=True)
class DraDriver:
    """The running DRA driver, as the rest of the agent uses it."""

    sockets: dra_server.Sockets
    held: Callable[[], set[str] | None]  # UUIDs of the devices that claims hold; None if unknown


def add(
    components: Components,
    settings: AgentSettings,
    own: own_node.OwnNode | None,
    node: NodeServices,
    count: call_timing.Count,
) -> DraDriver | None:
    """Add the components if DRA allocates any device; None if it allocates none.

    UsageError without an API server, from which claims are read.
    """
    if own is None:
        if settings.apis.any_dra:
            raise errors.UsageError(
                "--allocation-api dra: needs the API server, which stores the claims: run as a "
                "pod, or give --kubeconfig FILE"
            )
        return None
    api, grant_manager, gates = own.api, node.grant_manager, node.gates
    if not settings.apis.any_dra and not gates.any_dra:
        return None
    health = dra_server.Health()
    shown = admin_access.AdminDevices(settings.specifications, lambda: node.made.driver)
    statuses = claim_status.Statuses(api, settings.node, grant_manager)
    means = prepare.PreparerDependencies(
        node=settings.node,
        read=lambda path: api.call("GET", path),
        gives=gates.gives,
        admit=shown.admit,
        dismiss=shown.dismiss,
        prepared=lambda _: statuses.poll(),
    )
    sockets = dra_server.Sockets(
        settings.registry, settings.drivers, prepare.Preparer(grant_manager, means), health, count
    )

    def contents(support: resource_slices.ServerSupport) -> slice_publisher.Contents | None:
        shown = node.devices.for_claims
        if shown is None:
            return None
        facts = shown.seen, shown.devices, shown.driver, support
        return slice_publisher.Contents(
            resource_slices.devices_of(*facts), mig_partitions.of_devices(*facts)
        )

    publisher = slice_publisher.SlicePublisher(
        own,
        contents,
        lambda: sockets.is_registered,
        lambda: claim_status.names_in_use(api, settings.node, grant_manager),
    )
    sockets.registered.add(publisher.changed)
    last = grant_manager.devices

    def changed() -> None:
        nonlocal last
        statuses.poll()
        known = grant_manager.devices
        if known is last:
            return  # grants do not change the slice
        last = known
        health.set(
            {
                named: device.unhealthy
                for device in known
                if gates.gives(device.uuid)
                for named in mig_partitions.names_of(device, settings.node)
            }
        )
        publisher.changed()
        shown.follow()

    grant_manager.observers.changed.add(changed)

    def held() -> set[str] | None:
        if not publisher.is_current:
            return None
        return claim_status.held_by_claims(api, settings.node, grant_manager)

    components.add("dra", lambda: sockets.run(components.wait))
    components.add("slices", publisher.run, publisher.stop)
    components.add("watch of slices", publisher.watch.run, publisher.watch.stop)
    components.add("claims", statuses.run, statuses.stop)
    return DraDriver(sockets, held)
