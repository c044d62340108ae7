"""The node agent: puts its parts together and keeps them going.

    mirror      follows the driver of the node; another one is another Driver for new containers
    health      watches the devices, by NVML; a sick one takes its ids out of order
    auditor     compares what processes hold of them with what was granted
    orders      carries out what the node's administrator tells it
    plugins     speak with kubelet, by threads of gRPC; the granter decides for them
    registrar   makes them known to each kubelet that comes
    collector   ends the grants of pods that are over
    clocks      keeps the arbiter going, and the clocks of grants linked
    guard       cuts the files that containers write to their length
    events      tells the users of pods what they should know
    node, pods  watch the node and its pods at the API server
    wishes      follows the annotations of pods that run
    cordons     follows the annotation of the node
    others      follows its capacity: whether another device plugin gives out its GPUs
    publisher   tells the cluster what the node has
    predicates  note on pods what they got, as gpu-manager does
    usage       looks what containers use, for the figures that are shown

The state is the checkpoint, the grants' folders and kubelet's own word: whoever is killed finds
all of it again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from pyvgpu import shim
from pyvgpu.deviceplugin import (
    checkpoint,
    clocks,
    collector,
    control,
    cordons,
    devices,
    display,
    events,
    folders,
    gaia,
    granting,
    ids,
    making,
    metrics,
    orders,
    otherplugin,
    outside,
    ownnode,
    parts,
    podresources,
    pods,
    recent,
    registration,
    resize,
    scheduling,
    service,
    state,
    surroundings,
    wishes,
)
from pyvgpu.deviceplugin.dra import driver, moving
from pyvgpu.deviceplugin.settings import Profile
from pyvgpu.kube import apiserver
from pyvgpu.volumes import follow, node, survey, watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyvgpu import quota
    from pyvgpu.deviceplugin.grants import Grant
    from pyvgpu.deviceplugin.settings import Settings

log = logging.getLogger(__name__)

_DRIVER = "driver"  # in the state folder
_FIRST_LOOK_SECONDS = 10.0


class Agent:
    """One agent, which :meth:`run` runs until :meth:`stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._parts = parts.Parts()
        self._meter = metrics.AgentMeter(require_cdi=settings.require_cdi)
        self._recent = recent.Recent()
        self._looked = threading.Event()  # after the driver, for the first time

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._parts.stop()

    def run(self) -> None:
        """Serve kubelet."""
        settings = self._settings
        api = _connect(settings.kubeconfig, self._meter.asked)
        with contextlib.ExitStack() as stack:
            kept = stack.enter_context(checkpoint.Checkpoint(settings.state, settings.node))
            if kept.trouble:
                log.warning("rebuilding from what kubelet knows: %s", kept.trouble)
            stack.enter_context(folders.alone(settings.run))
            places = folders.Folders(settings.run / folders.GRANTS, settings.specifications)
            if kept.trouble:
                kept.put(*places.claimed())
            made = making.Grants(places, cdi=settings.require_cdi)
            stack.callback(made.close)
            resources = ids.GAIA if settings.profile is Profile.GAIA else ids.OURS
            listing = podresources.PodResources(settings.pod_resources)
            offers = {it.kind: service.Offer(it) for it in resources}
            granter = granting.Granter(
                kept,
                made,
                surroundings.Sources(state.State(settings.plugins), listing),
                surroundings.Sizes(
                    settings.unit, settings.packing, settings.bind_seconds, settings.shares
                ),
                offers,
            )
            kept_out = cordons.Cordons(settings.state)
            gates = moving.Doors(settings.state, settings.doors, settings.door_seconds)
            found = devices.Devices(settings, granter, made, kept_out, gates, self._meter.ended)
            stack.callback(found.stop)
            stack.callback(found.limits.stop)
            granter.grow = found.limits.grow
            own, known = None, None
            marks: Callable[[str], display.Marks] = display.no_marks
            if api:
                stack.callback(api.close)
                own, known = ownnode.OwnNode(api, settings.node), pods.Pods(api, settings.node)
                marks = self._add_cluster(own, known, granter, found)
            if own is None and not settings.beside_nvidia and not settings.simulate:
                log.warning(
                    "cannot see whether another device plugin, such as NVIDIA's, gives out this "
                    "node's GPUs: that takes the API server (run as a pod, or give --kubeconfig)"
                )
            unplaced = scheduling.add(
                self._parts, settings, own, known, granter, lambda: found.minors
            )
            node_of = driver.Node(granter, made, found, gates)
            sockets = driver.add(self._parts, settings, own, node_of)
            if sockets:
                sockets.count = self._meter.called
            told = orders.Orders(settings.state, self._hands(granter, made, found))
            stack.callback(told.stop)
            told.start()
            watched = stack.enter_context(watch.Watch())
            collecting = self._add_inside(granter, made, found, self._follower(found, watched))
            registrar = self._add_plugins(granter, offers)
            inside = outside.Inside(
                *(granter, found, places, collecting, registrar, marks, self._recent, unplaced),
                sockets,
            )
            stack.enter_context(outside.showing(settings, self._parts, self._meter, inside))
            self._parts.run()

    def _add_cluster(
        self,
        own: ownnode.OwnNode,
        known: pods.Pods,
        granter: granting.Granter,
        found: devices.Devices,
    ) -> Callable[[str], display.Marks]:
        """Add what speaks with the API server; return what it says of a pod, by the uid."""
        for seen in (own, known):
            try:
                seen.sync()
            except apiserver.ServerError as exc:
                log.warning("the API server cannot be asked yet: %s", exc)
        self._parts.add("node", own.run, own.stop)
        self._parts.add("pods", known.run, known.stop)
        teller = events.Teller(known, own.name, self._written)
        granter.tell, granter.withdraw = teller.tell, teller.withdraw
        granter.starts.find_name = known.name_of
        granter.endings.ask = known.is_over
        self._parts.add("events", teller.run, teller.stop)
        following = wishes.Wishes(known, granter, teller.tell)
        known.changed = following.changed
        self._parts.add("wishes", following.run, following.stop)
        noted = cordons.Follower(
            own, lambda: {it.uuid for it in granter.devices}, found.follow_cordons
        )
        self._parts.add("cordons", lambda: noted.run(self._parts.wait))
        if not self._settings.beside_nvidia and not self._settings.simulate:
            state_folder = self._settings.state
            others = otherplugin.Follower(own, state_folder, found.stand_back, teller.tell)
            others.look()  # before any device is offered
            self._parts.add("others", lambda: others.run(self._parts.wait))
        return following.marks

    def _written(self, what: str, event: events.Event) -> None:
        self._meter.told(what, event)
        if what == "event":
            self._recent.tell(event)

    def _add_inside(
        self,
        granter: granting.Granter,
        made: making.Grants,
        found: devices.Devices,
        follower: follow.Follower,
    ) -> collector.Collector:
        """Add what looks after the node."""
        add, wait = self._parts.add, self._parts.wait
        add("mirror", follower.run, follower.stop)
        collecting = collector.Collector(granter, made)
        add("collector", lambda: collecting.run(wait))
        kept = clocks.Clocks(self._settings.run / folders.GRANTS, nvml=lambda: found.nvml)
        add("clocks", lambda: kept.run(lambda: granter.shared, wait))
        add("guard", made.guard.run, made.guard.stop)
        add("control", lambda: control.stay(self._settings.driver_root, wait))
        return collecting

    def _add_plugins(
        self, granter: granting.Granter, offers: dict[ids.Kind, service.Offer]
    ) -> registration.Registrar:
        """Add what speaks with kubelet."""
        folder, unit = self._settings.plugins, self._settings.unit
        gaias = self._settings.profile is Profile.GAIA
        decider = gaia.Dressed(granter, unit) if gaias else granter
        plugins = [service.Plugin(folder, it, decider) for it in offers.values()]
        for plugin in plugins:
            plugin.count = self._meter.called
        registrar = registration.Registrar(self._settings.plugins, plugins)

        def register() -> None:
            self._looked.wait(_FIRST_LOOK_SECONDS)  # else kubelet would hear of nothing first
            registrar.run()

        self._parts.add("registrar", register, registrar.stop)
        return registrar

    def _hands(
        self, granter: granting.Granter, made: making.Grants, found: devices.Devices
    ) -> orders.Hands:
        """Return who carries out what the node's administrator orders."""

        def change(grant: Grant, wanted: quota.Change) -> Grant:
            return granter.change(
                grant.id,
                lambda it: resize.changed(it, wanted, made.devices, self._settings.unit),
            )

        return orders.Hands(
            grants=lambda: granter.known.values(),
            change=change,
            devices=lambda: [it.uuid for it in granter.devices],
            cordon=found.cordon,
            uncordon=found.uncordon,
        )

    def _follower(self, found: devices.Devices, watched: watch.Watch) -> follow.Follower:
        settings = self._settings
        mirror = node.Node(settings.state / _DRIVER, shim.shim_library())
        files = survey.Finder(settings.driver_root, settings.volumes)
        finder = files if settings.volumes is None else gaia.Volumes(files)
        known: list[node.State] = []
        found.wake = watched.wake

        def tell(news: follow.News) -> None:
            if [news.state] != known or found.outdated:
                known[:] = [news.state] if found.look(mirror.current(), news.state) else []
            self._looked.set()

        return follow.Follower(finder, mirror, watched, tell)


def _connect(
    kubeconfig: Path | None, asked: Callable[[str, int, float], None]
) -> apiserver.ApiServer | None:
    """Connect as a pod does, or as *kubeconfig* says; None where there is neither."""
    if kubeconfig is None and not apiserver.is_pod():
        return None
    return apiserver.connect(None if kubeconfig is None else str(kubeconfig), asked)
