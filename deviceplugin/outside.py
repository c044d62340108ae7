"""What the agent answers over HTTP, to Prometheus, to kubelet's probes and to people.

It only answers: whatever changes anything goes through the API server or root's socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import pages

if TYPE_CHECKING:
    from pyvgpu.deviceplugin.collector import Collector
    from pyvgpu.deviceplugin.metrics import AgentMeter
    from pyvgpu.deviceplugin.registration import Registrar

STUCK_SECONDS = 120.0  # without an end of what takes less than a second


def answers(meter: AgentMeter, collecting: Collector, registrar: Registrar) -> pages.Pages:
    """Return what there is to be seen.

    Alive is who ends grants still, which needs every lock that the agent has; ready is who is
    known to kubelet.
    """

    def alive() -> str:
        idle = collecting.idle_seconds
        return f"nothing was collected for {idle:.0f} s" if idle > STUCK_SECONDS else ""

    return pages.Pages(meter.text, alive, lambda: registrar.trouble)
