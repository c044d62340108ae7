"""Memory under the shim: shown values, refusals, and the device's actual usage.

Each family of calls that gives memory takes all that it gets (programs/families.c), by each way
in which programs find the driver's functions.
"""

import json
import subprocess

from kit import binaries, cuda, shimmed
from kit import report as reports
from kit.stages import memory

GIB = 1 << 30
QUOTA = 4 * GIB
MOST = QUOTA + GIB  # at which a program stops that is not refused
SECONDS = 60
OUT_OF_MEMORY = 2
NO_FUNCTION = 3
FAMILIES = ("plain", "pooled", "physical", "managed", "graph", "own pool", "pitched", "array",
            "cube", "mipmapped")  # fmt: skip
WAYS = ("linked", "routed_v2")
MORE_WAYS = ("dlsym", "routed", "thread")  # for the families that programs use most
USED_MOST = FAMILIES[:3]
SETTLE_SECONDS = 3


def run(report):
    try:
        program = binaries.path("families")
    except binaries.NotHereError as exc:
        report.missing("families", exc)
        return
    if not cuda.has_room(report, MOST + GIB):  # also so that managed memory stays on the device
        return
    nvml = cuda.nvml()
    handle = cuda.nvml_handle(nvml)

    def used():
        return memory.used(nvml, handle)

    cases = [(family, way) for way in WAYS for family in FAMILIES]
    cases += [(family, way) for way in MORE_WAYS for family in USED_MOST]
    for family, way in cases:
        if reports.seconds_left() < 15:
            report.missing(f"{family} memory, {way}", "no time was left")
        else:
            fill(report, program, family, way, used)


def fill(report, program, family, way, used):
    name = f"{family} memory, {way}"
    before = used()
    process = shimmed.start(["--vmemory", f"{QUOTA >> 30}GiB"], [program, family, way, str(MOST)])
    try:
        seen = json.loads(process.stdout.readline() or "null")
        held = used() - before
        rest, _ = process.communicate("go on\n", SECONDS)
    except (ValueError, subprocess.TimeoutExpired) as exc:
        process.kill()
        process.communicate()
        report.guarantee(f"{name}: works under a quota", False, exc)
        return
    if seen is not None and "missing" in seen:
        report.missing(name, f"the driver has no {seen['missing']}")
        return
    if process.returncode or seen is None:
        report.guarantee(
            f"{name}: works under a quota", False, f"exit code {process.returncode}; see log.txt"
        )
        return
    cuda.until(lambda: used() <= before, SETTLE_SECONDS)
    evaluate(report, name, {**seen, **json.loads(rest.splitlines()[-1])}, held)


def evaluate(report, name, seen, held):
    """Report on one filled quota; *held*: bytes by which NVML's figure of the device grew."""
    report.figure(f"{name}: taken", seen["held"], "bytes")
    report.figure(f"{name}: taken of the device, by NVML", held, "bytes")
    guarantees = (
        ("the quota is shown as the device", (seen["total"], seen["device"]) == (QUOTA, QUOTA),
         f"total {seen['total']} and {seen['device']}, quota {QUOTA}"),
        ("a request of all that is free is served", seen["at"] == 0, f"result {seen['at']}"),
        ("a request of more is refused as out of memory", seen["past"] == OUT_OF_MEMORY,
         f"result {seen['past']}"),
        ("more is refused as out of memory", set(seen["codes"]) == {OUT_OF_MEMORY},
         f"results {seen['codes']}"),
        ("nothing beyond the quota", seen["held"] <= seen["free"],
         f"taken {seen['held']} of {seen['free']}"),
        ("nearly all of it can be had", seen["held"] >= 0.97 * seen["free"],
         f"taken {seen['held']} of {seen['free']}"),
        ("the device holds no more than the quota", held <= QUOTA,
         f"NVML shows {held} more than before, quota {QUOTA}"),
        ("what was written is there", seen["same"] == 1, "compared at both ends of each piece"),
        ("what was freed can be had again", not any(seen["again"]), f"results {seen['again']}"),
        ("everything is free at the end", seen["left"] >= 0.99 * seen["free"],
         f"free {seen['left']} of {seen['free']}"),
    )  # fmt: skip
    for title, kept, detail in guarantees:
        report.guarantee(f"{name}: {title}", kept, detail)
