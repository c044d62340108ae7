"""The agent's HTTP server: metrics, probes, status page, and gpu-manager's pages.

It is read-only: changes go through the API server or the admin socket.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING

from pyvgpu.deviceplugin.gpu_manager import display
from pyvgpu.deviceplugin.telemetry import metric_families, usage
from pyvgpu.http import endpoints, http_messages
from pyvgpu.status import site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyvgpu.deviceplugin.agent_settings import AgentSettings
    from pyvgpu.deviceplugin.components import Components
    from pyvgpu.deviceplugin.containers.collector import Collector
    from pyvgpu.deviceplugin.containers.store import GrantStore
    from pyvgpu.deviceplugin.devices.node_devices import Devices
    from pyvgpu.deviceplugin.dra import dra_server
    from pyvgpu.deviceplugin.grants.manager import GrantManager
    from pyvgpu.deviceplugin.plugin.registration import Registrar
    from pyvgpu.deviceplugin.telemetry.status_history import Recent

log = logging.getLogger(__name__)

STUCK_SECONDS = 120.0  # without a finished collection, which takes less than a second


@dataclasses.dataclass(frozen=True, slots=True)
class Inside:
    """The agent's components that the pages read."""

    grant_manager: GrantManager
    devices: Devices
    places: GrantStore
    collecting: Collector
    registrar: Registrar
    marks: Callable[[str], display.PodOwner]  # of a pod, by its uid
    recent: Recent
    unplaced: Callable[[], str]  # why no pod can be placed here yet
    sockets: dra_server.Sockets | None = None  # on which kubelet asks about claims
    # How many pods wait for room on each oversubscribed device, by UUID.
    waiting_pods: Callable[[], Mapping[str, int]] = dict

    def alive(self) -> str:
        """Return the liveness problem: a stuck collector, which takes every lock of the agent."""
        idle = self.collecting.idle_seconds
        return f"nothing was collected for {idle:.0f} s" if idle > STUCK_SECONDS else ""

    def ready(self) -> str:
        """Return why the plugins are not registered with kubelet, or why no pod could start."""
        sockets = self.sockets.trouble if self.sockets else ""
        return self.registrar.trouble or sockets or self.unplaced()

    def withheld(self) -> str:
        """Return why no device is offered, although the plugins are registered."""
        other = self.devices.other_plugin
        return f"none is offered: {other} offers the same GPUs" if other else ""


@contextlib.contextmanager
def showing(
    settings: AgentSettings,
    components: Components,
    meter: metric_families.AgentMeter,
    inside: Inside,
) -> Iterator[None]:
    """Serve while the block runs, at the addresses in *settings*; add the sampler of usage."""
    if settings.listen is None and settings.display is None:
        yield
        return
    using = usage.Uses(inside.places, lambda: inside.grant_manager.known)
    shown = metric_families.MetricSources(
        grants=lambda: inside.grant_manager.known.values(),
        devices=lambda: inside.grant_manager.devices,
        answers=lambda: inside.devices.answers,
        use=using.of,
        findings=lambda: inside.devices.findings,
        audits=lambda: inside.devices.audits,
        other_plugin=lambda: inside.devices.other_plugin,
        waiting=lambda: inside.grant_manager.waiting,
        driver_limit=inside.devices.limits.of,
        waiting_pods=inside.waiting_pods,
    )

    def polled() -> None:
        inside.recent.poll(shown)
        meter.forget(inside.grant_manager.known)

    components.add("usage", lambda: using.run(components.wait, polled))
    meter.show(shown)
    theirs = display.DisplaySources(
        settings.node, shown, lambda: inside.devices.held, inside.marks
    )

    def status(asked: endpoints.HttpRequest) -> http_messages.HttpResponse:
        troubles = (
            ("agent", inside.alive()),
            ("kubelet", inside.ready()),
            ("devices", inside.withheld()),
        )
        return site.answer(asked, inside.recent.document(settings.node, shown, troubles))

    more: dict[str, endpoints.Route] = {**display.answers(theirs), **site.routes(status)}
    ours = endpoints.Pages(meter.text, inside.alive, inside.ready, more, inside.withheld)
    with (
        endpoints.serving(settings.listen, ours) as port,
        display.serving(settings.display, theirs),
    ):
        if port:
            log.info("answering on port %d", port)
        yield
