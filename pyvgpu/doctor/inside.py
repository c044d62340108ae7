"""Checks inside a container with a grant, or inside a run.

A container is recognized by the folders that the agent mounts into it, a run by the libcuda that a
program loads. Each requirement is a row; the last two rows are proofs.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity, quota, region
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.doctor import check_results, machine_checks, proof
from pyvgpu.doctor.check_results import CheckResult, CheckState, Finding
from pyvgpu.machine import arbiter, memory_limit
from pyvgpu.volumes import elf

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY, TIME = "memory is held", "time is held"  # the rows that are proofs
_LIBRARY = names.LIBCUDA
_LOADED = """
import ctypes, sys
entry = ctypes.cast(ctypes.CDLL(sys.argv[1]).cuInit, ctypes.c_void_p).value
for line in open("/proc/self/maps"):
    start, end = (int(edge, 16) for edge in line.split()[0].split("-"))
    if start <= entry < end:
        print(line.split(maxsplit=5)[-1].strip())
"""
_SECONDS = 20


class EnvironmentKind(enum.StrEnum):
    """The kind of environment of a process."""

    CONTAINER = "container"  # with a share of devices
    WHOLE = "container of whole devices"
    RUN = "run"


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """The environment of a process, and its quota files, which do not exist for whole devices."""

    kind: EnvironmentKind
    quota: Path
    usage: Path
    clock: Path  # of its first device
    library: Path | None  # libcuda.so.1, as the loader finds it
    problem: str = ""  # why the loader finds none


def find(root: Path = Path("/")) -> ProcessEnvironment | None:
    """Return the environment of this process; None: it has no quota."""
    library, problem = _loaded()
    quotas = root / cdi_edits.QUOTA.lstrip("/")
    clock = root / cdi_edits.CLOCKS.lstrip("/") / "0"
    usage = root / cdi_edits.USAGE.lstrip("/")
    given = (quotas / names.QUOTA_FILE, usage, clock, library, problem)
    if quotas.exists():
        return ProcessEnvironment(EnvironmentKind.CONTAINER, *given)
    if (root / cdi_edits.LIBRARIES.lstrip("/")).is_dir():
        return ProcessEnvironment(EnvironmentKind.WHOLE, *given)
    if library is not None and (library.parent.parent / "region").is_symlink():
        folder = library.parent.parent / "region"
        clock = folder / f"{names.CLOCK_LINK}0"
        files = (folder / names.QUOTA_FILE, folder / names.USAGE_FILE, clock)
        return ProcessEnvironment(EnvironmentKind.RUN, *files, library)
    return None


def examine(place: ProcessEnvironment, environment: Mapping[str, str]) -> tuple[CheckResult, ...]:
    """Run all checks, and prove that the quota is enforced."""
    library = functools.partial(_check_library, place)
    if place.kind is EnvironmentKind.WHOLE:
        whole = Finding(CheckState.OK, "whole devices: the driver itself, without quotas")
        return (
            check_results.row("quota", lambda: whole),
            check_results.row(_LIBRARY, library),
            check_results.row("device nodes", lambda: _check_nodes(environment, None)),
        )
    quotas = check_results.row("quota", lambda: _check_quota(place))
    if quotas.state is CheckState.MISSING:
        return (quotas, check_results.row(_LIBRARY, library))
    limits = read(place)
    count = len(limits.devices) if place.kind is EnvironmentKind.CONTAINER else None
    first = limits.devices[0]
    return (
        quotas,
        check_results.row(_LIBRARY, library),
        check_results.row("device nodes", lambda: _check_nodes(environment, count)),
        check_results.row("clock", lambda: _check_clock(place, first)),
        check_results.row("driver's limit", lambda: _check_limit(place)),
        check_results.row(MEMORY, lambda: proof.memory(first, place.usage)),
        check_results.row(TIME, lambda: proof.time(first, place.usage)),
    )


def read(place: ProcessEnvironment) -> region.QuotaLimits:
    """Return the limits of *place*; PyVgpuError if they cannot be read."""
    try:
        file = os.open(place.quota, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise errors.of_files(f"{place.quota}: the quota cannot be read", exc) from exc
    try:
        return region.read_limits(file)
    finally:
        os.close(file)


def _loaded() -> tuple[Path | None, str]:
    """Return the libcuda that a program loads, or why it loads none."""
    try:
        done = subprocess.run(
            [sys.executable, "-PS", "-c", _LOADED, _LIBRARY],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"loading it took more than {_SECONDS} s"
    if done.returncode == 0 and done.stdout.strip():
        return Path(done.stdout.strip()), ""
    said = (done.stderr.strip().splitlines() or ["it gave no answer"])[-1]
    return None, said.removeprefix("OSError: ")


def _check_quota(place: ProcessEnvironment) -> Finding:
    limits = read(place)
    parts = ", ".join(
        f"{device.uuid} {_vcore(device)} vcore {quantity.format_size(device.vmemory)}"
        for device in limits.devices
    )
    supervised = limits.flags & region.SUPERVISED
    if place.kind is EnvironmentKind.CONTAINER and supervised:
        return Finding(
            CheckState.MISSING,
            f"{parts}: revoked, because its pod has ended",
            "restart the pod; a process that is still running gets no more memory",
        )
    return Finding(CheckState.OK, f"{place.kind}: {parts}")


def _check_limit(place: ProcessEnvironment) -> Finding:
    """Check whether the driver limits the memory, too."""
    try:
        limit = memory_limit.load((place.quota.parent / names.LIMIT_FILE).read_bytes())
    except FileNotFoundError:
        return Finding(CheckState.OK, "none: the shim alone limits the memory")
    except (OSError, errors.DataError) as exc:
        return Finding(CheckState.LIMITED, f"cannot be read: {exc}")
    sizes = ", ".join(map(quantity.format_size, limit.sizes))
    if limit.why and limit.sizes:
        return Finding(
            CheckState.LIMITED,
            f"{sizes}, {limit.why}",
            "the driver refuses what the quota allows, or allows what the shim alone refuses",
        )
    if limit.why or not limit.sizes:
        return Finding(
            CheckState.LIMITED,
            f"none: {limit.why or 'it was not set'}",
            "the shim alone limits the memory; docs/enforced.md has the driver's requirements",
        )
    return Finding(CheckState.OK, f"{sizes}: the driver limits the memory, too")


def _vcore(limits: region.DeviceLimits) -> str:
    if limits.policy is quota.TimePolicy.ELASTIC:
        return f"{limits.vcore}-{limits.vcore_limit}"
    return str(limits.vcore)


def _check_library(place: ProcessEnvironment) -> Finding:
    """Check that a program loads the shim, or the driver for whole devices."""
    if place.library is None:
        return Finding(
            CheckState.MISSING,
            f"a program finds none: {place.problem}",
            "its image has another C library than glibc, or LD_LIBRARY_PATH leads to a broken "
            "driver: remove that folder",
        )
    soname = elf.read_elf(place.library).soname
    if place.kind is EnvironmentKind.WHOLE:
        return Finding(CheckState.OK, f"{place.library}: the driver")
    if soname == names.SHIM_FILE:
        return Finding(CheckState.OK, f"{place.library}: the shim")
    return Finding(
        CheckState.MISSING,
        f"{place.library} is another driver, which does not enforce a quota",
        "LD_LIBRARY_PATH, LD_PRELOAD or the image's ld.so.cache leads there first: remove it",
    )


def _check_nodes(environment: Mapping[str, str], count: int | None) -> Finding:
    if names.SIMULATED_MACHINE_VARIABLE in environment:
        return Finding(CheckState.OK, "a simulated device needs none")
    found = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    said = ", ".join(found) or "none"
    if not found or (count is not None and len(found) < count):
        return Finding(
            CheckState.MISSING,
            f"{said} in /dev",
            "the container runtime must support CDI, or the agent needs --no-require-cdi: "
            "docs/agent.md",
        )
    if count is not None and len(found) > count:
        return Finding(
            CheckState.LIMITED,
            f"{said}: more than the {count} of the quota",
            "the container is privileged, or its runtime works without CDI: a program that uses "
            "devices without the driver's libraries is not limited",
        )
    return Finding(CheckState.OK, said)


def _check_clock(place: ProcessEnvironment, limits: region.DeviceLimits) -> Finding:
    if proof.allowed(limits) >= 100:
        return Finding(CheckState.OK, "none is needed without a share of time")
    if arbiter.serves(place.clock):
        return Finding(CheckState.OK, "running")
    return Finding(
        CheckState.LIMITED,
        f"{place.clock}: stopped, or missing",
        f"restart the agent of the node, or the run; {machine_checks.WITHOUT_ARBITER}",
    )
