"""The parts of a run beside its program: the driver, the reservation, the file tree, the threads.

`pyvgpu run` starts a program with them, `pyvgpu cdi` a container engine; pyvgpu.slurm keeps them
for the steps of a job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import device, errors, log, names, nvml, quota, shim
from pyvgpu.machine import arbiter, holders, mps_daemon, quota_socket, reservations
from pyvgpu.run import (
    checkpoint_calls,
    context_overhead,
    janitor,
    mount_namespace,
    mps_run,
    oversubscriber,
    run_auditor,
    run_files,
    run_limit,
    supervisor,
    suspend_socket,
    suspender,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyvgpu.machine import mps_limits
    from pyvgpu.volumes.find import Driver
    from pyvgpu.volumes.mirror_store import Progress


@dataclasses.dataclass(frozen=True, slots=True)
class Base:
    """The driver of a run, NVIDIA's or simulated, and its devices."""

    driver: Driver
    devices: tuple[device.Device, ...]
    machine: Path | None


@dataclasses.dataclass(frozen=True, slots=True)
class RunPlan:
    """A run to set up."""

    base: Base
    source: run_files.RunSource
    cache: Path
    request: holders.RunRequest
    holder: holders.Holder
    command: Sequence[str] = ()  # names a holder without a name
    files: tuple[Path, ...] = ()  # to be removed after the run
    after_poll: Callable[[Path], None] = lambda _folder: None  # after each check of the arbiter
    user: int | None = None  # uid of the processes, if it is not our own
    oversubscription: oversubscriber.OversubscribeRequest | None = None


@dataclasses.dataclass(slots=True)
class _Current:
    """A run's reservation, which `pyvgpu set` changes."""

    made: holders.OwnReservation


@dataclasses.dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is set up."""

    made: holders.OwnReservation
    tree: Path
    limit: run_limit.RunLimit
    change: Callable[[quota.QuotaChange], holders.ChangedReservation]
    ensure_arbiter: Callable[[], None]
    start_threads: Callable[[], None]  # after the last fork
    variables: Mapping[str, str]  # environment of its programs, beside the driver's
    mover: oversubscriber.Oversubscriber | None = None
    before_kill: Callable[[int], None] = lambda _: None  # called with the pid of a program


def find_base(simulate: str | None, driver_libraries: str | None) -> Base:
    """Return the installed driver, or the simulated one of the machine *simulate*."""
    from pyvgpu.volumes import find

    if driver_libraries == "":
        raise errors.UsageError(
            "--driver-libraries '': must name a folder, such as /usr/lib/wsl/lib"
        )
    if simulate is None:
        given = driver_libraries
        driver = find.find_driver(None if given is None else Path(given))
        return Base(driver, device.installed(driver.libnvidia_ml), None)
    if driver_libraries is not None:
        raise errors.UsageError(
            "--simulate and --driver-libraries: a run has one driver, so give one of them"
        )
    from pyvgpu.simulation import simulator

    machine = simulator.open_machine(simulate)
    driver = find.find_driver(shim.simulator_libraries())
    return Base(driver, device.simulated(machine), machine.folder)


def measured(
    base: Base, devices: tuple[device.Device, ...], cache: Path
) -> tuple[device.Device, ...]:
    """Return *devices* with their context overhead; a simulated machine specifies it."""
    if base.machine is not None:
        return devices
    return context_overhead.with_measured(devices, base.driver, cache, log.say)


def mirror(base: Base, cache: Path, report: Progress | None = None) -> run_files.RunSource:
    """Return the mirror of the driver in *cache*, copied if it is not there yet."""
    from pyvgpu.volumes import mirror as mirrors

    made = mirrors.ensure(base.driver, shim.shim_library(), cache, report)
    return run_files.RunSource(made.lib64, made.origin, base.machine)


def variables(base: Base) -> dict[str, str]:
    """Return the environment variables that the driver needs: a simulated one's machine."""
    if base.machine is None:
        return {}
    return {names.SIMULATED_MACHINE_VARIABLE: str(base.machine)}


def supervise(
    run: OpenRun, program: supervisor.RunProgram, inherited: supervisor.Inherited
) -> int:
    """Run *program*, in the run's cgroup if it has one and may; return its wait status."""
    program = dataclasses.replace(program, cgroup=run.limit.cgroup)
    try:
        return supervisor.supervise(program, inherited, run.start_threads, run.before_kill)
    except supervisor.CgroupError as exc:
        run.limit.give_up(str(exc))
        bare = dataclasses.replace(program, cgroup=None)
        return supervisor.supervise(bare, inherited, run.start_threads, run.before_kill)


@contextlib.contextmanager
def nvml_session(base: Base) -> Iterator[None]:
    """Open a session with the driver's own NVML; UnavailableError if it does not start."""
    import pynvml

    os.environ.update(variables(base))
    try:
        with nvml.session(base.driver.libnvidia_ml):
            yield
    except (OSError, pynvml.NVMLError) as exc:
        raise errors.UnavailableError(f"NVML in {base.driver.folder}: {exc}") from exc


@contextlib.contextmanager
def opened(plan: RunPlan) -> Iterator[OpenRun]:
    """Reserve, create the file tree and start the janitor; undo all that at the end."""
    registries = reservations.Registries()
    base = plan.base
    run_files.sweep(plan.cache, registries)
    suspender.end_unsupervised(registries.live())
    mps_daemon.end_unused(registries)
    request = mps_run.usable(plan.request, functools.partial(_mps_facts, base))
    made = _reserve(registries, dataclasses.replace(plan, request=request))
    try:
        if plan.user is not None:
            os.chown(made.folder / names.USAGE_FILE, plan.user, -1, follow_symlinks=False)
        mps = mps_run.prepare(
            base.driver.libcuda,
            variables(base),
            made,
            registries,
            functools.partial(_mps_facts, base),
        )
        run_tree, lock = run_files.make(plan.cache, made.run_id, plan.source, made.folder)
    except BaseException:
        os.close(made.quota)
        registries.forget(made.folder)
        raise
    watcher = run_auditor.RunAuditor(_audited(base, made))
    attendant = arbiter.Attendant(
        registries,
        made.folder,
        made.quota,
        _nvml(base),
        functools.partial(plan.after_poll, made.folder),
    )
    limit = run_limit.RunLimit(
        base.driver.libnvidia_ml, base.machine, made.folder, made.share.device.uuid
    )
    current = _Current(made)
    change = _changer(registries, current, limit)
    asked = plan.oversubscription
    mover = (
        None if asked is None else oversubscriber.Oversubscriber(registries, lambda: current.made)
    )
    worker = suspender.Suspender(
        registries,
        lambda: current.made,
        _checkpoint_driver(base),
        *(() if mover is None else (mover.note, mover.take_over)),
    )
    steward = quota_socket.QuotaControl(made.folder, change, suspend_socket.answerer(worker))
    if plan.user is None:
        limit.begin(made.share.vmemory, {reservation.run_id for reservation in registries.live()})
    leavings = janitor.Leavings(
        registries, made.folder, run_tree, lock, limit.cgroup, plan.files, mps.daemon
    )
    keeper = janitor.start(leavings)

    def start_threads() -> None:
        watcher.start()
        attendant.start()
        mps.start()
        try:
            steward.start()
        except OSError as exc:
            log.say(f"`pyvgpu set` cannot change this run: {exc.strerror}")
        if mover is not None:
            mover.start(worker)

    try:
        mps.ensure()
        yield OpenRun(
            made,
            run_tree,
            limit,
            change,
            attendant.poll,
            start_threads,
            mps.variables,
            mover,
            mps.before_kill,
        )
    finally:
        mps.stop()
        if mover is not None:
            mover.stop()
        worker.stop()
        steward.stop()  # it tells the worker's last report
        attendant.stop()
        watcher.stop()
        os.close(made.quota)  # this closes the region
        keeper.wait_detached()
        limit.end()
        with contextlib.suppress(errors.PyVgpuError):  # then the janitor cleans up
            if registries.forget(made.folder):
                run_files.remove(run_tree)
                for file in plan.files:
                    file.unlink(missing_ok=True)
                mps.end()
                keeper.dismiss()


def _mps_facts(base: Base, uuid: str) -> mps_limits.DeviceFacts:
    with nvml_session(base):
        return mps_run.read_facts(uuid)


def overlays(
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


def _reserve(registries: reservations.Registries, plan: RunPlan) -> holders.OwnReservation:
    asked = plan.oversubscription
    if asked is None:
        return registries.reserve(plan.request, plan.holder, plan.command)
    with checkpoint_calls.Calls(_checkpoint_driver(plan.base)) as calls:
        calls.check_offered()
    whole = tuple(device for device in plan.request.devices if device.instance is None)
    if not whole:
        raise errors.UnavailableError(
            f"--oversubscribe: {plan.request.devices[0].label} is a MIG device, whose memory the "
            "driver cannot move"
        )
    request = dataclasses.replace(plan.request, devices=whole)
    return registries.reserve_oversubscribed(request, plan.holder, plan.command, asked.wanted)


def _audited(base: Base, made: holders.OwnReservation) -> run_auditor.Audited:
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
    registries: reservations.Registries, current: _Current, limit: run_limit.RunLimit
) -> Callable[[quota.QuotaChange], holders.ChangedReservation]:
    """Return a function that changes the run's reservation."""

    def change(wanted: quota.QuotaChange) -> holders.ChangedReservation:
        if wanted.vmemory is not None and wanted.vmemory > current.made.share.vmemory:
            limit.change(wanted.vmemory)  # raise the driver's limit before the shim's
        try:
            changed = registries.change(current.made, wanted)
            current.made = changed.made
        finally:
            limit.change(current.made.share.vmemory)
        return changed

    return change


def _checkpoint_driver(base: Base) -> checkpoint_calls.CheckpointDriver:
    driver = base.driver
    return checkpoint_calls.CheckpointDriver(
        driver.libcuda, driver.libnvidia_ml, base.machine, driver.release
    )
