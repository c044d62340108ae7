"""MIG of simulated devices: NVIDIA's tables of profiles, and layouts of GPU instances.

The tables are for the simulator only; everything else asks NVML, since sizes differ between boards
and driver releases. A layout is a list of profiles, such as ``3g.40gb+2g.20gb+1g.10gb``; one of
``none`` is MIG mode without instances. :func:`plan` finds a placement for each.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

from pyvgpu import errors, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

FILE = "mig"  # of a machine's folder; csrc/simulator/mig.h has the format
EMPTY = "none"
COMPUTE_SLICES = 7


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceProfile:
    """A kind of GPU instance."""

    name: str
    number: int  # NVML_GPU_INSTANCE_PROFILE_*
    id: int  # by which it is created
    memory_mib: int
    sms: int
    slices: int  # of compute, of 7
    most: int  # instances
    size: int  # in memory slices
    copy_engines: int
    decoders: int
    jpegs: int
    ofas: int
    starts: tuple[int, ...]  # memory slices at which it may begin

    def render(self) -> str:
        """Return the profile as a value of ``machine.conf``."""
        figures = (
            self.number, self.id, self.memory_mib, self.sms, self.slices, self.most, self.size,
            self.copy_engines, self.decoders, self.jpegs, self.ofas,
        )  # fmt: skip
        return f"{' '.join(map(str, figures))} {','.join(map(str, self.starts))}"


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """A compute instance, which is a MIG device; it has all of its GPU instance or a part."""

    gpu: int  # index of the device
    gpu_instance: int
    compute_instance: int
    profile: str  # 1g.10gb, or 1c.3g.40gb for a part
    uuid: str  # MIG-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
    memory_bytes: int
    sm_count: int


@dataclasses.dataclass(frozen=True, slots=True)
class MachineState:
    """The MIG mode and the instances of a machine."""

    enabled: frozenset[int] = frozenset()  # indices of devices in MIG mode
    instances: tuple[Instance, ...] = ()


# fmt: off
# Of a device with 8 memory slices: NVML's number, id, compute slices, most, size, starts.
_SHAPES = (
    (0, 19, 1, 7, 1, (0, 1, 2, 3, 4, 5, 6)),
    (7, 20, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6)),  # +me
    (9, 15, 1, 4, 2, (0, 2, 4, 6)),
    (1, 14, 2, 3, 2, (0, 2, 4)),
    (2,  9, 3, 2, 4, (0, 4)),
    (3,  5, 4, 1, 4, (0,)),
    (4,  0, 7, 1, 8, (0,)),
)
# Copy engines, decoders, JPEG engines, OFA engines, in the same order.
_AMPERE = ((1, 0, 0, 0), (1, 1, 1, 1), (1, 1, 0, 0), (2, 1, 0, 0), (3, 2, 0, 0), (4, 2, 0, 0),
           (7, 5, 1, 1))
_HOPPER = ((1, 1, 1, 0), (1, 1, 1, 1), (1, 1, 1, 0), (2, 2, 2, 0), (3, 3, 3, 0), (4, 4, 4, 0),
           (8, 7, 7, 1))
# Name, MiB and multiprocessors, in the same order.
_FIGURES = {
    "a100": (_AMPERE, (
        ("1g.5gb", 4864, 14), ("1g.5gb+me", 4864, 14), ("1g.10gb", 9856, 14),
        ("2g.10gb", 9856, 28), ("3g.20gb", 19968, 42), ("4g.20gb", 19968, 56),
        ("7g.40gb", 40192, 98))),
    "a100-80g": (_AMPERE, (
        ("1g.10gb", 9728, 14), ("1g.10gb+me", 9728, 14), ("1g.20gb", 19968, 14),
        ("2g.20gb", 19968, 28), ("3g.40gb", 40192, 42), ("4g.40gb", 40192, 56),
        ("7g.80gb", 80896, 98))),
    "h100": (_HOPPER, (
        ("1g.10gb", 9984, 16), ("1g.10gb+me", 9984, 16), ("1g.20gb", 20096, 26),
        ("2g.20gb", 20096, 32), ("3g.40gb", 40448, 60), ("4g.40gb", 40448, 64),
        ("7g.80gb", 81152, 132))),
    "h200": (_HOPPER, (
        ("1g.18gb", 16384, 16), ("1g.18gb+me", 16384, 16), ("1g.35gb", 33024, 26),
        ("2g.35gb", 33024, 32), ("3g.71gb", 71168, 60), ("4g.71gb", 71168, 64),
        ("7g.141gb", 143360, 132))),
}
# fmt: on


def _rows(model: str) -> Iterator[InstanceProfile]:
    engines, figures = _FIGURES[model]
    for shape, own, (name, mib, sms) in zip(_SHAPES, engines, figures, strict=True):
        number, profile_id, slices, most, size, starts = shape
        yield InstanceProfile(name, number, profile_id, mib, sms, slices, most, size, *own, starts)


PROFILES: Mapping[str, tuple[InstanceProfile, ...]] = {
    model: tuple(_rows(model)) for model in _FIGURES
}


def profiles(model: str) -> tuple[InstanceProfile, ...]:
    """Return the profiles of a model, by its key; none for a model without MIG."""
    return PROFILES.get(model, ())


def plan(model: str, layout: str) -> tuple[tuple[InstanceProfile, int], ...]:
    """Return the profiles of *layout* with the memory slice at which each begins.

    Raises UsageError if the model has no MIG, or has no such profile, or they do not fit.
    """
    known = profiles(model)
    if not known:
        raise errors.UsageError(
            f"mig={layout}: the model {model} has no MIG; those that have it are "
            f"{', '.join(PROFILES)}, such as h100:mig=3g.40gb+3g.40gb"
        )
    if layout == EMPTY:
        return ()
    by_name = {profile.name: profile for profile in known}
    # "1g.10gb+me" is a name, and "+" separates names.
    words = layout.replace("+me", "\0me").split("+")
    wanted: list[InstanceProfile] = []
    for name in (word.replace("\0", "+") for word in words):
        if name not in by_name:
            raise errors.UsageError(
                f"mig={layout}: {model} has no profile {name!r}; it has {', '.join(by_name)}, and "
                f"{EMPTY} is MIG mode without instances"
            )
        wanted.append(by_name[name])
    # The largest first: they have the fewest places.
    order = sorted(wanted, key=lambda profile: (len(profile.starts), -profile.size))
    # Those that may begin anywhere leave the low slices to others, as the driver does.
    placed = _place(order, ()) if _leaves_compute(wanted) else None
    if placed is None:
        slices = sum(profile.slices for profile in wanted)
        places = ", ".join(_places(each) for each in dict.fromkeys(wanted))
        memory = sum(profile.size for profile in wanted)
        raise errors.UsageError(
            f"mig={layout}: these do not fit on one {model}: they take {slices} of "
            f"{COMPUTE_SLICES} compute slices and {memory} of 8 memory slices, each at the places "
            f"that its profile has ({places}); "
            f"valid is {known[4].name}+{known[4].name}, or {known[4].name}+{known[3].name}"
            f"+{known[0].name}"
        )
    return tuple(placed)


def _places(profile: InstanceProfile) -> str:
    most = f"at most {profile.most}, " if profile.most < len(profile.starts) else ""
    return f"{profile.name}: {most}{profile.size} from {'/'.join(map(str, profile.starts))}"


def _leaves_compute(wanted: Sequence[InstanceProfile]) -> bool:
    return sum(profile.slices for profile in wanted) <= COMPUTE_SLICES and all(
        wanted.count(profile) <= profile.most for profile in wanted
    )


def _place(
    rest: Sequence[InstanceProfile], placed: tuple[tuple[InstanceProfile, int], ...]
) -> tuple[tuple[InstanceProfile, int], ...] | None:
    if not rest:
        return placed
    taken = {slot for profile, start in placed for slot in range(start, start + profile.size)}
    for start in reversed(rest[0].starts):
        if not taken & set(range(start, start + rest[0].size)):
            found = _place(rest[1:], (*placed, (rest[0], start)))
            if found is not None:
                return found
    return None


def render(layouts: Sequence[tuple[str, str | None]]) -> str:
    """Return the first content of a machine's file, from each device's model and layout or None.

    Each GPU instance gets one compute instance with all of it.
    """
    lines: list[str] = []
    unit = len(layouts)
    for gpu, (model, layout) in enumerate(layouts):
        if layout is None:
            continue
        lines.append(f"gpu {gpu}")
        used: set[int] = set()
        for profile, start in plan(model, layout):
            parts = 8 // profile.size  # ids are a range for each size
            identity = next(n for n in range(parts - 1, 2 * parts - 1) if n not in used)
            used.add(identity)
            lines.append(f"gi {gpu} {identity} {profile.name} {start} {unit}")
            lines.append(f"ci {gpu} {identity} 0 {profile.slices} 0 {unit} {_draw_uuid()}")
            unit += 1
    return "".join(f"{line}\n" for line in lines)


def _draw_uuid() -> str:
    """Return a UUID of version 5, as NVIDIA's are."""
    return f"{names.MIG_UUID_PREFIX}{uuid.uuid5(uuid.NAMESPACE_OID, str(uuid.uuid4()))}"


def read(folder: Path, models: Sequence[str]) -> MachineState:
    """Return the MIG state of the machine in *folder*, whose devices are of these models."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return MachineState()
    enabled: set[int] = set()
    known: dict[tuple[int, int], InstanceProfile] = {}
    found: list[Instance] = []
    for words in map(str.split, text.splitlines()):
        gpu = int(words[1])
        if words[0] == "gpu":
            enabled.add(gpu)
        elif words[0] == "gi":
            table = {profile.name: profile for profile in profiles(models[gpu])}
            known[gpu, int(words[2])] = table[words[3]]
        else:
            profile, slices = known[gpu, int(words[2])], int(words[4])
            part = "" if slices == profile.slices else f"{slices}c."
            found.append(
                Instance(
                    gpu=gpu,
                    gpu_instance=int(words[2]),
                    compute_instance=int(words[3]),
                    profile=f"{part}{profile.name}",
                    uuid=words[7],
                    memory_bytes=profile.memory_mib << 20,
                    sm_count=profile.sms * slices // profile.slices // 2 * 2,
                )
            )
    return MachineState(frozenset(enabled), tuple(found))
