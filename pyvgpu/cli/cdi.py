"""`pyvgpu cdi`: a quota for a container of Docker or Podman, as a CDI device."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import device, errors, log, names, shim
from pyvgpu.cli import progress
from pyvgpu.cli import run as runs
from pyvgpu.deviceplugin import agent_settings
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.deviceplugin.devices import node_driver, simulated_devices
from pyvgpu.machine import holders
from pyvgpu.run import loader_check, run_files, run_setup, supervisor
from pyvgpu.simulation import simulator
from pyvgpu.volumes import cdi, find, installation, mirror_plan, node_mirror, survey

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from pyvgpu.deviceplugin.containers.cdi_edits import NodeDriver

_MIRROR = "containers"  # in the cache
_STATE = "container-host"
_CLOCK_FOLDER = "clock"  # in the container's folder of a run
_HOLD = ["sleep", "infinity"]  # instead of a command
_DESCRIPTION = f"""\
Reserve a share of one device for a container, and write its CDI specification, with which Docker
or Podman gives it to a container: `--device {names.RUN_KIND}=NAME`. The quota lasts until COMMAND
has ended; without COMMAND until Ctrl-C or SIGTERM. `pyvgpu ps` lists it, and `pyvgpu set` changes
it meanwhile. Engines read specifications in /etc/cdi and /var/run/cdi.

With --devices there is no quota: the specification has the machine's whole devices, as
{names.MACHINE_KIND}=INDEX, UUID and all, and the command ends at once.
"""
_EXAMPLES = f"""\
examples:
  sudo env "PATH=$PATH" pyvgpu cdi --name train --vcore 30 --vmemory 8GiB \\
      --output /var/run/cdi/train.json -- \\
      podman run --rm --device {names.RUN_KIND}=train IMAGE python train.py
  sudo env "PATH=$PATH" pyvgpu cdi --name train --vmemory 8GiB --output /var/run/cdi/train.json
  pyvgpu cdi --simulate h100 --name try --vmemory 2GiB              (print it; no GPU needed)
  sudo env "PATH=$PATH" pyvgpu cdi --devices --output /etc/cdi/pyvgpu-devices.json
"""


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerHost:
    """The driver that containers get, and the machine's devices."""

    driver: NodeDriver
    base: run_setup.Base
    libraries: Path  # the mirror for shares


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerFiles:
    """Files of a run that a container gets: hard links to the run's own, in a folder apart.

        <reservation>/container/quota      mounted read-only, as /etc/pyvgpu
                               /usage      mounted writable, as /run/pyvgpu/usage
                               /clock/0    mounted read-only, as /run/pyvgpu-clock

    The folder has neither the run's socket nor its command line: a container must not change its
    own quota. The arbiter re-creates its clocks, so :meth:`link_clock` is called again and again.
    """

    reservation: Path  # the folder of the run's reservation

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.reservation / names.CONTAINER_FOLDER

    def make(self, *, any_user: bool = False) -> None:
        """Create the files; *any_user*: the container's programs may have another user's id."""
        (self.folder / _CLOCK_FOLDER).mkdir(mode=0o755, parents=True)
        for folder in (self.folder, self.folder / _CLOCK_FOLDER):
            folder.chmod(0o755)  # whatever the umask
        for name in (names.QUOTA_FILE, names.USAGE_FILE):
            (self.folder / name).hardlink_to(self.reservation / name)
        if any_user:
            (self.folder / names.USAGE_FILE).chmod(0o666)

    def link_clock(self) -> None:
        """Link the arbiter's current clock of the device, if there is one.

        Without it the container has its hard share.
        """
        place = self.folder / _CLOCK_FOLDER / "0"
        with contextlib.suppress(OSError):  # no clock yet, or in another file system
            clock = (self.reservation / f"{names.CLOCK_LINK}0").readlink()
            with contextlib.suppress(FileNotFoundError):
                if place.samefile(clock):
                    return
            draft = place.with_name(".0")
            draft.unlink(missing_ok=True)
            draft.hardlink_to(clock)
            draft.replace(place)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu cdi`."""
    parser.usage = "pyvgpu cdi [options] [--] [COMMAND [ARGUMENT ...]]"
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    runs.add_quota(parser)
    add("--name", help="the name of the run and of its CDI device (derived from COMMAND)")
    add(
        "--output",
        metavar="FILE",
        help="write the specification to FILE, which ends in .json, not to the output",
    )
    add(
        "--devices",
        action="store_true",
        help="the whole devices of the machine, without a quota or a reservation",
    )
    add(
        "--any-user",
        action="store_true",
        help="the container's programs run as another user than this command; every user of the "
        "machine can then write the usage file of the run",
    )
    runs.add_simulate(parser)
    parser.add_argument("command", nargs="...", metavar="COMMAND", help="the container engine")


def run(options: argparse.Namespace) -> int:
    """Write the specification, and hold the quota until the command has ended."""
    output = None if options.output is None else Path(options.output).absolute()
    if output is not None:
        cdi.check_name(output)
    command = runs.words(options.command)
    if options.devices:
        return _give_devices(options, command, output)
    environment = dict(os.environ)
    loader_check.check_not_nested(environment)
    asked = runs.parse_quota(options, environment)
    if asked.vcore is None and asked.vmemory is None:
        raise errors.UsageError(
            "no quota is given, such as `pyvgpu cdi --vmemory 8GiB`; for whole devices `pyvgpu "
            "cdi --devices`"
        )
    name = "" if options.name is None else holders.check_name(options.name, "--name")
    command = command or _HOLD
    program = supervisor.find_program(command[0], environment)
    cache = run_files.find_cache(environment)
    host = _find_host(options.simulate, cache)
    devices = device.select(host.base.devices, options.device)

    plan = run_setup.RunPlan(
        host.base,
        run_files.RunSource(
            host.libraries / mirror_plan.LIB64,
            host.libraries / mirror_plan.ORIGIN,
            host.base.machine,
        ),
        cache,
        holders.RunRequest(asked, devices, host.driver.release),
        holders.Holder(name, command[0], tree=str(cache / run_files.RUNS)),
        command,
        files=() if output is None else (output,),
        after_poll=_link_clock,
    )
    with supervisor.signals_held() as inherited, run_setup.opened(plan) as opened:
        made = opened.made
        runs.report_share(asked, made.share)
        files = ContainerFiles(made.folder)
        files.make(any_user=options.any_user)
        called = _name_of(made)
        uuid = made.share.device.uuid
        document = cdi_edits.held(names.RUN_KIND, called, uuid, files.folder, host.driver)
        opened.ensure_arbiter()
        _put(document, output)
        log.say(f"the quota is --device {names.RUN_KIND}={called}")
        started = supervisor.RunProgram(program, command, environment)
        status = run_setup.supervise(opened, started, inherited)
    return supervisor.end_as(status)


def _link_clock(reservation: Path) -> None:
    ContainerFiles(reservation).link_clock()


def _name_of(made: holders.OwnReservation) -> str:
    """Return the name that the reservation got."""
    file = made.folder / names.RESERVATION_FILE
    return holders.parse_holder(file.read_bytes(), file).name


def _give_devices(options: argparse.Namespace, command: list[str], output: Path | None) -> int:
    for given, what in (
        (options.vcore, "--vcore"),
        (options.vmemory, "--vmemory"),
        (options.name, "--name"),
        (command, "COMMAND"),
    ):
        if given:
            raise errors.UsageError(f"--devices and {what}: must not both be given")
    host = _find_host(options.simulate, run_files.find_cache(os.environ))
    chosen = device.select(host.base.devices, options.device)
    document = cdi_edits.whole_devices(names.MACHINE_KIND, chosen, host.driver)
    _put(document, output)
    if output is not None:
        log.say(f"wrote {output}: --device {names.MACHINE_KIND}=all, or an index or UUID")
    return 0


def _put(document: Mapping[str, Any], output: Path | None) -> None:
    """Write a specification to the file *output*, or print it."""
    if output is None:
        print(cdi.content(document).decode(), end="", flush=True)
    else:
        cdi.write(document, output)


def _find_host(simulate: str | None, cache: Path) -> ContainerHost:
    """Mirror the driver for containers below *cache*, and read the devices."""
    known = agent_settings.AgentSettings("", state=cache / _STATE, simulate=simulate or "")
    machine = None
    try:
        known.state.mkdir(parents=True, exist_ok=True)
        if simulate is not None:
            machine = simulator.open_machine(simulate).folder
            known = dataclasses.replace(known, driver_root=simulated_devices.install(known.state))
            os.environ[names.SIMULATED_MACHINE_VARIABLE] = str(machine)
    except OSError as exc:
        raise errors.of_files(f"{known.state}: cannot be filled", exc) from exc
    mirror = node_mirror.NodeMirror(cache / _MIRROR, shim.shim_library())
    with mirror.remembering(), progress.copying("copying the driver's libraries") as report:
        found = survey.find_installation(known.driver_root)
        tree = mirror.output / mirror.mirror(found, report).tree
    seen = node_driver.read(tree, found.release, known)
    driver = find.find_driver(tree / installation.EXCLUSIVE / mirror_plan.LIB64)
    base = run_setup.Base(driver, tuple(seen.driver.devices.values()), machine)
    return ContainerHost(seen.driver, base, tree / installation.SHARED)
