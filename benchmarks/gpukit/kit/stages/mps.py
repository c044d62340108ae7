"""Quotas under the kit's own MPS daemon, and MPS's limits for comparison."""

import os

from kit import binaries, cuda, mps, shimmed, together
from kit.stages import memory, quota

SECONDS = 3
LENGTH_NS = 300_000
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
FAMILIES = ("plain", "pooled", "physical")

CLIENT = f"""
import json
from kit import cuda
device = cuda.Device()
free, total = device.memory()
try:
    enabled = device.attribute(cuda.MPS_ENABLED)
except cuda.CudaError:
    enabled = None
print(json.dumps({{"enabled": enabled, "mode": device.attribute({cuda.COMPUTE_MODE}),
                  "processors": device.sms, "free": free, "total": total}}))
"""


def run(report):
    before = set(mps.seen())
    try:
        with mps.daemon() as variables:
            os.environ.update(variables)
            under_daemon(report)
    except mps.UnavailableError as exc:
        report.missing("MPS", exc)
        return
    left = sorted(set(mps.seen()) - before)
    report.guarantee("the daemon that was started is ended", not left, f"pids {left}")


def under_daemon(report):
    seen = shimmed.answer(None, shimmed.python(CLIENT))
    if isinstance(seen, str):
        report.missing("a client of MPS", f"it does not run without a quota either: {seen}")
        return
    report.fact("a client of MPS", seen)
    if seen["enabled"] == 0:
        report.missing("MPS", "the driver says that clients are not in MPS")
        return
    limits(report)
    quotas(report)
    shares(report)


def limits(report):
    """What a client sees of MPS's own limits."""
    for name, value in ((LIMIT, "0=4G"), (PERCENTAGE, "30")):
        os.environ[name] = value
        report.fact(f"{name}={value}", shimmed.answer(None, shimmed.python(CLIENT)))
        del os.environ[name]


def quotas(report):
    try:
        program = binaries.path("families")
    except binaries.NotHereError as exc:
        report.missing("families", exc)
        return
    if not cuda.has_room(report, quota.MOST + quota.GIB):
        return
    nvml = cuda.nvml()
    handle = cuda.nvml_handle(nvml)
    for family in FAMILIES:
        quota.fill(report, program, family, "linked", lambda: memory.used(nvml, handle))


def shares(report):
    """Two tenants by MPS's percentages, and by ours; figures alone, since kernels run together."""
    cuda.calibrate_alone()
    scenes = {
        "no limit": [together.Tenant(None, LENGTH_NS)] * 2,
        "percentages of MPS 30 and 60": [
            together.Tenant(None, LENGTH_NS, environment=((PERCENTAGE, percent),))
            for percent in ("30", "60")
        ],
        "vcore 30 and 60": [together.Tenant(vcore, LENGTH_NS) for vcore in (30, 60)],
    }
    for title, tenants in scenes.items():
        try:
            had_of_all = together.play(tenants, SECONDS)
        except binaries.NotHereError as exc:
            report.missing("tenant", exc)
            return
        for number, had in enumerate(had_of_all, 1):
            name = f"under MPS, {title}: tenant {number}"
            together.tell(report, name, name, had)
