"""`pyvgpu run`: run a program with a share of a device."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import device, errors, log, names, quantity, quota
from pyvgpu.cli import limits, oversubscribe_options
from pyvgpu.machine import holders
from pyvgpu.run import loader_check, run_files, run_setup, supervisor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.share import Share

_VISIBLE = "CUDA_VISIBLE_DEVICES"
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
  pyvgpu run --oversubscribe=3 --idle 600 --vmemory 20GiB -- jupyter lab
  pyvgpu run --sharing mps --vcore 50 -- python serve.py
"""


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
    add_sharing(parser)
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
    oversubscribe_options.add_options(parser)
    parser.add_argument("command", nargs="...", metavar="COMMAND", help="the program to run")


class _OneDevice(argparse.Action):
    """Stores a device, and refuses a second one: argparse would take the last one."""

    def __call__(
        self, _: object, options: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        """Set the option's value; UsageError if it has another one."""
        before = getattr(options, self.dest)
        if before not in (None, value):
            raise errors.UsageError(
                f"{option} {before} and {option} {value}: must be one device, so use several "
                f"runs, such as `pyvgpu run {option} {before} --vmemory 8GiB -- python train.py`"
            )
        setattr(options, self.dest, value)


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
    add(
        "--device",
        action=_OneDevice,
        metavar="UUID|INDEX",
        help="the device, or a MIG device, such as 0:1 (the first with room)",
    )
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


def add_sharing(parser: argparse.ArgumentParser) -> None:
    """Add the option for the means by which runs share a device."""
    parser.add_argument(
        "--sharing",
        default="quota",
        metavar="quota|mps",
        help="quota: vcore is device time; mps: vcore is SMs, and kernels of several runs run "
        "together, without isolation from each other's errors (quota)",
    )


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Add the option for a simulated machine."""
    parser.add_argument(
        "--simulate",
        metavar="MODEL[:COUNT]",
        help="use a simulated machine, such as h100, t4:2, h100,t4, h100:mig=3g.40gb+3g.40gb or "
        "the file h200.machine",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command to its end and return its exit code."""
    asked = parse_quota(options, os.environ, _sharing(options.sharing))
    oversubscription = oversubscribe_options.parse(options)
    command = words(options.command)
    if not command:
        raise errors.UsageError("no command is given, such as `pyvgpu run -- python train.py`")
    name = "" if options.name is None else holders.check_name(options.name, "--name")
    environment = dict(os.environ)
    loader_check.check_not_nested(environment)
    program = supervisor.find_program(command[0], environment)
    base = run_setup.find_base(options.simulate, options.driver_libraries)
    loader_check.check_no_rival(
        Path(program), environment, (base.driver.libcuda, base.driver.libnvidia_ml)
    )
    cache = run_files.find_cache(environment)
    devices = run_setup.measured(base, device.select(base.devices, options.device), cache)
    plan = run_setup.RunPlan(
        base,
        _mirror(base, cache),
        cache,
        holders.RunRequest(asked, devices, base.driver.release),
        holders.Holder(name, command[0], tree=str(cache / run_files.RUNS)),
        command,
        oversubscription=oversubscription,
    )
    with supervisor.signals_held() as inherited, run_setup.opened(plan) as opened:
        report_share(asked, opened.made.share)
        _report_hidden(environment, opened.made.share.device)
        number = None
        if opened.mover is not None and oversubscription is not None:
            number = opened.mover.wait_for_room(oversubscription.wait_seconds)
        opened.ensure_arbiter()
        if number is None:
            overlays = (
                () if options.no_namespace else run_setup.overlays(base, opened.tree, plan.source)
            )
            started = supervisor.RunProgram(
                program,
                command,
                {**_environment(environment, opened.tree, base), **opened.variables},
                overlays,
            )
            status = run_setup.supervise(opened, started, inherited)
        else:
            status = number  # of a signal
    return supervisor.end_as(status)


def words(given: Sequence[str]) -> list[str]:
    """Return a command that may be preceded by ``--``."""
    return list(given[1:] if given[:1] == ["--"] else given)


def _sharing(text: str) -> quota.Isolation:
    """Return the value of --sharing; a MIG device is chosen by --device."""
    valid = {"quota": quota.Isolation.QUOTA, "mps": quota.Isolation.MPS}
    if text not in valid:
        raise errors.UsageError(
            f"--sharing {text!r}: must be quota or mps, such as quota; a MIG device is chosen by "
            "--device MIG-..."
        )
    return valid[text]


def parse_quota(
    options: argparse.Namespace,
    environment: Mapping[str, str],
    isolation: quota.Isolation = quota.Isolation.QUOTA,
) -> quota.Quota:
    """Return the quota of the options; UsageError if it is invalid."""
    given = dataclasses.asdict(limits.parse(options))
    theirs = environment.get(names.HAMI_PRIORITY_VARIABLE)
    if given["priority"] is None and theirs is not None:
        given["priority"] = quota.Priority.of_hami(theirs, names.HAMI_PRIORITY_VARIABLE)
    return quota.Quota(
        **{name: value for name, value in given.items() if value is not None},
        isolation=isolation,
    )


def _mirror(base: run_setup.Base, cache: Path) -> run_files.RunSource:
    from pyvgpu.cli import progress

    with progress.copying("copying the driver's libraries") as report:
        return run_setup.mirror(base, cache, report)


def _environment(
    environment: Mapping[str, str], run_tree: Path, base: run_setup.Base
) -> dict[str, str]:
    behind = environment.get("LD_LIBRARY_PATH", "")
    path = ":".join(filter(None, (str(run_tree / "lib64"), behind)))
    return {**environment, "LD_LIBRARY_PATH": path, **run_setup.variables(base)}


def _report_hidden(environment: Mapping[str, str], given: device.Device) -> None:
    """Print a line if a variable of CUDA hides the run's only device from its programs."""
    visible = environment.get(_VISIBLE, "")
    first = visible.partition(",")[0].strip()
    if first.isdecimal() and int(first) > 0:
        remedy = f"choose a device by --device {first}"
    elif first.startswith(("GPU-", "MIG-")) and not given.uuid.startswith(first):
        remedy = f"choose it by --device {first}"
    else:
        return
    log.say(
        f"{_VISIBLE}={visible}: hides the run's device, whose index in the run is 0; unset it, "
        f"and {remedy}"
    )


def report_share(asked: quota.Quota, given: Share) -> None:
    """Print a line for each default that was used."""
    size = quantity.format_size(given.vmemory)
    if asked.vmemory is None and asked.vcore is None:
        log.say(f"no quota is given: using all of {given.device.label}, {size}")
    elif asked.vmemory is None:
        log.say(
            f"--vmemory is not given: using {given.vcore} percent of {given.device.label}, {size}"
        )
