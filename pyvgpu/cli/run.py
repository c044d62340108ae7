"""`pyvgpu run`: run a program with a share of a device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import device, errors, log, names, quantity, quota, shim
from pyvgpu.cli import limits
from pyvgpu.machine import arbiter, holders, quota_socket, reservations
from pyvgpu.run import (
    context_overhead,
    janitor,
    loader_check,
    mount_namespace,
    run_auditor,
    run_files,
    run_limit,
    supervisor,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu.share import Share
    from pyvgpu.volumes.find import Driver

_DESCRIPTION = """\
Run COMMAND with a share of one device. CUDA and NVML show COMMAND only that share, and an
allocation over it fails as on a full device. Options after COMMAND are COMMAND's.

The default of --vmemory is vcore percent of the device's memory; without both options it is the
whole device. The exit code is COMMAND's own; our own errors are 64 to 78, 126 if COMMAND cannot be
executed and 127 if it does not exist.
"""
_EXAMPLES = """\
examples:
  pyvgpu run --vmemory 8GiB -- python train.py
  pyvgpu run --vcore 30 --name eval -- ./evaluate --batch 8
  pyvgpu run --simulate h100 --vmemory 2GiB -- python train.py     (no GPU needed)
  pyvgpu run --device 1 --vmemory 4Gi nvidia-smi
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Base:
    """The driver of a run, NVIDIA's or simulated, and its devices."""

    driver: Driver
    devices: tuple[device.Device, ...]
    machine: Path | None


@dataclasses.dataclass(frozen=True, slots=True)
class RunPlan:
    """A run, before it has a share."""

    base: Base
    cache: Path
    source: run_files.RunSource
    wish: holders.RunRequest
    name: str  # empty: derived from the command
    program: str  # the file to execute
    command: list[str]  # its argv


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run's program needs beside its share."""

    environment: Mapping[str, str]
    overlays: tuple[mount_namespace.Overlay, ...] = ()
    files: tuple[Path, ...] = ()  # to be removed after the run
    after_look: Callable[[], None] = lambda: None  # called after each check of the arbiter
    begin: Callable[[], None] = lambda: None  # called when the files will surely be removed


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu run`."""
    parser.usage = "pyvgpu run [options] [--] COMMAND [ARGUMENT ...]"
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add_quota(parser)
    add(
        "--name",
        help="the run's name, unique among your runs (derived from COMMAND or its script)",
    )
    add_simulate(parser)
    add(
        "--driver-libraries",
        metavar="DIR",
        help="the folder of libcuda.so.* and libnvidia-ml.so.*, if it is not a usual one",
    )
    add(
        "--no-namespace",
        action="store_true",
        help="create no private mount namespace: setuid programs work, but programs that open "
        "the driver by an absolute path are not held to the quota",
    )
    parser.add_argument("command", nargs="...", metavar="COMMAND", help="the program to run")


def add_quota(parser: argparse.ArgumentParser) -> None:
    """Add the options of a quota and its device."""
    add = parser.add_argument
    add(
        "--vcore",
        metavar="N",
        help="percent of the device's time, 1 to 100 (no limit, no guarantee)",
    )
    add(
        "--vmemory",
        metavar="SIZE",
        help="device memory, such as 4GiB or 512Mi; 8G is 8 * 10^9 bytes",
    )
    add("--device", metavar="UUID|INDEX", help="the device (the first with room)")
    add(
        "--policy",
        default="hard",
        metavar="hard|elastic",
        help="hard: never above vcore; elastic: more while the device is otherwise idle (hard)",
    )
    add(
        "--vcore-limit",
        metavar="N",
        help="elastic: the most of the device's time it may reach, vcore to 100 (100)",
    )
    add(
        "--priority",
        metavar="low|normal|high",
        help="low: only time that others leave unused; high: served first when idle time is lent "
        f"(normal, or from {names.HAMI_PRIORITY_VARIABLE}: 0 is high, more is low)",
    )


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Add the option for a simulated machine."""
    parser.add_argument(
        "--simulate",
        metavar="MODEL[:COUNT]",
        help="use a simulated machine, such as h100, t4:2, h100,t4 or the file h200.machine",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command to its end and return its exit code."""
    asked = parse_quota(options, os.environ)
    command = words(options.command)
    if not command:
        raise errors.UsageError("no command is given, such as `pyvgpu run -- python train.py`")
    name = "" if options.name is None else holders.check_name(options.name, "--name")
    environment = dict(os.environ)
    loader_check.check_not_nested(environment)
    program = supervisor.find_program(command[0], environment)
    base = _find_base(options)
    loader_check.check_no_rival(
        Path(program), environment, (base.driver.libcuda, base.driver.libnvidia_ml)
    )
    cache = run_files.find_cache(environment)
    devices = device.select(base.devices, options.device)
    if base.machine is None:  # a simulated machine specifies its context overhead
        devices = context_overhead.with_measured(devices, base.driver, cache, log.say)
    source = _mirror(base, cache)

    def prepare(_made: holders.Made, run_tree: Path) -> Surroundings:
        overlays = () if options.no_namespace else _overlays(base, run_tree, source)
        return Surroundings(_environment(environment, run_tree, base.machine), overlays)

    wish = holders.RunRequest(asked, devices, base.driver.release)
    return execute(RunPlan(base, cache, source, wish, name, program, command), prepare)


def words(given: Sequence[str]) -> list[str]:
    """Return a command that may be preceded by ``--``."""
    return list(given[1:] if given[:1] == ["--"] else given)


def execute(plan: RunPlan, prepare: Callable[[holders.Made, Path], Surroundings]) -> int:
    """Reserve the share, run the command to its end, and return its exit code.

    *prepare* gets the reservation and the folder of the run's files.
    """
    base, cache = plan.base, plan.cache
    books = reservations.Books()
    with supervisor.signals_held() as inherited:
        run_files.sweep(cache, books)
        holder = holders.Holder(plan.name, plan.command[0], tree=str(cache / run_files.RUNS))
        made = books.promise(plan.wish, holder, plan.command)
        try:
            _tell(plan.wish.quota, made.share)
            run_tree, lock = run_files.make(cache, made.run_id, plan.source, made.folder)
        except BaseException:
            os.close(made.quota)
            books.forget(made.folder)
            raise
        try:
            surroundings = prepare(made, run_tree)
        except BaseException:
            os.close(made.quota)
            os.close(lock)
            books.forget(made.folder)
            run_files.remove(run_tree)
            raise
        watcher = run_auditor.Auditor(_audited(base, made))
        attendant = arbiter.Attendant(
            books, made.folder, made.quota, _nvml(base), surroundings.after_look
        )
        limit = run_limit.RunLimit(
            base.driver.libnvidia_ml, base.machine, made.folder, made.share.device.uuid
        )
        steward = quota_socket.Control(made.folder, _changer(books, made, limit))
        limit.begin(made.share.vmemory, {promise.run_id for promise in books.live()})
        leavings = janitor.Leavings(
            books, made.folder, run_tree, lock, limit.cgroup, surroundings.files
        )
        keeper = janitor.start(leavings)
        try:
            attendant.look()
            surroundings.begin()
            started = supervisor.RunProgram(
                plan.program,
                plan.command,
                surroundings.environment,
                surroundings.overlays,
                limit.cgroup,
            )
            threads = functools.partial(_start_threads, watcher, attendant, steward)
            try:
                status = supervisor.supervise(started, inherited, threads)
            except supervisor.CgroupError as exc:
                limit.give_up(str(exc))
                bare = dataclasses.replace(started, cgroup=None)
                status = supervisor.supervise(bare, inherited, threads)
        finally:
            steward.stop()
            attendant.stop()
            watcher.stop()
            os.close(made.quota)  # this closes the region
            keeper.wait_detached()
            limit.end()
            with contextlib.suppress(errors.PyVgpuError):  # then the janitor cleans up
                if books.forget(made.folder):
                    run_files.remove(run_tree)
                    for file in surroundings.files:
                        file.unlink(missing_ok=True)
                    keeper.dismiss()
    return supervisor.end_as(status)


def parse_quota(options: argparse.Namespace, environment: Mapping[str, str]) -> quota.Quota:
    """Return the quota of the options; UsageError if it is invalid."""
    given = dataclasses.asdict(limits.parse(options))
    theirs = environment.get(names.HAMI_PRIORITY_VARIABLE)
    if given["priority"] is None and theirs is not None:
        given["priority"] = quota.Priority.of_hami(theirs, names.HAMI_PRIORITY_VARIABLE)
    return quota.Quota(**{name: value for name, value in given.items() if value is not None})


def _find_base(options: argparse.Namespace) -> Base:
    from pyvgpu.volumes import find

    if options.driver_libraries == "":
        raise errors.UsageError(
            "--driver-libraries '': must name a folder, such as /usr/lib/wsl/lib"
        )
    if options.simulate is None:
        given = options.driver_libraries
        driver = find.find_driver(None if given is None else Path(given))
        return Base(driver, device.installed(driver.libnvidia_ml), None)
    if options.driver_libraries is not None:
        raise errors.UsageError(
            "--simulate and --driver-libraries: a run has one driver, so give one of them"
        )
    from pyvgpu.simulation import simulator

    machine = simulator.open_machine(options.simulate)
    driver = find.find_driver(shim.simulator_libraries())
    return Base(driver, device.simulated(machine), machine.folder)


def _mirror(base: Base, cache: Path) -> run_files.RunSource:
    from pyvgpu.cli import progress
    from pyvgpu.volumes import mirror

    with progress.copying("copying the driver's libraries") as report:
        made = mirror.ensure(base.driver, shim.shim_library(), cache, report)
    return run_files.RunSource(made.lib64, made.origin, base.machine)


def _overlays(
    base: Base, run_tree: Path, source: run_files.RunSource
) -> tuple[mount_namespace.Overlay, ...]:
    """Prepare an overlay for the driver's folder, and for each folder that links into it."""
    folder = base.driver.folder.resolve()
    files = (base.driver.libcuda.resolve(), base.driver.libnvidia_ml.resolve())
    shimmed = mount_namespace.shimmed_names(folder, files)
    layer = run_files.make_layer(run_tree, "layer", source, shimmed)
    overlays = [mount_namespace.Overlay(folder, layer)]
    for index, linking in enumerate(mount_namespace.link_folders(folder)):
        shimmed = mount_namespace.shimmed_names(linking, ())
        layer = run_files.make_layer(run_tree, f"layer-{index}", source, shimmed)
        overlays.append(mount_namespace.Overlay(linking, layer))
    return tuple(overlays)


def _audited(base: Base, made: holders.Made) -> run_auditor.Audited:
    return run_auditor.Audited(
        made.quota,
        made.folder / names.USAGE_FILE,
        (made.share.device,),
        base.driver.libnvidia_ml,
        base.machine,
    )


def _nvml(base: Base) -> arbiter.Nvml | None:
    """Return the NVML that lists other processes; None if its pids are of another namespace."""
    from pyvgpu.volumes import tree_users

    return arbiter.Nvml(base.driver.libnvidia_ml, base.machine) if tree_users.sees_all() else None


def _changer(
    books: reservations.Books, made: holders.Made, limit: run_limit.RunLimit
) -> Callable[[quota.QuotaChange], holders.Changed]:
    """Return a function that changes the run's reservation."""

    def change(wanted: quota.QuotaChange) -> holders.Changed:
        nonlocal made
        if wanted.vmemory is not None and wanted.vmemory > made.share.vmemory:
            limit.change(wanted.vmemory)  # raise the driver's limit before the shim's
        try:
            changed = books.change(made, wanted)
            made = changed.made
        finally:
            limit.change(made.share.vmemory)
        return changed

    return change


def _start_threads(
    watcher: run_auditor.Auditor, attendant: arbiter.Attendant, steward: quota_socket.Control
) -> None:
    watcher.start()
    attendant.start()
    try:
        steward.start()
    except OSError as exc:
        log.say(f"`pyvgpu set` cannot change this run: {exc.strerror}")


def _environment(
    environment: Mapping[str, str], run_tree: Path, machine: Path | None
) -> dict[str, str]:
    changed = dict(environment)
    behind = environment.get("LD_LIBRARY_PATH", "")
    changed["LD_LIBRARY_PATH"] = ":".join(filter(None, (str(run_tree / "lib64"), behind)))
    if machine is not None:
        changed[names.SIMULATED_MACHINE_VARIABLE] = str(machine)
    return changed


def _tell(asked: quota.Quota, given: Share) -> None:
    """Print a line for each default that was used."""
    size = quantity.format_size(given.vmemory)
    if asked.vmemory is None and asked.vcore is None:
        log.say(f"no quota is given: using all of {given.device.label}, {size}")
    elif asked.vmemory is None:
        log.say(
            f"--vmemory is not given: using {given.vcore} percent of {given.device.label}, {size}"
        )
