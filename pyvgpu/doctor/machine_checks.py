"""Checks of the requirements of `pyvgpu run` on a machine.

A check examines one thing and returns a :class:`Finding`; checks change nothing, except that one
creates the cache folder. A check's ``need`` says which runs depend on it, and :func:`evaluate`
combines them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, models, names, shim
from pyvgpu.controller.scheduler import config_check
from pyvgpu.doctor import check_results
from pyvgpu.doctor.check_results import CheckResult, CheckState, Finding
from pyvgpu.kube import yaml_file
from pyvgpu.machine import arbiter, reservations, users
from pyvgpu.run import abilities, run_files
from pyvgpu.volumes import catalogue, elf, find, link_or_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

NVML_SECONDS = 20  # a device that hangs must not hang the doctor
OLDEST_GLIBC = (2, 17)  # the newest version that the shim may require
_PREBUILT = "rebuild it: make build (or pip install --force-reinstall pyvgpu)"


class Requirement(enum.Enum):
    """The runs that are impossible if the thing is missing."""

    EVERY_RUN = enum.auto()
    REAL_DEVICES = enum.auto()  # runs without --simulate
    SIMULATION = enum.auto()  # runs with --simulate
    NONE = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedMachine:
    """The subject of the checks: this machine, with the user's environment and options."""

    environment: Mapping[str, str]
    driver_libraries: Path | None = None
    module: Path = Path("/proc/driver/nvidia/version")  # of the kernel module
    scheduler_config: Path | None = None  # of kube-scheduler; None: not checked

    def driver(self) -> find.Driver:
        """Return the machine's driver; raises like :func:`pyvgpu.volumes.find.find_driver`."""
        return find.find_driver(self.driver_libraries)

    def cache(self) -> Path:
        """Return the folder of mirrors."""
        return run_files.find_cache(self.environment)


@dataclasses.dataclass(frozen=True, slots=True)
class MachineCheck:
    """One check."""

    name: str
    run: Callable[[CheckedMachine], Finding]
    need: Requirement


@dataclasses.dataclass(frozen=True, slots=True)
class PossibleRuns:
    """Which kinds of run are possible."""

    real: bool  # on the machine's own devices
    simulated: bool


def examine(scene: CheckedMachine) -> tuple[CheckResult, ...]:
    """Run all checks, in the order of the table; an error of a check is a finding, too."""
    rows = []
    for check in CHECKS if scene.scheduler_config is None else (*CHECKS, KUBE_SCHEDULER):
        rows.append(check_results.row(check.name, functools.partial(check.run, scene)))
    return tuple(rows)


def evaluate(rows: Iterable[CheckResult]) -> PossibleRuns:
    """Return which runs are possible with these *rows*."""
    unmet = {row.check for row in rows if row.state in (CheckState.MISSING, CheckState.SKIPPED)}
    lacking = {check.need for check in CHECKS if check.name in unmet}
    return PossibleRuns(
        real=not lacking & {Requirement.EVERY_RUN, Requirement.REAL_DEVICES},
        simulated=not lacking & {Requirement.EVERY_RUN, Requirement.SIMULATION},
    )


def _check_system(_: CheckedMachine) -> Finding:
    found = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() == "Linux" and platform.machine() in catalogue.MACHINES:
        return Finding(CheckState.OK, found)
    known = " or ".join(catalogue.MACHINES)
    return Finding(CheckState.MISSING, found, f"pyvgpu runs on Linux, on {known}")


def _check_driver(scene: CheckedMachine) -> Finding:
    try:
        driver = scene.driver()
    except find.DriverMissingError as exc:
        return Finding(
            CheckState.MISSING,
            f"not found; searched {', '.join(exc.searched)}" if exc.searched else str(exc),
            "install NVIDIA's driver, name its folder with --driver-libraries, or use "
            "`pyvgpu run --simulate h100`",
        )
    found = (
        f"{driver.release} in {driver.folder} ({driver.found_by}), {len(driver.files)} libraries"
    )
    return Finding(CheckState.OK, found)


def _check_module(scene: CheckedMachine) -> Finding:
    """Check that the kernel module and the driver's libraries are of the same release."""
    try:
        release = scene.driver().release
    except errors.PyVgpuError:
        return Finding(CheckState.SKIPPED, "no driver to compare it with")
    try:
        text = scene.module.read_text(errors="replace")
    except OSError:
        return Finding(
            CheckState.LIMITED, "not loaded (or WSL, which has none)", "modprobe nvidia, or reboot"
        )
    loaded = re.search(r"\d+\.\d+(?:\.\d+)?", text)
    if loaded and loaded[0] != release:
        return Finding(
            CheckState.MISSING,
            f"{loaded[0]} is loaded, but the libraries are of {release}",
            "reboot, or load the new module, to finish the driver's upgrade",
        )
    return Finding(CheckState.OK, release)


def check_devices(scene: CheckedMachine) -> Finding:
    """List the devices by the driver's NVML."""
    try:
        library = scene.driver().libnvidia_ml
    except errors.PyVgpuError:
        return Finding(CheckState.SKIPPED, "no driver to query")
    script = (
        "import json, pathlib, sys; from pyvgpu import device; "
        "found = device.installed(pathlib.Path(sys.argv[1])); "
        "print(json.dumps([[d.mig, d.index, f'{d.name}, {d.memory_bytes >> 20} MiB, {d.uuid}'"
        " + (f', {p.sm_percent} % of device {p.gpu_index}' if (p := d.instance) else '')]"
        " for d in found]))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", script, str(library)],
            env={**os.environ, **scene.environment},
            capture_output=True,
            text=True,
            timeout=NVML_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding(
            CheckState.MISSING,
            f"NVML did not answer in {NVML_SECONDS} s",
            "look for Xid errors in the kernel's log (dmesg); the device may need a reset",
        )
    devices = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else []
    if not devices:
        problem = (done.stderr.strip().splitlines() or ["NVML lists no device"])[-1]
        return Finding(
            CheckState.MISSING,
            problem.rpartition("Error: ")[2],
            "load the kernel module (nvidia-smi does), give this user /dev/nvidia*, or use "
            "`pyvgpu run --simulate h100`",
        )
    text = "; ".join(
        f"{said}, in MIG mode without MIG devices" if mig else said for mig, _, said in devices
    )
    divided = [str(index) for mig, index, _ in devices if mig]
    if not divided:
        return Finding(CheckState.OK, text)
    return Finding(
        CheckState.MISSING if len(divided) == len(devices) else CheckState.LIMITED,
        text,
        "pyvgpu uses the MIG devices of a GPU in MIG mode; make some (nvidia-smi mig -cgi ID -C), "
        f"or make it a whole one again: nvidia-smi -i {','.join(divided)} -mig 0",
    )


def _check_simulator(_: CheckedMachine) -> Finding:
    driver = find.find_driver(shim.simulator_libraries())
    known = ", ".join(model.key for model in models.MODELS)
    return Finding(CheckState.OK, f"driver {driver.release}, models {known}")


def _check_shim(_: CheckedMachine) -> Finding:
    library = shim.shim_library()
    facts = elf.read_elf(library)
    hooks = len(elf.exported_functions(library))
    wanted = [soname for _, soname, _ in catalogue.REPLACED]
    wanted += [private for _, _, private in catalogue.REPLACED]
    if facts.soname != names.SHIM_FILE or list(facts.needed[: len(wanted)]) != wanted or not hooks:
        return Finding(
            CheckState.MISSING,
            f"{library}: SONAME {facts.soname}, needs {', '.join(facts.needed)}, {hooks} hooks",
            _PREBUILT,
        )
    return Finding(CheckState.OK, f"{hooks} hooks, {library}")


def _check_glibc(_: CheckedMachine) -> Finding:
    versions = [
        tuple(int(part) for part in found.groups())
        for version in elf.needed_versions(shim.shim_library())
        if (found := re.match(r"GLIBC_(\d+)\.(\d+)", version))
    ]
    newest = max(versions, default=OLDEST_GLIBC)
    text = "the shim runs on glibc {}.{} and later".format(*newest)
    if newest > OLDEST_GLIBC:
        oldest = "{}.{}".format(*OLDEST_GLIBC)
        return Finding(CheckState.LIMITED, text, f"a released build runs on {oldest} and later")
    return Finding(CheckState.OK, text)


def _able(found: str, state: CheckState, remedy: str, problem: str | None) -> Finding:
    return Finding(CheckState.OK, found) if problem is None else Finding(state, problem, remedy)


WITHOUT_ARBITER = "without it runs that share a device get less than their vcore, never more"
_WITHOUT_NAMESPACE = (
    "programs that open libcuda by an absolute path, or clear LD_LIBRARY_PATH, then have no limits"
)


def _check_namespaces(_: CheckedMachine) -> Finding:
    return _able(
        "allowed",
        CheckState.LIMITED,
        "allow user namespaces (sysctl user.max_user_namespaces, "
        "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a "
        f"container its seccomp profile; a chroot has none); {_WITHOUT_NAMESPACE}",
        abilities.private_mounts(),
    )


def _check_overlay(_: CheckedMachine) -> Finding:
    if abilities.private_mounts() is not None:
        return Finding(CheckState.LIMITED, "no mount namespace for it", _WITHOUT_NAMESPACE)
    return _able(
        "allowed",
        CheckState.LIMITED,
        "Linux 5.11 or later with overlayfs (modprobe overlay) lets every user mount one; "
        + _WITHOUT_NAMESPACE,
        abilities.overlay(),
    )


def _check_locks(_: CheckedMachine) -> Finding:
    return _able(
        "a mapping holds the lock, and munmap releases it",
        CheckState.MISSING,
        "needs Linux 3.15 or later, and a file system with OFD locks",
        abilities.lock_of_mapping(Path("/tmp")),  # noqa: S108 - where the reservations are
    )


def _check_cache(scene: CheckedMachine) -> Finding:
    cache = scene.cache()
    return _able(
        str(cache),
        CheckState.MISSING,
        "set XDG_CACHE_HOME to a folder whose file system is not mounted noexec",
        abilities.execution(cache),
    )


def _check_links(scene: CheckedMachine) -> Finding:
    """Check how the mirror would get the driver's files: by link or by copy."""
    try:
        driver = scene.driver()
    except errors.PyVgpuError:
        return Finding(CheckState.SKIPPED, "no driver to link to")
    cache = scene.cache()
    problem = abilities.hard_link(driver.libcuda, cache)
    if problem is None:
        return Finding(CheckState.OK, "the driver's files are linked, not copied")
    with (cache / f".doctor-{os.getpid()}").open("xb") as trial, driver.libcuda.open("rb") as file:
        Path(trial.name).unlink()
        if link_or_copy.reflink(file.fileno(), trial.fileno()):
            return Finding(CheckState.OK, "the driver's files share their blocks (reflink)")
    size = sum(file.path.stat().st_size for file in driver.files) >> 20
    return Finding(
        CheckState.LIMITED,
        f"no hard link ({problem}), no reflink: the first run copies {size} MiB",
        "run as the owner of the driver's files with a cache (XDG_CACHE_HOME) on their file "
        "system, or accept the copy",
    )


def _check_reservations(_: CheckedMachine) -> Finding:
    return Finding(
        CheckState.OK, f"{len(reservations.Registries().live())} active runs on this machine"
    )


def _check_arbiter(_: CheckedMachine) -> Finding:
    try:
        program = shim.arbiter_program()
    except errors.UnavailableError as exc:
        return Finding(CheckState.LIMITED, str(exc), f"{_PREBUILT}; {WITHOUT_ARBITER}")
    living = arbiter.find(reservations.Registries().paths)
    if not living:
        return Finding(
            CheckState.OK, f"none is running; the first run with a share of time starts {program}"
        )
    found = ", ".join(f"pid {one.pid} of user {users.name(one.uid)}" for one in living)
    if not any(one.beats for one in living):
        return Finding(
            CheckState.LIMITED,
            f"{found} is frozen",
            f"resume it (kill -CONT) or kill it; a run of its user replaces it; {WITHOUT_ARBITER}",
        )
    return Finding(CheckState.OK, f"{found} accounts the time of shared devices")


def _check_kube_scheduler(scene: CheckedMachine) -> Finding:
    if scene.scheduler_config is None:
        return Finding(CheckState.OK, "not checked")
    problems = config_check.check(yaml_file.read(scene.scheduler_config, "--scheduler-config"))
    if not problems:
        return Finding(CheckState.OK, "asks the extender about all nodes, and lets it bind")
    fatal = any(problem.fatal for problem in problems)
    return Finding(
        CheckState.MISSING if fatal else CheckState.LIMITED,
        "; ".join(problem.found for problem in problems),
        "; ".join(problem.remedy for problem in problems),
    )


CHECKS = (
    MachineCheck("system", _check_system, Requirement.EVERY_RUN),
    MachineCheck("driver", _check_driver, Requirement.REAL_DEVICES),
    MachineCheck("kernel module", _check_module, Requirement.REAL_DEVICES),
    MachineCheck("devices", check_devices, Requirement.REAL_DEVICES),
    MachineCheck("simulator", _check_simulator, Requirement.SIMULATION),
    MachineCheck("shim", _check_shim, Requirement.EVERY_RUN),
    MachineCheck("shim's glibc", _check_glibc, Requirement.NONE),
    MachineCheck("mount namespaces", _check_namespaces, Requirement.NONE),
    MachineCheck("overlay in them", _check_overlay, Requirement.NONE),
    MachineCheck("OFD locks", _check_locks, Requirement.EVERY_RUN),
    MachineCheck("cache folder", _check_cache, Requirement.EVERY_RUN),
    MachineCheck("links to the driver", _check_links, Requirement.NONE),
    MachineCheck("reservations", _check_reservations, Requirement.EVERY_RUN),
    MachineCheck("arbiter", _check_arbiter, Requirement.NONE),
)
KUBE_SCHEDULER = MachineCheck("kube-scheduler", _check_kube_scheduler, Requirement.NONE)
