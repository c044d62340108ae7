"""Prometheus metrics of the claim controller."""

from __future__ import annotations

from pyvgpu.kube import api_metrics


class ClaimMeter(api_metrics.ApiMeter):
    """Metrics of the claim controller."""

    def __init__(self) -> None:
        super().__init__()
        self.collected = self.counter(
            "pyvgpu_claim_templates_collected_total",
            "Claim templates deleted because no pod referred to them any more.",
        )
