"""Placements of MIG instances on a GPU; pure.

A GPU instance occupies memory slices from a start that its profile allows. Instances fit together
if their slices do not overlap and their compute slices and multiprocessors do not exceed the
GPU's. :func:`room` measures fragmentation; :mod:`.mig_search` chooses by it.
"""

from __future__ import annotations

import functools
import operator
import re
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyvgpu.allocator import datatypes

    Profiles = tuple[datatypes.MigProfile, ...]
    Places = tuple[str, ...]  # such as 1g.10gb@6

_NAME = re.compile(r"[0-9]+g\.[0-9]+gb([+-][a-z.]+)*")  # such as 1g.10gb, 1g.10gb+me, 1g.24gb-me
SMALLEST = "*"  # in place of a profile: the smallest that has what the container requests


def place(profile: str, start: int) -> str:
    """Return the text of a placement: the profile's name, and its first memory slice."""
    return f"{profile}@{start}"


def split(text: str) -> tuple[str, int]:
    """Return the profile's name and the start of a placement; DataError if it is none."""
    name, at, start = text.rpartition("@")
    if not (at and name and start.isascii() and start.isdecimal()):
        raise errors.DataError(
            f"MIG placement {text!r}: must be a profile and a memory slice, such as 1g.10gb@6"
        )
    return name, int(start)


def vcore(profiles: Iterable[datatypes.MigProfile], profile: datatypes.MigProfile) -> int:
    """Return a profile's multiprocessors in hundredths of the GPU's, rounded down, at least 1."""
    most = max(each.sms for each in profiles)
    return max(1, quantity.WHOLE_DEVICE * profile.sms // most)


def profile_for(
    profiles: Profiles, wanted: str, need: datatypes.ContainerNeed
) -> datatypes.MigProfile | None:
    """Return the profile *wanted*, or the smallest, if it has what *need* requests."""
    fitting = [
        profile
        for profile in profiles
        if wanted in (SMALLEST, profile.name)
        and need.vcore <= vcore(profiles, profile)
        and need.vmemory <= profile.memory_bytes
    ]
    # Of equal ones that without additional engines.
    return min(
        fitting,
        key=lambda each: (each.size, each.slices, "+" in each.name, each.name),
        default=None,
    )


def mismatch(profiles: Profiles, wanted: str, need: datatypes.ContainerNeed) -> str:
    """Return why no profile of a GPU serves *need*, with the valid ones; empty if one does."""
    if profile_for(profiles, wanted, need) is not None:
        return ""
    valid = describe(profiles)
    if wanted != SMALLEST and all(profile.name != wanted for profile in profiles):
        return f"has no MIG profile {wanted}; it has {valid}"
    given = f"{need.vcore} vcore and {quantity.format_size(need.vmemory)} are requested"
    if wanted == SMALLEST:
        return f"has no MIG profile for this: {given}; it has {valid}"
    only = next(profile for profile in profiles if profile.name == wanted)
    return (
        f"has too little in {wanted}: {given}, it has {vcore(profiles, only)} vcore and "
        f"{quantity.format_size(only.memory_bytes)}; the GPU has {valid}"
    )


def describe(profiles: Profiles) -> str:
    """Return the names and sizes of profiles for messages."""
    return ", ".join(
        f"{profile.name} ({vcore(profiles, profile)} vcore, "
        f"{quantity.format_size(profile.memory_bytes)})"
        for profile in profiles
    )


@functools.lru_cache(maxsize=4096)
def starts(profiles: Profiles, occupied: Places, name: str) -> tuple[int, ...]:
    """Return the memory slices at which an instance of the profile *name* can begin now."""
    wanted = next((profile for profile in profiles if profile.name == name), None)
    if wanted is None:
        return ()
    known = {profile.name: profile for profile in profiles}
    taken = 0
    slices, sms, same = wanted.slices, wanted.sms, 1
    for other, start in map(split, occupied):
        if other not in known:  # of another layout of the GPU: nothing is sure
            return ()
        profile = known[other]
        taken |= _mask(start, profile.size)
        slices, sms = slices + profile.slices, sms + profile.sms
        same += other == name
    if (
        slices > max(profile.slices for profile in profiles)
        or sms > max(profile.sms for profile in profiles)
        or same > wanted.most
    ):
        return ()
    return tuple(start for start in wanted.starts if not taken & _mask(start, wanted.size))


@functools.lru_cache(maxsize=4096)
def room(profiles: Profiles, occupied: Places) -> int:
    """Return the places that are left for instances, each weighted by its memory slices."""
    return sum(
        profile.size * len(starts(profiles, occupied, profile.name)) for profile in profiles
    )


def after(occupied: Places, new: str) -> Places:
    """Return the placements of a GPU with a *new* one, in their canonical order."""
    return tuple(sorted((*occupied, new)))


def short(profiles: Profiles, occupied: Places, wanted: str, need: datatypes.ContainerNeed) -> str:
    """Return why a GPU has no place for *need*; empty if it has one."""
    profile = profile_for(profiles, wanted, need)
    if profile is None:
        return mismatch(profiles, wanted, need)
    if starts(profiles, occupied, profile.name):
        return ""
    beside = f" beside {', '.join(occupied)}" if occupied else ""
    others = ", ".join(other.name for other in possible(profiles, occupied)) or "no other profile"
    return (
        f"has no place for {profile.name}{beside}: {_obstacle(profiles, occupied, profile)}; "
        f"it has a place for {others}"
    )


def possible(profiles: Profiles, occupied: Places) -> tuple[datatypes.MigProfile, ...]:
    """Return the profiles of which a GPU has a place now, the largest first."""
    found = (profile for profile in profiles if starts(profiles, occupied, profile.name))
    return tuple(sorted(found, key=lambda each: (-each.size, -each.slices, each.name)))


def lacking(
    profiles: Profiles, occupied: Places, wanted: str, need: datatypes.ContainerNeed
) -> float:
    """Return the part of its profile's memory slices that *need* lacks at the best place.

    It is 1 if no profile serves it, or if other resources of the GPU are used up.
    """
    profile = profile_for(profiles, wanted, need)
    if profile is None:
        return 1.0
    if starts(profiles, occupied, profile.name):
        return 0.0
    taken = _taken(profiles, occupied)
    used = ((taken & _mask(start, profile.size)).bit_count() for start in profile.starts)
    return (min(used, default=0) or profile.size) / profile.size


def _obstacle(profiles: Profiles, occupied: Places, profile: datatypes.MigProfile) -> str:
    """Return what keeps *profile* from every place."""
    known = {each.name: each for each in profiles}
    there = [known[name] for name, _ in map(split, occupied) if name in known]
    if len(there) < len(occupied):
        return "the GPU has instances of profiles that it does not list"
    taken = _taken(profiles, occupied)
    if all(taken & _mask(start, profile.size) for start in profile.starts):
        last = max(each.size + start for each in profiles for start in each.starts)
        free = [number for number in range(last) if not taken >> number & 1]
        begins = " or ".join(map(str, profile.starts)) or "none that is free of others' instances"
        pieces = " in pieces" if len(free) >= profile.size else ""
        slices = f"{profile.size} memory slice{'s' if profile.size > 1 else ''}"
        return f"it takes {slices} from {begins}, free are {_ranges(free) or 'none'}{pieces}"
    for text, amount in (
        ("compute slices", operator.attrgetter("slices")),
        ("multiprocessors", operator.attrgetter("sms")),
    ):
        most, used = max(map(amount, profiles)), sum(map(amount, there))
        if used + amount(profile) > most:
            return f"it takes {amount(profile)} {text}, of {most} {used} are used"
    return f"a GPU has at most {profile.most} of it"


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers in ascending order as text, such as 0-2 5."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _taken(profiles: Profiles, occupied: Places) -> int:
    """Return the memory slices that instances occupy, as bits."""
    sizes = {profile.name: profile.size for profile in profiles}
    taken = 0
    for name, start in map(split, occupied):
        taken |= _mask(start, sizes.get(name, 0))
    return taken


def check_name(text: str) -> str:
    """Return the profile that a pod's annotation names; UsageError if it cannot be one."""
    if _NAME.fullmatch(text) is None:
        raise errors.UsageError(
            f"{names.MIG_ANNOTATION} {text[:40]!r}: must be the name of a MIG profile as "
            "`nvidia-smi mig -lgip` lists it, such as 1g.10gb"
        )
    return text


def check_need(need: datatypes.ContainerNeed) -> None:
    """Raise UsageError for a request of several devices: a container gets one instance."""
    if need.count > 1:
        raise errors.UsageError(
            f"{need.count} devices with {names.MIG_ANNOTATION} or {names.ISOLATION_ANNOTATION} "
            "hardware: a process sees one MIG device, so a container gets one instance; valid "
            f"would be at most {quantity.WHOLE_DEVICE} vcore"
        )


def profiles_of(devices: Iterable[datatypes.NodeDevice]) -> Iterator[Profiles]:
    """Yield the profiles of each kind of GPU on which pods can get instances."""
    yield from dict.fromkeys(device.profiles for device in devices if device.profiles)


def _mask(start: int, size: int) -> int:
    return ((1 << size) - 1) << start
