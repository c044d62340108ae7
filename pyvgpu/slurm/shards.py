"""The quota that shards of a GPU give a job, and what a step asks for. Pure."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, quantity, quota

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_SHARDS = 1 << 20  # of one GPU

_GRES = re.compile(r"\bName=shard\b.*?\bCount=(?P<count>[0-9]+)\b.*?\bFile=(?P<file>\S+)")
_MINOR = re.compile(r"[0-9]+$")


@dataclasses.dataclass(frozen=True, slots=True)
class StepRequest:
    """What one step of a job asks for on this node."""

    shards: int | None = None  # None: no shards
    minor: int | None = None  # of the GPU's device file; None without shards
    vcore: int | None = None  # percent; None: in proportion to the shards
    vmemory: int | None = None  # bytes; None: likewise

    @property
    def explicit(self) -> bool:
        """Whether it names values of its own."""
        return self.vcore is not None or self.vmemory is not None


@dataclasses.dataclass(frozen=True, slots=True)
class HeldShards:
    """The shards of a job that has a quota on this node, and the values that it asked for."""

    count: int
    total: int  # of the GPU
    minor: int  # of the GPU's device file
    vcore: int | None = None  # percent; None: in proportion to the shards
    vmemory: int | None = None  # bytes; None: likewise


@dataclasses.dataclass(frozen=True, slots=True)
class Entitlement:
    """The most that shards give."""

    vcore: int  # percent of the GPU's time
    vmemory: int  # bytes


def parse_request(
    shards: str | None, gpus: str | None, vcore: str | None, vmemory: str | None
) -> StepRequest:
    """Return the request of a step from Slurm's variables and the user's options; UsageError.

    *gpus* are the indices of its GPUs, such as "0".
    """
    count = minor = None
    if shards is not None:
        if not shards.isdecimal() or not 1 <= int(shards) <= MOST_SHARDS:
            raise errors.UsageError(
                f"SLURM_SHARDS_ON_NODE={shards}: must be a number of shards, such as 4"
            )
        count = int(shards)
        if gpus is None or not gpus.isdecimal():
            raise errors.UsageError(
                f"{count} shards of the GPUs {gpus or 'that Slurm did not name'}: shards must be "
                "of one GPU, such as --gres=shard:4 without MULTIPLE_SHARING_GRES_PJ"
            )
        minor = int(gpus)
    return StepRequest(
        count,
        minor,
        None if vcore is None else quantity.parse_vcore(vcore, "--vcore"),
        None if vmemory is None else quantity.parse_size(vmemory, "--vmemory"),
    )


def dump(request: StepRequest) -> dict[str, Any]:
    """Return *request* as a JSON document, for :func:`load`."""
    return dataclasses.asdict(request)


def load(found: Mapping[str, Any]) -> StepRequest:
    """Return the request in the output of :func:`dump`; DataError."""
    values = {field.name: found.get(field.name) for field in dataclasses.fields(StepRequest)}
    if any(value is not None and type(value) is not int for value in values.values()):
        raise errors.DataError(f"not a step's request: {found}")
    return StepRequest(**values)


def parse_gres(text: str) -> dict[int, int]:
    """Return the shards of each GPU, by the minor of its device file, from `slurmd -G`."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        if (gres := _GRES.search(line)) and (minor := _MINOR.search(gres["file"])):
            found[int(minor[0])] = found.get(int(minor[0]), 0) + int(gres["count"])
    return found


def of_device(found: Mapping[int, int], minor: int) -> int:
    """Return the shards of the GPU *minor*, from :func:`parse_gres`; UnavailableError."""
    if not found.get(minor):
        known = ", ".join(f"{gpu}: {count}" for gpu, count in sorted(found.items())) or "none"
        raise errors.UnavailableError(
            f"`slurmd -G` shows no shards of GPU {minor} (known: {known}): gres.conf must have "
            f"`Name=shard Count=8 File=/dev/nvidia{minor}`, or plugstack.conf shards-per-gpu=8"
        )
    return found[minor]


def entitled(shards: int, total: int, memory_bytes: int) -> Entitlement:
    """Return the part of *shards* of the *total* of a device with *memory_bytes*.

    vcore is rounded down to whole percent, vmemory to whole MiB: all shards together never exceed
    the device. UsageError if that is less than 1 percent, or more than the device.
    """
    if shards > total:
        raise errors.UsageError(
            f"{shards} shards: the GPU has {total}, so must be at most --gres=shard:{total}"
        )
    vcore = quantity.WHOLE_DEVICE * shards // total
    if vcore < 1:
        least = -(-total // quantity.WHOLE_DEVICE)
        raise errors.UsageError(
            f"{shards} of {total} shards: must be at least 1 percent of the GPU, such as "
            f"--gres=shard:{least}"
        )
    vmemory = memory_bytes
    if shards < total:
        vmemory = quantity.round_down(memory_bytes * shards // total)
    return Entitlement(vcore, vmemory)


def limited(held: HeldShards, most: Entitlement) -> quota.Quota:
    """Return the quota that *held* asks for within *most*; UsageError above it."""
    vcore, vmemory = held.vcore, held.vmemory
    if vcore is not None and vcore > most.vcore:
        raise errors.UsageError(
            f"--vcore {vcore}: must be at most {most.vcore}, the part of the job's shards, such "
            f"as --vcore {most.vcore}"
        )
    if vmemory is not None and vmemory > most.vmemory:
        size = quantity.format_exact(most.vmemory)
        raise errors.UsageError(
            f"--vmemory {quantity.format_exact(vmemory)}: must be at most {size}, the part of the "
            f"job's shards, such as --vmemory {size}"
        )
    return quota.Quota(
        most.vcore if vcore is None else vcore, most.vmemory if vmemory is None else vmemory
    )


def check_joins(request: StepRequest, held: HeldShards, job: int) -> None:
    """Refuse a step whose *request* contradicts what its job holds; UsageError.

    The steps of a job share one quota on a node.
    """
    if request.minor not in (None, held.minor):
        raise errors.UsageError(
            f"shards of GPU {request.minor}: the quota of job {job} on this node is of GPU "
            f"{held.minor}, and must be of one GPU, such as {held.minor}"
        )
    for option, given, kept in (
        ("--vcore", request.vcore, held.vcore),
        ("--vmemory", request.vmemory, held.vmemory),
    ):
        if given is not None and given != kept:
            shown = "the part of its shards" if kept is None else kept
            raise errors.UsageError(
                f"{option} {given}: the steps of job {job} share one quota on this node, with "
                f"{option} {shown}: give {option} to sbatch or salloc, such as sbatch "
                f"{option}={given}"
            )


def answer_lines(
    library_path: str, environment: Mapping[str, str], mounts: Sequence[Sequence[str]]
) -> list[str]:
    """Return the answer for the plugin: what it applies to each task.

    *mounts* are overlays: the folder, which is covered, is the last of each.
    """
    return [
        f"path {library_path}",
        *(f"env {name}\t{value}" for name, value in environment.items()),
        *("mount " + "\t".join(places) for places in mounts),
    ]
