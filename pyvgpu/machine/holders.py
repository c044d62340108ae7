"""Data types of the machine's reservations: the request of a run, and its holder.

Pure; ``admission`` chooses a device with room, ``reservations`` stores the reservations.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, quantity
from pyvgpu.machine import users

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu import oversubscription, quota, region, share
    from pyvgpu.device import Device
    from pyvgpu.machine import tenant_record

NAME_RULE = "lower-case letters, digits and hyphens between them, at most 63, such as train-1"

_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*|(ba|da|z|k)?sh|node|perl|ruby|torchrun|Rscript")
_WITH_VALUE = ("-X", "-W", "-r", "-o")  # options of interpreters that are two words
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """The run that holds a reservation; its memory is in the quota file."""

    name: str  # unique among the runs of its user; empty: derived from the command
    command: str
    vcore: int = 0  # requested percent of the device's time; 0: no guarantee
    device_name: str = ""
    pid: int = 0
    tree: str = ""  # folder of run trees
    created: float = 0.0  # seconds since the epoch


@dataclasses.dataclass(frozen=True, slots=True)
class LiveReservation:
    """One live reservation."""

    run_id: str
    folder: Path
    uid: int
    holder: Holder
    limits: region.QuotaLimits
    held: tuple[int, ...] | None = None  # bytes by device; None: the ledger cannot be read
    record: tenant_record.TenantRecord | None = None  # None: it is not oversubscribed

    @property
    def name(self) -> str:
        """The name by which the caller addresses the run."""
        return users.run_name(self.holder.name, self.uid)

    @property
    def reserved_vcore(self) -> int:
        """The percent of a device's time that no other run can reserve."""
        return 0 if self.limits.suspension.released else self.holder.vcore

    @property
    def reserved(self) -> tuple[int, ...]:
        """The bytes of each of its devices that no other run can reserve."""
        if self.limits.suspension.released:
            return (0,) * len(self.limits.devices)
        held = self.held or (None,) * len(self.limits.devices)
        return tuple(map(reserved_bytes, self.limits.devices, held))


@dataclasses.dataclass(frozen=True, slots=True)
class OwnReservation:
    """A new reservation: close *quota* to end it."""

    run_id: str
    folder: Path
    share: share.Share
    quota: int  # open descriptor, which holds the supervisor's lock


@dataclasses.dataclass(frozen=True, slots=True)
class ChangedReservation:
    """A reservation whose quota was changed."""

    made: OwnReservation
    requested_vcore: int  # percent; 0: no time was requested
    held: int | None  # bytes, read after the new quota was written; None: unknown


@dataclasses.dataclass(frozen=True, slots=True)
class RunRequest:
    """A run's request: the same quota on any one of the devices."""

    quota: quota.Quota
    devices: tuple[Device, ...]
    driver_release: str
    user: int = dataclasses.field(default_factory=os.geteuid)  # uid

    @property
    def vcore(self) -> int:
        """The reserved time: none if only memory was requested."""
        if self.quota.vcore is None and self.quota.vmemory is not None:
            return 0
        return quantity.WHOLE_DEVICE if self.quota.vcore is None else self.quota.vcore


@dataclasses.dataclass(frozen=True, slots=True)
class OversubscribedRequest:
    """A request that may exceed its device, together with the others."""

    ratio: float  # of all reservations to the device
    rules: oversubscription.MoveRules
    host_memory: int | None = None  # bytes that all suspended runs may take; None: no bound


def reserved_bytes(limits: region.DeviceLimits, held: int | None) -> int:
    """Return the bytes of a device that a run with *limits* reserves while it holds *held*.

    At least the quota: memory that a run holds beyond a lowered quota is not free until the run
    has freed it.
    """
    return max(limits.vmemory, min(held or 0, limits.memory_total))


def check_name(name: str, option: str) -> str:
    """Return *name* if it is a valid name of a run."""
    if not _NAME.fullmatch(name):
        raise errors.UsageError(f"{option} {name!r}: must be {NAME_RULE}")
    return name


def script(command: Sequence[str]) -> str:
    """Return the program that names a *command*: an interpreter's script or module, else itself.

    An interpreter's own options are skipped; for a script on the command line (`-c`) or standard
    input the interpreter's own name is used.
    """
    program, *arguments = command
    if not _INTERPRETER.fullmatch(Path(program).name):
        return program
    words = iter(arguments)
    for word in words:
        if word == "-m":
            return next(words, program)
        if word in ("-c", "-"):
            break
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return Path(word).stem or program
    return program


def derive_name(command: str) -> str:
    """Return a name derived from *command*, with a short random suffix."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(command).name.lower()).strip("-")[:40].strip("-")
    return f"{stem or 'run'}-{os.urandom(2).hex()}"


def parse_holder(raw: bytes, path: Path) -> Holder:
    """Parse the holder from the bytes of the file *path*; DataError if they are not valid."""
    try:
        found = json.loads(raw)
        holder = Holder(**{field.name: found[field.name] for field in dataclasses.fields(Holder)})
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise errors.DataError(f"{path}: is not a reservation: {exc}") from exc
    kinds = {field.name: str(field.type) for field in dataclasses.fields(Holder)}
    for name, kind in kinds.items():
        value = getattr(holder, name)
        if type(value).__name__ != kind or not str(value).isprintable():
            raise errors.DataError(f"{path}: {name} is not a plain {kind}")
    check_name(holder.name, str(path))
    if not 0 <= holder.vcore <= quantity.WHOLE_DEVICE or not math.isfinite(holder.created):
        raise errors.DataError(f"{path}: vcore or created is not valid")
    return holder
