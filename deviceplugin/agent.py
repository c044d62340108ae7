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
    refusals    tells of pods that can never start
    wishes      follows the annotations of pods that run

The state is the checkpoint, the grants' folders and kubelet's own word: whoever is killed finds
all of it again.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity, shim
from pyvgpu.allocator import facts
from pyvgpu.deviceplugin import (
    apiserver,
    auditor,
    checkpoint,
    clocks,
    containers,
    folders,
    granting,
    guard,
    hardware,
    health,
    ids,
    messages,
    orders,
    podresources,
    refusals,
    registration,
    resize,
    service,
    state,
    wishes,
)
from pyvgpu.volumes import follow, node, survey, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu import device, quota
    from pyvgpu.deviceplugin import inventory
    from pyvgpu.deviceplugin.grants import Grant

    Parts = dict[str, tuple[Callable[[], None], Callable[[], None]]]  # how each runs, and stops

log = logging.getLogger(__name__)

COLLECT_SECONDS = 2.0  # dead grants are gone within 5 s

_GRANTS, _DRIVER = "grants", "driver"  # in the state folder
_KUBELET_SECONDS = 30.0  # between two words on a kubelet that does not answer
_FIRST_LOOK_SECONDS = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Where things are on the node, and how it is shared."""

    node: str
    state: Path = Path("/var/lib/pyvgpu")
    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    specifications: Path = Path("/var/run/cdi")
    driver_root: Path = Path("/")
    unit: int = 256 << 20  # bytes of one vmemory
    packing: facts.Packing = facts.Packing.BINPACK
    bind_seconds: float = granting.BIND_SECONDS
    kubeconfig: Path | None = None
    require_cdi: bool = True  # else containers see the nodes of devices that are not theirs


class Agent:
    """One agent, which :meth:`run` runs until :meth:`stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopped = threading.Event()
        self._failure: errors.PyVgpuError | None = None
        self._looked = threading.Event()  # after the driver, for the first time

    def stop(self) -> None:
        """Let :meth:`run` end; may be called from a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Serve kubelet."""
        settings = self._settings
        api = apiserver.connect(settings.kubeconfig)
        with checkpoint.Checkpoint(settings.state, settings.node) as kept:
            if kept.trouble:
                log.warning("rebuilding from what kubelet knows: %s", kept.trouble)
            made = Grants(
                folders.Folders(settings.state / _GRANTS, settings.specifications),
                cdi=settings.require_cdi,
            )
            pods = podresources.PodResources(settings.pod_resources)
            offers = {it.kind: service.Offer(it) for it in ids.OURS}
            granter = granting.Granter(
                kept,
                made,
                granting.Sources(state.State(settings.plugins), pods),
                granting.Sizes(settings.unit, settings.packing, settings.bind_seconds),
                offers,
            )
            outside: Parts = {}
            if api is not None:
                teller = refusals.Refusals(api, settings.node)
                following = wishes.Wishes(api, settings.node, granter, teller.tell)
                outside["refusals"] = (teller.run, teller.stop)
                outside["wishes"] = (following.run, following.stop)
                granter.tell = teller.tell
                granter.find_name = functools.partial(_name_of, api, settings.node)
            devices = Devices(settings, granter, made, orders.Cordons(settings.state))
            told = orders.Orders(settings.state, self._hands(granter, made, devices))
            try:
                told.start()
                self._serve(granter, made, devices, offers, outside)
            finally:
                told.stop()
                pods.close()
                made.close()
        if self._failure is not None:
            raise self._failure

    def _hands(self, granter: granting.Granter, made: Grants, devices: Devices) -> orders.Hands:
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
            cordon=devices.cordon,
            uncordon=devices.uncordon,
        )

    def _serve(
        self,
        granter: granting.Granter,
        made: Grants,
        devices: Devices,
        offers: dict[ids.Kind, service.Offer],
        outside: Parts,
    ) -> None:
        """Run the parts, each in a thread of its own, until all shall end."""
        plugins = [
            service.Plugin(self._settings.plugins, offers[it.kind], granter) for it in ids.OURS
        ]
        registrar = registration.Registrar(self._settings.plugins, plugins)
        with watch.Watch() as watched:
            follower = self._follower(devices, watched)
            parts: Parts = {
                "mirror": (follower.run, follower.stop),
                "registrar": (lambda: self._register(registrar), registrar.stop),
                "collector": (lambda: self._collect(granter, made), lambda: None),
                "clocks": (lambda: self._keep_clocks(granter), lambda: None),
                "guard": (made.guard.run, made.guard.stop),
                **outside,
            }
            threads = [
                threading.Thread(target=self._guarded(run), name=name)
                for name, (run, _) in parts.items()
            ]
            for thread in threads:
                thread.start()
            self._stopped.wait()
            for _, stop in parts.values():
                stop()
            for thread in threads:
                thread.join()
        devices.stop()

    def _guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return *run* so that the agent ends, to be started again, where it fails."""

        def guarded() -> None:
            try:
                run()
            except errors.PyVgpuError as exc:
                self._failure = exc
            except Exception:
                log.exception("%s failed", threading.current_thread().name)
                self._failure = errors.PyVgpuError(f"{threading.current_thread().name} failed")
            self._stopped.set()

        return guarded

    def _register(self, registrar: registration.Registrar) -> None:
        self._looked.wait(_FIRST_LOOK_SECONDS)  # else kubelet would hear of nothing first
        registrar.run()

    def _follower(self, devices: Devices, watched: watch.Watch) -> follow.Follower:
        settings = self._settings
        mirror = node.Node(settings.state / _DRIVER, shim.shim_library())
        finder = survey.Finder(settings.driver_root)
        known: list[node.State] = []

        def tell(news: follow.News) -> None:
            if [news.state] != known:
                known[:] = [news.state] if devices.look(mirror.current(), news.state) else []
            self._looked.set()

        return follow.Follower(finder, mirror, watched, tell)

    def _collect(self, granter: granting.Granter, made: Grants) -> None:
        silent_since = None
        while not self._stopped.wait(COLLECT_SECONDS):
            try:
                granter.collect()
                made.collect(granter.wanted)
                silent_since = None
            except errors.UnavailableError as exc:
                now = time.monotonic()
                if silent_since is None or now - silent_since > _KUBELET_SECONDS:
                    log.warning("nothing can be collected: %s", exc)
                    silent_since = now

    def _keep_clocks(self, granter: granting.Granter) -> None:
        kept = clocks.Clocks(self._settings.state / _GRANTS)
        try:
            while not self._stopped.wait(clocks.LOOK_SECONDS):
                kept.look(granter.shared)
        finally:
            kept.stop()


def _name_of(api: apiserver.ApiServer, node_name: str, uid: str) -> tuple[str, str]:
    """Return the namespace and name of a pod; empty ones if nobody can tell."""
    try:
        pod = apiserver.find_pod(api, node_name, uid)
    except apiserver.ServerError as exc:
        log.warning("cannot ask for the name of pod %s: %s", uid, exc)
        return "", ""
    return (pod["metadata"]["namespace"], pod["metadata"]["name"]) if pod else ("", "")


class Devices:
    """What the node has, as the granter shall know it: by the driver, and by their health."""

    def __init__(
        self,
        settings: Settings,
        granter: granting.Granter,
        made: Grants,
        cordons: orders.Cordons,
    ) -> None:
        self._settings = settings
        self._granter = granter
        self._made = made
        self._cordons = cordons
        self._changing = threading.Lock()
        self._seen: tuple[inventory.Seen, ...] = ()
        self._sick: dict[str, str] = {}
        self._away = False
        self._watcher: health.Watcher | None = None
        self._auditor: auditor.Auditor | None = None

    def look(self, tree: Path | None, now: node.State) -> bool:
        """Take note of the driver as it is *now*; false if it could not be used."""
        if now.driver is not node.Driver.PRESENT or tree is None:
            log.warning("the driver is %s: %s", now.driver, now.reason)
            self._away = True
            self._show()
            return True
        settings = self._settings
        try:
            found = hardware.look(tree, now.release, settings.driver_root, settings.state)
        except errors.PyVgpuError as exc:
            log.warning("the devices cannot be seen: %s", exc)
            return False
        log.info("found driver %s with %d devices", now.release, len(found.seen))
        self.stop()
        with self._changing:
            self._seen, self._away, self._sick = found.seen, False, {}
            self._made.driver = found.driver
        self._show()
        self._granter.recover()
        uuids = [it.device.uuid for it in found.seen]
        self._watcher = health.Watcher(found.library, uuids, health.Rules(), self._hear)
        self._watcher.start()
        self._auditor = self._made.auditor(found.library, lambda: self._granter.known)
        threading.Thread(target=self._auditor.run, name="auditor", daemon=True).start()
        return True

    def cordon(self, uuid: str) -> None:
        """Let nothing new come onto a device."""
        if self._cordons.change(uuid, cordoned=True):
            log.warning("cordoned device %s", uuid)
        self._show()

    def uncordon(self, uuid: str) -> None:
        """Let it be given out again."""
        if self._cordons.change(uuid, cordoned=False):
            log.warning("uncordoned device %s", uuid)
        self._show()

    def stop(self) -> None:
        """Watch no more."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
        if self._auditor is not None:
            self._auditor.stop()

    def _hear(self, news: Mapping[str, str]) -> None:
        for uuid, reason in news.items():
            log.warning("device %s is %s", uuid, f"sick: {reason}" if reason else "well again")
        with self._changing:
            self._sick |= news
        self._show()

    def _show(self) -> None:
        with self._changing:
            self._granter.see(
                [
                    it.fact(
                        "the driver is away" if self._away else self._sick.get(it.device.uuid, ""),
                        cordoned=it.device.uuid in self._cordons.uuids,
                    )
                    for it in self._seen
                ]
            )


class Grants:
    """The folders of grants, made for the driver that the node has now."""

    def __init__(self, made: folders.Folders, *, cdi: bool = True) -> None:
        self._made = made
        self._cdi = cdi
        self.guard = guard.Guard(made)
        self.driver: containers.Driver | None = None

    def answer(self, grant_id: str, vcore: int) -> messages.Answer:
        """Return what Allocate answers: a CDI device that nobody has described yet.

        Without CDI it is all that a container will ever get: the grant's own folder, without a
        quota until it is bound, and the nodes of all devices.
        """
        annotations = {names.GRANT_KIND: grant_id}
        if self._cdi:
            return messages.Answer(annotations, (f"{names.GRANT_KIND}={grant_id}",))
        if vcore >= quantity.WHOLE_DEVICE:
            raise errors.UsageError(
                f"vcore {vcore}: whole devices need CDI, which this node does without; valid "
                f"would be 1 to {quantity.WHOLE_DEVICE - 1}"
            )
        driver = self._driver()
        mounts, nodes = containers.unbound(self._made.prepare(grant_id), driver)
        return messages.Answer(
            annotations,
            variables=driver.environment,
            mounts=tuple(
                messages.Mount(it["containerPath"], it["hostPath"], "ro" in it["options"])
                for it in mounts
            ),
            nodes=tuple((f"/dev/{it.name}", str(driver.dev / it.name)) for it in nodes),
        )

    def make(self, grant: Grant) -> None:
        """Make what a bound grant needs, or what of it is missing."""
        self._made.make(grant, self._driver())

    def _driver(self) -> containers.Driver:
        if self.driver is None:
            raise errors.UnavailableError("the node has no driver now")
        return self.driver

    def recall(self, grant_id: str) -> tuple[facts.Share, ...]:
        """Return what was made of a grant that nobody remembers."""
        limits = self._made.limits(grant_id)
        if limits:
            return tuple(facts.Share(it.uuid, it.vcore, it.vmemory) for it in limits)
        if self.driver is None:
            return ()
        names_of = {node.name: uuid for uuid, node in self.driver.nodes.items()}
        found = [names_of[it] for it in self._made.whole_nodes(grant_id) if it in names_of]
        return tuple(
            facts.Share(it, quantity.WHOLE_DEVICE, self.driver.devices[it].memory_bytes)
            for it in found
        )

    def remove(self, grant_id: str) -> None:
        """Remove what there is of it."""
        self._made.remove(grant_id)

    def is_used(self, grant_id: str) -> bool:
        """Tell whether a process of it lives."""
        return self._made.is_used(grant_id)

    @property
    def devices(self) -> Mapping[str, device.Device]:
        """The devices of the driver that the node has now."""
        return {} if self.driver is None else self.driver.devices

    def auditor(
        self, library: Path, granted: Callable[[], Mapping[str, Grant]]
    ) -> auditor.Auditor:
        """Return who compares these with what NVML of *library* says."""
        return auditor.Auditor(library, self._made, granted)

    def close(self) -> None:
        """Let go of what was held."""
        self._made.close()

    def collect(self, wanted: Callable[[], set[str]]) -> None:
        """Remove what is of no grant that is wanted."""
        for grant_id in self._made.collect(wanted):
            log.info("removed what was left of %s", grant_id)
