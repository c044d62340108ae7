"""What the agent shows: to Prometheus, to kubelet's probes, to people, and as gpu-manager does.

It only answers: whatever changes anything goes through the API server or root's socket.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING

from pyvgpu import pages
from pyvgpu.deviceplugin import display, metrics, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyvgpu.deviceplugin.collector import Collector
    from pyvgpu.deviceplugin.devices import Devices
    from pyvgpu.deviceplugin.folders import Folders
    from pyvgpu.deviceplugin.granting import Granter
    from pyvgpu.deviceplugin.parts import Parts
    from pyvgpu.deviceplugin.registration import Registrar
    from pyvgpu.deviceplugin.settings import Settings

log = logging.getLogger(__name__)

STUCK_SECONDS = 120.0  # without an end of what takes less than a second


@dataclasses.dataclass(frozen=True, slots=True)
class Inside:
    """Who knows what is shown."""

    granter: Granter
    devices: Devices
    places: Folders
    collecting: Collector
    registrar: Registrar
    marks: Callable[[str], display.Marks]  # of a pod, by its uid

    def alive(self) -> str:
        """Return what is wrong: who ends grants needs every lock that the agent has."""
        idle = self.collecting.idle_seconds
        return f"nothing was collected for {idle:.0f} s" if idle > STUCK_SECONDS else ""

    def ready(self) -> str:
        """Return why kubelet does not count on us."""
        return self.registrar.trouble


@contextlib.contextmanager
def showing(
    settings: Settings, parts: Parts, meter: metrics.AgentMeter, inside: Inside
) -> Iterator[None]:
    """Show all of it while the block runs, where *settings* say; *parts* keep it new."""
    if settings.listen is None and settings.display is None:
        yield
        return
    using = usage.Uses(inside.places, lambda: inside.granter.known)
    parts.add("usage", lambda: using.run(parts.wait))
    shown = metrics.Sources(
        grants=lambda: inside.granter.known.values(),
        devices=lambda: inside.granter.devices,
        answers=lambda: inside.devices.answers,
        use=using.of,
        findings=lambda: inside.devices.findings,
        audits=lambda: inside.devices.audits,
    )
    meter.show(shown)
    theirs = display.Sources(settings.node, shown, lambda: inside.devices.held, inside.marks)
    ours = pages.Pages(meter.text, inside.alive, inside.ready, display.answers(theirs))
    with (
        pages.serving(settings.listen, ours) as port,
        display.serving(settings.display, theirs),
    ):
        if port:
            log.info("answering on port %d", port)
        yield
