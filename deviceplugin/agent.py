"""The node agent: assembles its components and runs them.

    mirror      follows the node's driver; a replaced one is a new Driver for new containers
    health      watches the devices through NVML; ids of an unhealthy one become unhealthy
    auditor     compares the usage of processes with their grants
    orders      executes the commands of the node's administrator
    plugins     serve kubelet's calls on gRPC threads; the grant manager decides
    registrar   registers them with kubelet, and again after each restart of kubelet
    collector   ends the grants of pods that are over
    clocks      keeps the arbiter running, and the clocks of grants linked
    guard       truncates the files that containers write to their length
    events      writes events for pods
    node, pods  watch the node and its pods at the API server
    annotations applies the annotations of running pods
    suspender   suspends pods and resumes them, as their annotations request
    oversubscriber  suspends idle pods to make room for others, and resumes them
    cordons     follows the node's cordon annotation
    time slices offer whole devices without limits, each for several containers
    moves       moves devices from one allocation API to another once they are free
    others      follows its capacity: whether another device plugin gives out its GPUs
    taint       removes the node's startup taint
    config      ends the agent once the node's label selects other options
    publisher   publishes the node's devices to the cluster
    predicates  annotate pods with their devices, as gpu-manager does
    usage       samples the usage of containers for the metrics

The state is in the checkpoint, the grants' folders and kubelet's own checkpoint: a restarted agent
recovers all of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors, shim
from pyvgpu.deviceplugin import (
    admin_socket,
    agent_http,
    agent_settings,
    components,
    scheduler_link,
)
from pyvgpu.deviceplugin.agent_settings import Profile
from pyvgpu.deviceplugin.allocation_api import Api
from pyvgpu.deviceplugin.cluster import (
    node_config,
    node_pods,
    other_plugin,
    own_node,
    pod_annotations,
    pod_events,
    startup_taint,
)
from pyvgpu.deviceplugin.containers import arbiter_clocks, backend, collector, mig_instances, store
from pyvgpu.deviceplugin.devices import (
    allocation_moves,
    cordoned_devices,
    mps_clients,
    node_devices,
)
from pyvgpu.deviceplugin.dra import claim_status, driver
from pyvgpu.deviceplugin.gpu_manager import display, profile
from pyvgpu.deviceplugin.grants import events, grant_log, interfaces, manager, resize
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids, pod_resources
from pyvgpu.deviceplugin.kubelet.offers import Offer
from pyvgpu.deviceplugin.plugin import (
    device_nodes,
    plugin_server,
    registration,
    time_slice_service,
    time_slices,
)
from pyvgpu.deviceplugin.suspension import pod_oversubscriber, pod_suspender
from pyvgpu.deviceplugin.telemetry import metric_families, status_history
from pyvgpu.kube import apiserver
from pyvgpu.machine import host_memory
from pyvgpu.volumes import driver_follower, folder_watch, node_mirror, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyvgpu import quota
    from pyvgpu.deviceplugin.agent_settings import AgentSettings
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

_DRIVER = "driver"  # in the state folder
_FIRST_SEARCH_SECONDS = 10.0


class Agent:
    """One agent, which :meth:`run` runs until :meth:`stop`."""

    def __init__(
        self,
        settings: AgentSettings,
        is_current: Callable[[Mapping[str, object]], bool] | None = None,
    ) -> None:
        """*is_current* is that of :class:`node_config.ConfigWatch`; None: no options by node."""
        self._settings = settings
        self._is_current = is_current
        self._config: node_config.ConfigWatch | None = None
        self._components = components.Components()
        self._meter = metric_families.AgentMeter(require_cdi=settings.require_cdi)
        self._recent = status_history.Recent()
        self._searched = threading.Event()  # the driver was looked for once

    @property
    def outdated(self) -> bool:
        """Whether :meth:`run` ended because the node has other settings now."""
        return self._config is not None and self._config.outdated

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._components.stop()

    def run(self) -> None:
        """Serve kubelet."""
        settings = self._settings
        api = _connect(settings.kubeconfig, self._meter.asked)
        with contextlib.ExitStack() as stack:
            kept = stack.enter_context(grant_log.Checkpoint(settings.state, settings.node))
            if kept.trouble:
                log.warning("rebuilding the grants from kubelet's state: %s", kept.trouble)
            stack.enter_context(store.alone(settings.run))
            self._recent.restore(settings.state)
            stack.callback(self._recent.save)
            places = store.GrantStore(settings.run / store.GRANTS, settings.specifications)
            if kept.trouble:
                kept.put(*places.claimed())
            own, known = None, None
            other_manager: Callable[[], str] = str
            if api:
                stack.callback(api.close)
                own, known = (
                    own_node.OwnNode(api, settings.node),
                    node_pods.Pods(api, settings.node),
                )
                self._add_watches(own, known)
                other_manager = functools.partial(
                    other_plugin.mig_manager_of, own, settings.registry
                )
            instances = mig_instances.MigInstances(
                settings.state, settings.dynamic_mig, other_manager=other_manager
            )
            made = backend.GrantBackend(places, instances, cdi=settings.require_cdi)
            stack.callback(made.close)
            resources = device_ids.GAIA if settings.profile is Profile.GAIA else device_ids.OURS
            listing = pod_resources.PodResources(settings.pod_resources)
            offers = {resource.kind: Offer(resource) for resource in resources}
            observers = interfaces.Observers()
            grant_manager: manager.GrantManager
            found: node_devices.Devices
            scheduled = scheduler_link.add(
                self._components,
                settings,
                own,
                known,
                observers,
                lambda: grant_manager,
                lambda: found.minors,
            )
            policy = self._oversubscriber(known, places, lambda: grant_manager)
            grant_manager = manager.GrantManager(
                kept,
                made,
                interfaces.KubeletSources(
                    checkpoint_file.CheckpointFile(settings.plugins), listing
                ),
                interfaces.Sizes(
                    settings.unit, settings.packing, settings.bind_seconds, settings.shares
                ),
                offers,
                dataclasses.replace(scheduled.policy, admit=policy.admit if policy else None),
                observers,
            )
            served = time_slices.ServedResources(settings.state)
            kept_out = cordoned_devices.Cordons(settings.state)
            gates = allocation_moves.DeviceApis(
                settings.state, settings.apis, settings.switch_seconds
            )
            watched = stack.enter_context(folder_watch.FolderWatch())
            found = node_devices.Devices(
                settings,
                grant_manager,
                made,
                kept_out,
                gates,
                self._meter.ended,
                watched.wake,
                instances,
            )
            stack.callback(found.close)
            stack.callback(found.limits.stop)
            observers.growing.add(found.limits.grow)
            marks: Callable[[str], display.PodOwner] = display.no_marks
            if own and known:
                marks = self._add_cluster(own, known, grant_manager, found, served, policy)
            if own is None and not settings.beside_nvidia and not settings.simulate:
                log.warning(
                    "cannot detect another device plugin, such as NVIDIA's, that offers this "
                    "node's GPUs: this needs the API server (run as a pod, or give --kubeconfig)"
                )
            node_of = driver.NodeServices(grant_manager, made, found, gates)
            claims = driver.add(self._components, settings, own, node_of, self._meter.called)
            sliced = self._add_time_slices(node_of, known, served)
            holders: dict[Api, Callable[[], set[str] | None]] = {
                Api.PLUGIN: lambda: claim_status.held_by_counters(grant_manager)
            }
            if claims:
                holders[Api.DRA] = claims.held
            if sliced:
                holders[Api.TIME_SLICES] = sliced.held
            self._components.add("moves", lambda: self._move(node_of, holders))
            ordering = admin_socket.Orders(settings.state, self._hands(grant_manager, made, found))
            stack.callback(ordering.stop)
            ordering.start()
            collecting = self._add_inside(
                grant_manager, made, found, self._follower(found, watched)
            )
            registrar = self._add_plugins(grant_manager, offers)
            trouble = scheduled.trouble
            inside = agent_http.Inside(
                *(
                    grant_manager,
                    found,
                    places,
                    collecting,
                    registrar,
                    marks,
                    self._recent,
                    trouble,
                ),
                claims.sockets if claims else None,
                policy.waiting if policy else dict,
            )
            if settings.startup_taint:
                self._add_taint(own, settings.startup_taint, inside)
            stack.enter_context(
                agent_http.showing(settings, self._components, self._meter, inside)
            )
            self._components.run()

    def _add_taint(
        self, own: own_node.OwnNode | None, key: str, inside: agent_http.Inside
    ) -> None:
        if own is None:
            raise errors.UsageError(
                f"--startup-taint {key}: needs the API server: run as a pod, or give --kubeconfig"
            )
        removing = startup_taint.StartupTaint(own, key, inside.ready)
        self._components.add("taint", lambda: removing.run(self._components.wait))

    def _add_watches(self, own: own_node.OwnNode, known: node_pods.Pods) -> None:
        for seen in (own, known):
            try:
                seen.sync()
            except apiserver.ServerError as exc:
                log.warning("the API server is not available yet: %s", exc)
        self._components.add("node", own.run, own.stop)
        self._components.add("pods", known.run, known.stop)

    def _add_leaving(
        self,
        known: node_pods.Pods,
        grant_manager: manager.GrantManager,
        found: node_devices.Devices,
    ) -> None:
        leaving = mps_clients.LeavingClients(
            found.mps,
            lambda: grant_manager.known.values(),
            known.seen,
            functools.partial(mps_clients.grant_of, found.backend.store.folder),
        )
        self._components.add("leaving", leaving.run, leaving.stop)

    def _add_cluster(
        self,
        own: own_node.OwnNode,
        known: node_pods.Pods,
        grant_manager: manager.GrantManager,
        found: node_devices.Devices,
        served: time_slices.ServedResources,
        policy: pod_oversubscriber.PodOversubscriber | None,
    ) -> Callable[[str], display.PodOwner]:
        """Add the components that use the API server; return a lookup of a pod's marks by uid."""
        reports = pod_events.PodEvents(known, own.name, self._written)
        grant_manager.observers.reported.add(reports.record)
        grant_manager.observers.withdrawn.add(reports.withdraw)
        for name, run in reports.runs.items():
            self._components.add(name, run, reports.stop)
        if self._is_current:
            config = self._config = node_config.ConfigWatch(own, self._is_current, reports.record)
            self._components.add("config", lambda: config.run(self._components.wait))
        following = pod_annotations.PodAnnotations(known, grant_manager, reports.record)
        known.changed.add(following.changed)
        self._components.add("annotations", following.run, following.stop)
        if self._settings.mps:
            self._add_leaving(known, grant_manager, found)
        if self._settings.suspend:
            self._add_suspender(known, grant_manager, found, reports, policy)
        noted = cordoned_devices.CordonWatch(
            own, lambda: {device.uuid for device in grant_manager.devices}, found.follow_cordons
        )
        self._components.add("cordons", lambda: noted.run(self._components.wait))
        if not self._settings.beside_nvidia and not self._settings.simulate:
            state_folder = self._settings.state
            others = other_plugin.OtherPluginWatch(
                own, state_folder, found.stand_back, reports.record, lambda: served.replicas
            )
            others.poll()  # before any device is offered
            self._components.add("others", lambda: others.run(self._components.wait))
        return display.marks_by(known.seen)

    def _add_suspender(
        self,
        known: node_pods.Pods,
        grant_manager: manager.GrantManager,
        found: node_devices.Devices,
        reports: pod_events.PodEvents,
        policy: pod_oversubscriber.PodOversubscriber | None,
    ) -> None:
        limit = self._settings.suspend_host_memory.limit(host_memory.total())
        self._meter.host_memory_limit = limit
        node = pod_suspender.SuspenderNode(
            found.backend.store,
            lambda: grant_manager.known,
            lambda: found.backend.devices,
            lambda: found.checkpoints,
            limit,
        )
        suspending = pod_suspender.PodSuspender(
            known,
            node,
            pod_suspender.Reports(reports.record, self._meter.suspended, self._meter.moved),
            policy,
        )
        known.changed.add(suspending.changed)
        self._components.add("suspender", suspending.run, suspending.stop)
        if policy is not None:
            policy.changed.add(suspending.changed)
            self._components.add("oversubscriber", policy.run, policy.stop)

    def _oversubscriber(
        self,
        known: node_pods.Pods | None,
        places: store.GrantStore,
        grant_manager: Callable[[], manager.GrantManager],
    ) -> pod_oversubscriber.PodOversubscriber | None:
        """Return the policy of oversubscription; None if no pod is ever suspended.

        Without a ratio it only leads pods of an earlier ratio back to the devices.
        """
        configured = self._settings.oversubscription
        if known is None:
            if configured is None:
                return None
            raise errors.UsageError(
                f"--oversubscribe {configured.ratio:g}: needs the API server: run as a pod, or "
                "give --kubeconfig"
            )
        if configured is None:
            if not self._settings.suspend:
                return None
            configured = agent_settings.Oversubscription(1.0)

        def metadata(uid: str) -> Mapping[str, object] | None:
            pod = known.seen(uid)
            return None if pod is None else pod["metadata"]

        node = pod_oversubscriber.Node(
            places,
            lambda: grant_manager().known,
            lambda: grant_manager().devices,
            metadata,
            self._settings.run / pod_oversubscriber.TENANTS,
            self._settings.unit,
        )
        return pod_oversubscriber.PodOversubscriber(node, configured, self._meter.oversubscribed)

    def _written(self, what: str, event: events.GrantEvent) -> None:
        self._meter.reported(what, event)
        if what == "event":
            self._recent.add_event(event)

    def _add_inside(
        self,
        grant_manager: manager.GrantManager,
        made: backend.GrantBackend,
        found: node_devices.Devices,
        follower: driver_follower.DriverFollower,
    ) -> collector.Collector:
        """Add the components that work on the node itself."""
        add, wait = self._components.add, self._components.wait
        add("mirror", follower.run, follower.stop)
        collecting = collector.Collector(grant_manager, made)
        add("collector", lambda: collecting.run(wait))
        kept = arbiter_clocks.Clocks(self._settings.run / store.GRANTS, nvml=lambda: found.nvml)
        add("clocks", lambda: kept.run(lambda: grant_manager.shared, wait))
        add("guard", made.guard.run, made.guard.stop)
        add("control", lambda: device_nodes.stay(self._settings.driver_root, wait))
        return collecting

    def _add_time_slices(
        self,
        node: driver.NodeServices,
        known: node_pods.Pods | None,
        served: time_slices.ServedResources,
    ) -> time_slices.TimeSlices | None:
        """Add the plugin of time slices, if any device is allocated by them; None if none is."""
        settings, grant_manager = self._settings, node.grant_manager
        serve = time_slice_service.wanted(
            settings.time_slicing, served, in_use=node.gates.any_of(Api.TIME_SLICES)
        )
        if serve is None:
            return None

        def claims_of(uid: str) -> bool:
            claimed = (grant.owner for grant in grant_manager.known.values() if grant.claim)
            return any(owner is not None and owner.uid == uid for owner in claimed)

        view = time_slices.TimeSliceNode(
            devices=lambda: grant_manager.devices,
            state_of=node.gates.state,
            other_plugin=lambda: node.devices.other_plugin,
            driver=lambda: node.made.driver,
            specifications=settings.specifications,
            claims_of=claims_of,
            ready=lambda: self._searched.wait(_FIRST_SEARCH_SECONDS),
            is_alive=known.is_alive if known else None,
            report=grant_manager.observers.reported,
        )
        kubelet = time_slice_service.KubeletAccess.of(settings, self._meter.called)
        slices = time_slice_service.add(self._components, serve, served, view, kubelet)
        grant_manager.observers.changed.add(slices.changed)
        return slices

    def _move(
        self,
        node: driver.NodeServices,
        holders: Mapping[Api, Callable[[], set[str] | None]],
    ) -> None:
        """Move devices to their configured API once the former has none of them allocated.

        *holders*: the UUIDs of devices that each running API has allocated; None if unknown.
        """

        def held(api: Api) -> set[str] | None:
            return holders[api]() if api in holders else None

        node.gates.run(self._components.wait, held, node.devices.show)

    def _add_plugins(
        self, grant_manager: manager.GrantManager, offers: dict[device_ids.ResourceKind, Offer]
    ) -> registration.Registrar:
        """Add the components that talk to kubelet."""
        folder, unit = self._settings.plugins, self._settings.unit
        gaias = self._settings.profile is Profile.GAIA
        decider = profile.Dressed(grant_manager, unit) if gaias else grant_manager
        plugins = [
            plugin_server.Plugin(folder, offer, decider, self._meter.called)
            for offer in offers.values()
        ]
        registrar = registration.Registrar(self._settings.plugins, plugins)

        def register() -> None:
            self._searched.wait(_FIRST_SEARCH_SECONDS)  # else kubelet sees no devices at first
            registrar.run()

        self._components.add("registrar", register, registrar.stop)
        return registrar

    def _hands(
        self,
        grant_manager: manager.GrantManager,
        made: backend.GrantBackend,
        found: node_devices.Devices,
    ) -> admin_socket.Hands:
        """Return the functions that execute the administrator's orders."""

        def change(grant: Grant, wanted: quota.QuotaChange) -> Grant:
            return grant_manager.change(
                grant.id,
                lambda current: resize.changed(current, wanted, made.devices, self._settings.unit),
            )

        return admin_socket.Hands(
            grants=lambda: grant_manager.known.values(),
            change=change,
            devices=lambda: [device.uuid for device in grant_manager.devices],
            cordon=found.cordon,
            uncordon=found.uncordon,
        )

    def _follower(
        self, found: node_devices.Devices, watched: folder_watch.FolderWatch
    ) -> driver_follower.DriverFollower:
        settings = self._settings
        mirror = node_mirror.NodeMirror(settings.state / _DRIVER, shim.shim_library())
        files = survey.RootFinder(settings.driver_root, settings.volumes)
        finder = files if settings.volumes is None else profile.Volumes(files)
        known: list[node_mirror.MirrorState] = []

        def report(news: driver_follower.News) -> None:
            if [news.state] != known or found.outdated:
                known[:] = [news.state] if found.update(mirror.current(), news.state) else []
            self._searched.set()

        return driver_follower.DriverFollower(finder, mirror, watched, report)


def _connect(
    kubeconfig: Path | None, asked: Callable[[str, int, float], None]
) -> apiserver.ApiServer | None:
    """Connect with *kubeconfig*, or the pod's service account; None if there is neither."""
    if kubeconfig is None and not apiserver.is_pod():
        return None
    return apiserver.connect(None if kubeconfig is None else str(kubeconfig), asked)
