"""The figures of docs/sharing.md that a GPU's record has."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
RECORD = "2026-11-26-nvidia-h200.json"


def figures():
    record = json.loads((ROOT / "benchmarks" / "results" / "gpu" / RECORD).read_text())
    return {one["name"]: one["value"] for one in record["stages"]["sharing"]["figures"]}


@pytest.mark.parametrize(
    ("means", "way"),
    [
        ("time slices", "turns of the driver"),
        ("quota, vcore 50 each", "pyvgpu"),
        ("MPS without percentages", "MPS"),
        ("MPS, 50 percent each", "MPS with 50 percent of the threads"),
    ],
)
def test_figures_of_the_gpu_are_those_of_its_record(means, way):
    assert f"`{RECORD}`" in PAGE
    found = figures()
    alike = [
        found[f"{way}, two alike: tenant {tenant} of 1000 us: throughput to alone"]
        for tenant in (1, 2)
    ]
    scene = f"{way}, small beside heavy"
    small = found[f"{scene}: tenant 2 of 100 us: throughput to alone"]
    heavy = found[f"{scene}: tenant 1 of 5000 us: throughput to alone"]
    typical, slowest = (
        found[f"{scene}: {part} of launch to done, to alone"] for part in ("p50", "p99")
    )
    row = (
        f"| {means} | {alike[0]:.0%}, {alike[1]:.0%} "
        f"| {small:.0%}, {heavy:.0%}; {typical:.1f}, {slowest:.1f} |"
    )
    assert row.replace("%", " %") in PAGE.splitlines()
