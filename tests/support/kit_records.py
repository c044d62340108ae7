"""Writes GPU kit records in the runner's format, with the figures that a test chooses."""

import json

from pyvgpu.calibration import guarantees

NAMES = {"facts": {"device": "NVIDIA H200", "driver release": "580.159", "multiprocessors": 132}}
FIGURES = {
    "facts": {"memory total": 150_111_027_200},
    "memory": {"primary context, by NVML": 545_260_032, "allocation of 1": 512},
    "events": {"two events in a queue, by throughput": 6.0},
    "slices": {
        "2 processes: away from the device": 2700.0,
        "3 processes: away from the device": 5300.0,
    },
    "queue": {"launches that a stream behind a gate takes": 1021},
}


def stage(state="done", reason="", facts=(), figures=(), guarantees=()):
    """Return a stage; a figure is a value, or a pair of value and spread."""
    return {
        "state": state,
        "reason": reason,
        "seconds": 1.0,
        "facts": [{"name": name, "value": value} for name, value in dict(facts).items()],
        "figures": [_figure(name, value) for name, value in dict(figures).items()],
        "guarantees": [
            {"name": name, "held": held, "detail": "5 of 4"}
            for name, held in dict(guarantees).items()
        ],
        "missing": [],
    }


def _figure(name, value):
    value, spread = value if isinstance(value, tuple) else (value, None)
    unit = "%" if "percent" in name and "median" not in name else ""
    if name.endswith(guarantees.LATE):
        unit = "% of the time"
    return {"name": name, "value": value, "unit": unit, "spread": spread}


def by_name(entries):
    """Return facts, figures or others of a stage by their names."""
    return {entry["name"]: entry for entry in entries}


def document(simulated=None, **stages):
    """Return a record of a GPU like the H200; *stages* replace the usual ones."""
    usual = {
        name: stage(facts=NAMES.get(name, {}), figures=figures)
        for name, figures in FIGURES.items()
    }
    return {
        "format": "pyvgpu-gpu-record",
        "version": 1,
        "kit": "0.1.0",
        "begun": "2026-11-23T10:00:00+00:00",
        "simulated": simulated,
        "stages": {**usual, **stages},
    }


def write(path, simulated=None, **stages):
    """Write such a record to *path*; return *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(simulated, **stages)))
    return path
