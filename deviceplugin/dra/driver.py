"""Puts the parts of the DRA driver together, and into the agent.

dra           the sockets on which kubelet finds the driver and asks it
slices        keeps the node's ResourceSlice what the devices are
doors         moves devices to another door once they are free
claims        tells on claims what was given, and ends those that nobody will
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin.dra import looking, preparing, publishing, serving, slices, statuses
from pyvgpu.deviceplugin.dra.doors import Door

if TYPE_CHECKING:
    from pyvgpu.deviceplugin import ownnode
    from pyvgpu.deviceplugin.devices import Devices
    from pyvgpu.deviceplugin.dra.moving import Doors
    from pyvgpu.deviceplugin.granting import Granter
    from pyvgpu.deviceplugin.making import Grants
    from pyvgpu.deviceplugin.parts import Parts
    from pyvgpu.deviceplugin.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """Who decides on the node, whatever door something comes through."""

    granter: Granter
    made: Grants
    devices: Devices
    gates: Doors


def add(
    parts: Parts, settings: Settings, own: ownnode.OwnNode | None, node: Node
) -> serving.Sockets | None:
    """Add them where any device is given out for claims; return the sockets.

    UsageError if there is no API server, in which claims stand.
    """
    if own is None:
        if settings.doors.any_dra:
            raise errors.UsageError(
                "--door dra: needs the API server, in which claims stand: run as a pod, or give "
                "--kubeconfig FILE"
            )
        return None
    api, granter, gates = own.api, node.granter, node.gates
    if not settings.doors.any_dra and not gates.any_dra:
        return None
    health = serving.Health(settings.node)
    shown = looking.Looking(settings.specifications, lambda: node.made.driver)
    telling = statuses.Statuses(api, settings.node, granter)
    means = preparing.Means(
        node=settings.node,
        read=lambda path: api.call("GET", path),
        gives=gates.gives,
        admit=shown.admit,
        dismiss=shown.dismiss,
        told=lambda _: telling.look(),
    )
    sockets = serving.Sockets(
        settings.registry, settings.drivers, preparing.Preparer(granter, means), health
    )
    publisher = publishing.Publisher(own, node.devices.slice, lambda: sockets.met)
    sockets.registered = publisher.changed
    before, last = granter.changed, granter.devices

    def changed() -> None:
        nonlocal last
        before()
        telling.look()
        known = granter.devices
        if known is last:
            return  # what was granted is in no slice
        last = known
        health.set({slices.device_name(it.uuid): it.sick for it in known if gates.gives(it.uuid)})
        publisher.changed()
        shown.follow()

    granter.changed = changed

    def held(door: Door) -> set[str] | None:
        if door is Door.PLUGIN:
            return statuses.held_by_counters(granter)
        if not publisher.is_current:
            return None
        return statuses.held_by_claims(api, settings.node, granter)

    parts.add("dra", lambda: sockets.run(parts.wait))
    parts.add("slices", publisher.run, publisher.stop)
    parts.add("watch of slices", publisher.watch.run, publisher.watch.stop)
    parts.add("doors", lambda: gates.run(parts.wait, held, node.devices.show))
    parts.add("claims", telling.run, telling.stop)
    return sockets
