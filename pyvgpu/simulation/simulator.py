"""Simulated machines: create, reuse, read and remove their folders.

A machine is a folder. Its ``machine.conf`` describes the hardware; this module writes it and the
simulated driver (``csrc/simulator/``) reads it. Everything else in the folder is the driver's own
state, created when first needed. UUIDs and PCI addresses are drawn once per folder and stay for
its life; the configuration of a machine that is in use never changes.

    machine = open_machine("h100:2,t4")
    machine.devices[0].uuid

For specifications see ``machines.describe``. The base folder is ``root`` if given, else the
environment variable PYVGPU_SIMULATED_MACHINES, else a private one of this user under /dev/shm (or
/tmp); it has one folder per specification.
A base folder that all users may write to gives machines that all users may use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import random
import shutil
import stat
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, locks, models
from pyvgpu.simulation import law as laws
from pyvgpu.simulation import machines, mig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MACHINE_VARIABLE = "PYVGPU_SIMULATED_MACHINE"  # read by the simulated driver: one machine
BASE_VARIABLE = "PYVGPU_SIMULATED_MACHINES"  # read here: the folder of machines
_FOLDER_RULE = f"{BASE_VARIABLE} names another, such as /dev/shm/machines"
DEVICES_PER_NUMA_NODE = 4
MODES = ("timed", "free")
POOLS = ("flat", "placed")
DRIVER_RELEASE = "999.1"
CUDA_VERSION = 13000
KERNEL_NS = 100_000

Law = laws.Law  # behaviour parameters of the devices and their driver
parse_machine = machines.parse_machine

_HEADING = "pyvgpu-machine 1"
_CONF = "machine.conf"
_LOCK = "machine.lock"
_FAULTS = "faults"
_FAULT_ARGUMENTS = {
    "call": (3,),
    "record": (0,),
    "lost": (1,),
    "mig": (1,),
    "compute_mode": (2,),
    "minor": (2,),
    "xid": (2, 4),
}


class MachineError(errors.DataError):
    """A machine folder is not valid."""


class MachineBusyError(errors.UnavailableError):
    """The machine is in use, and the request would change it under its processes."""


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """One device of a machine; the fields are the keys of ``machine.conf``."""

    model: str
    uuid: str
    pci: str  # domain:bus:device.function
    serial: str
    name: str
    memory_bytes: int  # available to CUDA programs
    reserved_bytes: int  # NVML's total minus memory_bytes
    context_bytes: int
    sm_count: int
    compute_capability: str
    sm_clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    memory_bandwidth: int  # bytes per second
    pcie_bandwidth: int  # bytes per second
    pcie_generation: int
    l2_bytes: int
    power_limit_mw: int
    numa_node: int
    nvlinks: int


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """A simulated machine, from its ``machine.conf``."""

    folder: Path
    devices: tuple[SimulatedDevice, ...]
    mode: str = "timed"  # free: kernels and copies take no time
    pools: str = "flat"  # placed: a pool grows unless a stream may use one free piece of it
    kernel_ns: int = KERNEL_NS  # duration of kernels that are neither built in nor named
    kernels: tuple[tuple[str, int], ...] = ()  # named kernels: duration of each, ns
    driver_release: str = DRIVER_RELEASE
    cuda_version: int = CUDA_VERSION
    law: Law = dataclasses.field(default_factory=Law)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise errors.UsageError(f"mode={self.mode!r}: must be {' or '.join(MODES)}")
        if self.pools not in POOLS:
            raise errors.UsageError(f"pools={self.pools!r}: must be {' or '.join(POOLS)}")
        for name, ns in (("kernel_ns", self.kernel_ns), *self.kernels):
            if ns < 0:
                raise errors.UsageError(f"{name}={ns}: must be 0 or more nanoseconds")
        for name in ("event_ns", "pool_chunk_ns"):
            if self.mode == "free" and (ns := getattr(self.law, name)):
                raise errors.UsageError(
                    f"{name}={ns}: must be 0 where mode=free, in which nothing takes time"
                )
        for name, _ in self.kernels:
            if not name or any(c.isspace() or c in "=#" for c in name):
                raise errors.UsageError(
                    f"kernel {name!r}: must be a kernel's entry name, such as vector_add"
                )

    @property
    def environment(self) -> dict[str, str]:
        """The environment variable that points the simulated driver to this machine."""
        return {MACHINE_VARIABLE: str(self.folder)}


def open_machine(
    spec: str,
    root: Path | None = None,
    *,
    mode: str = "timed",
    pools: str = "flat",
    kernel_ns: int = KERNEL_NS,
    kernels: Mapping[str, int] | None = None,
    law: Law | None = None,
    context_bytes: int | None = None,
) -> Machine:
    """Return the machine *spec* below *root*, created if it does not exist.

    For *spec* see ``machines.describe``; *law* overrides its own law. *context_bytes* is the
    memory of a context on each device. Without it, and without a law, an existing machine keeps
    its values.

    An idle machine is changed to the given settings; a machine in use must
    have them already, else MachineBusyError.
    """
    described = machines.describe(spec)
    wanted = described.models
    named = tuple(sorted((kernels or {}).items()))
    draft = Machine(
        Path(),
        (),
        mode=mode,
        pools=pools,
        kernel_ns=kernel_ns,
        kernels=named,
        law=law or described.law or Law(),
    )
    base = _base_folder() if root is None else root
    folder = base.absolute() / _folder_name(described)
    with _locked(folder):
        if (folder / _CONF).exists():
            machine = read_machine(folder)
            if [device.model for device in machine.devices] != [model.key for model in wanted]:
                raise MachineError(
                    f"{folder / _CONF}: it describes another machine than {spec!r}; remove the "
                    "folder, or name another base folder"
                )
            devices = _with_contexts(machine.devices, context_bytes)
            asked = dataclasses.replace(
                draft, folder=folder, devices=devices, law=law or described.law or machine.law
            )
            if machine == asked:
                return machine
            if in_use(folder):
                raise MachineBusyError(
                    f"{folder}: the machine is in use with mode={machine.mode} "
                    f"kernel_ns={machine.kernel_ns}; other settings need it idle, or another "
                    f"base folder in {BASE_VARIABLE}"
                )
        else:
            drawn = _draw_devices(wanted, dict(described.figures))
            devices = _with_contexts(drawn, context_bytes)
            asked = dataclasses.replace(draft, folder=folder, devices=devices)
        _write(folder, _CONF, _render(asked))
        if any(described.layouts) and not (folder / mig.FILE).exists():
            keys = [model.key for model in wanted]
            _write(folder, mig.FILE, mig.render(list(zip(keys, described.layouts, strict=True))))
        return asked


def read_machine(folder: Path) -> Machine:
    """Read the ``machine.conf`` in *folder*."""
    path = folder / _CONF
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise MachineError(f"{folder}: no {_CONF} in it, so it is not a machine folder") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise MachineError(f"{path}: cannot be read: {errors.reason_of(exc)}") from exc
    return _parse(folder, text)


def remove_machine(machine: Machine) -> None:
    """Remove the folder of *machine*; MachineBusyError if processes use it."""
    with _locked(machine.folder):
        if in_use(machine.folder):
            raise MachineBusyError(f"{machine.folder}: the machine is in use, so it stays")
        shutil.rmtree(machine.folder)


def set_faults(machine: Machine, *lines: str) -> None:
    """Set the faults that the machine injects from now on; without *lines* there are none.

    ``call NAME NTH CODE`` (NTH ``*``: every call), ``record``, ``lost DEVICE``, ``mig DEVICE``,
    ``compute_mode DEVICE MODE``, ``minor DEVICE NUMBER``, ``xid DEVICE NUMBER``, or of a MIG
    device ``xid DEVICE NUMBER GPU_INSTANCE COMPUTE_INSTANCE``.
    """
    for line in lines:
        words = line.split()
        arguments = _FAULT_ARGUMENTS.get(words[0] if words else "", ())
        if len(words) - 1 not in arguments or "\n" in line:
            raise errors.UsageError(
                f"fault {line!r}: must be 'call NAME NTH CODE', 'record', 'lost DEVICE', "
                "'mig DEVICE', 'compute_mode DEVICE MODE', 'minor DEVICE NUMBER' or "
                "'xid DEVICE NUMBER', such as 'call cuMemAlloc_v2 3 2'"
            )
    _write(machine.folder, _FAULTS, "".join(f"{line}\n" for line in lines))


def in_mig_mode(machine: Machine) -> frozenset[int]:
    """Return the indices of devices in MIG mode, also by the machine's faults."""
    enabled = mig_state(machine).enabled
    try:
        text = (machine.folder / _FAULTS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return enabled
    lines = (line.split() for line in text.splitlines())
    return enabled | frozenset(int(words[1]) for words in lines if words[:1] == ["mig"])


def mig_state(machine: Machine) -> mig.MachineState:
    """Return which devices are in MIG mode, and the instances; MachineError for a damaged file."""
    try:
        return mig.read(machine.folder, [found.model for found in machine.devices])
    except (OSError, ValueError, LookupError) as exc:
        raise MachineError(f"{machine.folder / mig.FILE}: cannot be read: {exc!r}") from exc


def in_use(folder: Path) -> bool:
    """Return whether a live process uses the machine.

    Such a process holds an OFD lock on one of the machine's files.
    """
    for path in folder.iterdir():
        if path.name in (_CONF, _LOCK, mig.FILE) or not path.is_file():
            continue
        with contextlib.suppress(FileNotFoundError, PermissionError), path.open("rb") as file:
            if locks.is_locked(file.fileno()):
                return True
    return False


def _folder_name(described: machines.Description) -> str:
    """Return a folder name that is safe in path lists, mount options and shells.

    A machine file has a separate folder for each of its past contents.
    """
    runs: list[tuple[str, int]] = []
    layouts = described.layouts or (None,) * len(described.models)
    for model, layout in zip(described.models, layouts, strict=True):
        key = model.key if layout is None else f"{model.key}_mig_{layout}"
        if runs and runs[-1][0] == key:
            runs[-1] = (key, runs[-1][1] + 1)
        else:
            runs.append((key, 1))
    name = "+".join(key if count == 1 else f"{key}_{count}" for key, count in runs)
    if described.law is None:
        return name
    content = repr((described.law, sorted(described.figures))).encode()
    return f"{name}-{hashlib.sha256(content).hexdigest()[:8]}"


def _base_folder() -> Path:
    named = os.environ.get(BASE_VARIABLE)
    if named:
        return Path(named)
    memory = Path("/dev/shm")  # noqa: S108 - a private folder below it, owner checked
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    parent = memory if usable else Path(tempfile.gettempdir())
    base = parent / f"pyvgpu-simulator-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise MachineError(
            f"{base}: it is not a folder of user {os.geteuid()}; remove it, or name another base "
            f"folder in {BASE_VARIABLE}"
        )
    return base


def _draw_devices(
    wanted: Sequence[models.Model], figures: Mapping[str, int]
) -> tuple[SimulatedDevice, ...]:
    """Give each device its own identity; like real drivers, devices are in PCI order.

    *figures* override the model's.
    """
    draw = random.SystemRandom()
    buses = sorted(draw.sample(range(1, 0xFE), len(wanted)))
    drawn = (
        SimulatedDevice(
            model=model.key,
            uuid=f"GPU-{uuid.uuid4()}",
            pci=f"0000:{buses[index]:02x}:00.0",
            serial=f"{draw.randrange(10**12, 10**13)}",
            name=f"pyvgpu simulated {model.title}",
            memory_bytes=model.memory_bytes,
            reserved_bytes=model.reserved_mib * models.MIB,
            context_bytes=model.context_mib * models.MIB,
            sm_count=model.sm_count,
            compute_capability=model.compute_capability,
            sm_clock_khz=model.sm_clock_mhz * 1000,
            memory_clock_khz=model.memory_clock_mhz * 1000,
            memory_bus_bits=model.memory_bus_bits,
            memory_bandwidth=model.memory_gbps * 10**9,
            pcie_bandwidth=model.pcie_bandwidth,
            pcie_generation=model.pcie_generation,
            l2_bytes=model.l2_mib * models.MIB,
            power_limit_mw=model.power_limit_w * 1000,
            numa_node=index // DEVICES_PER_NUMA_NODE,
            nvlinks=model.nvlinks,
        )
        for index, model in enumerate(wanted)
    )
    return tuple(dataclasses.replace(device, **figures) for device in drawn)  # type: ignore[arg-type]


def _with_contexts(
    devices: tuple[SimulatedDevice, ...], context_bytes: int | None
) -> tuple[SimulatedDevice, ...]:
    if context_bytes is None:
        return devices
    for device in devices:
        if not 0 <= context_bytes < device.memory_bytes:
            raise errors.UsageError(
                f"context_bytes={context_bytes}: must be from 0 to less than the device's memory, "
                f"{device.memory_bytes}, such as 545259520"
            )
    return tuple(
        dataclasses.replace(simulated_device, context_bytes=context_bytes)
        for simulated_device in devices
    )


def _render(machine: Machine) -> str:
    lines = [
        _HEADING,
        f"driver_release={machine.driver_release}",
        f"cuda_version={machine.cuda_version}",
        f"mode={machine.mode}",
        f"pools={machine.pools}",
        f"kernel_ns={machine.kernel_ns}",
        *(f"{key}={value}" for key, value in machine.law.render().items()),
        *(f"kernel.{name}={ns}" for name, ns in machine.kernels),
    ]
    for index, device in enumerate(machine.devices):
        lines.append(f"device={index}")
        lines += [f"{key}={value}" for key, value in dataclasses.asdict(device).items()]
        lines += [
            f"mig_profile.{profile.name}={profile.render()}"
            for profile in mig.profiles(device.model)
        ]
    return "\n".join([*lines, ""])


def _parse(folder: Path, text: str) -> Machine:
    path = folder / _CONF
    lines = text.splitlines()
    if not lines or lines[0] != _HEADING:
        raise MachineError(f"{path}: its first line must be {_HEADING!r}")
    general: dict[str, str] = {}
    devices: list[dict[str, str]] = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip() or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key:
            raise MachineError(f"{path}:{number}: {line!r} must be key=value")
        if key == "device":
            if value != str(len(devices)) or len(devices) == machines.MAXIMUM_DEVICES:
                raise MachineError(
                    f"{path}:{number}: device={value}: devices count from 0 to at most "
                    f"{machines.MAXIMUM_DEVICES - 1}, in order"
                )
            devices.append({})
        else:
            (devices[-1] if devices else general)[key] = value
    if not devices:
        raise MachineError(
            f"{path}: it has no device; a machine has 1 to {machines.MAXIMUM_DEVICES}"
        )
    named = {key[7:]: value for key, value in general.items() if key.startswith("kernel.")}
    try:
        return Machine(
            folder=folder,
            devices=tuple(_parse_device(fields) for fields in devices),
            mode=general["mode"],
            pools=general.get("pools", "flat"),
            kernel_ns=int(general["kernel_ns"]),
            kernels=tuple(sorted((name, int(ns)) for name, ns in named.items())),
            driver_release=general["driver_release"],
            cuda_version=int(general["cuda_version"]),
            law=laws.parse(general),
        )
    except KeyError as exc:
        raise MachineError(f"{path}: the key {exc.args[0]} is missing") from exc
    except (ValueError, errors.UsageError) as exc:
        raise MachineError(f"{path}: {exc}") from exc


def _parse_device(fields: Mapping[str, str]) -> SimulatedDevice:
    # Keys that hand-written files may omit, because the C side does not need them.
    optional = {
        "model": "", "serial": "", "reserved_bytes": "0", "pcie_generation": "4", "nvlinks": "0",
    }  # fmt: skip
    complete = {**optional, **fields}
    values: dict[str, object] = {}
    for field in dataclasses.fields(SimulatedDevice):
        value = complete[field.name]
        values[field.name] = int(value) if field.type == "int" else value
    return SimulatedDevice(**values)  # type: ignore[arg-type]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the machine's lock; its folder is created if it is missing."""
    while True:
        _make_folder(folder)
        path = folder / _LOCK
        try:
            descriptor = _open_shared(path)
        except FileNotFoundError:
            continue  # remove_machine has removed the folder in between
        except OSError as exc:
            raise errors.of_files(f"{path}: cannot be opened", exc) from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _open_shared(path: Path) -> int:
    """Open *path* for writing; create it if it is missing, with a mode that fits the folder.

    Creation is a separate step: in a sticky folder the kernel denies O_CREAT on another user's
    file (fs.protected_regular), although opening it is allowed.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            os.fchmod(descriptor, _file_mode(path.parent))
            return descriptor


def _make_folder(folder: Path) -> None:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            # Not sticky: a process that reaps a dead one removes its files, of any owner.
            folder.chmod(0o777 if folder.parent.stat().st_mode & stat.S_IWOTH else 0o700)
    except OSError as exc:
        raise errors.of_files(
            f"{folder}: the folder cannot be created", exc, _FOLDER_RULE
        ) from exc


def _file_mode(folder: Path) -> int:
    return 0o666 if folder.stat().st_mode & stat.S_IWOTH else 0o600


def _write(folder: Path, name: str, text: str) -> None:
    """Write a file in the folder atomically, so that no process reads half of it."""
    temporary = folder / f".{name}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(_file_mode(folder))
        temporary.replace(folder / name)
    except OSError as exc:
        raise errors.of_files(f"{folder / name}: cannot be written", exc) from exc
    finally:
        with contextlib.suppress(OSError):  # its folder may be none
            temporary.unlink()
