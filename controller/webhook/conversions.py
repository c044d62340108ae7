"""Convert requests that people write: memory in MiB, and the names of other systems.

    pyvgpu.io/vmemory-mib       always: pyvgpu.io/vmemory, which counts the cluster's memory units

    nvidia.com/gpu: 2           whole devices, as in NVIDIA's own plugin
      nvidia.com/gpumem           HAMi: a share of each with so many MiB
      nvidia.com/gpumem-percentage  or so many percent of its memory
      nvidia.com/gpucores           and so many percent of its time; without it, no limit
      nvidia.com/priority           0 is high, more is low; likewise variable CUDA_TASK_PRIORITY
    tencent.com/vcuda-core      gpu-manager: like our vcore; vcuda-memory is in units of 256 MiB

The names of other systems are not converted unless an administrator enables it, since another
component may own these resources.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity, quota
from pyvgpu.allocator import amounts, device_selector
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.controller.webhook import defaults
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Container

    from pyvgpu.allocator import datatypes
    from pyvgpu.controller.webhook import drafts
    from pyvgpu.kube.objects import Object

GPU, MEMORY, PERCENTAGE, CORES, PRIORITY = (
    f"nvidia.com/{resource}"
    for resource in ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")
)
HAMI_ALONE = (MEMORY, PERCENTAGE, CORES)
HAMI_SCHEDULER = "hami-scheduler"
GAIA_UNIT: int = 256 * quantity.UNITS["Mi"]
_MEBIBYTE: int = quantity.UNITS["Mi"]

# HAMi's annotations of pods: its key, our key, and the mapping of values (None: unchanged).
_ANNOTATIONS: tuple[tuple[str, str, dict[str, str] | None], ...] = (
    ("nvidia.com/use-gputype", names.DEVICE_MODELS_ANNOTATION, None),
    ("nvidia.com/nouse-gputype", names.NOT_DEVICE_MODELS_ANNOTATION, None),
    ("nvidia.com/use-gpuuuid", names.DEVICE_UUIDS_ANNOTATION, None),
    ("nvidia.com/nouse-gpuuuid", names.NOT_DEVICE_UUIDS_ANNOTATION, None),
    (
        "hami.io/gpu-scheduler-policy",
        names.PACKING_ANNOTATION,
        {"binpack": "binpack", "spread": "spread"},
    ),
    (
        "hami.io/node-scheduler-policy",
        names.PLACEMENT_ANNOTATION,
        {"binpack": "binpack", "spread": "spread"},
    ),
    ("nvidia.com/numa-bind", names.TOPOLOGY_POLICY_ANNOTATION, {"true": "numa"}),
)


class Words(enum.Enum):
    """The vocabularies that can be converted."""

    HAMI = "hami"  # nvidia.com/gpu with gpumem or gpucores
    NVIDIA = "nvidia"  # also nvidia.com/gpu alone: no other plugin serves it
    GPU_MANAGER = "gpu-manager"


@dataclasses.dataclass(frozen=True, slots=True)
class _HamiRequest:
    """One container's request in HAMi's resources."""

    count: int
    mebibytes: int
    percentage: int
    cores: int

    @property
    def whole(self) -> bool:
        """Whether it requests whole devices."""
        shared = self.mebibytes or self.percentage not in (0, quantity.WHOLE_DEVICE)
        return self.cores == quantity.WHOLE_DEVICE or not (self.cores or shared)


def convert_mebibytes(draft: drafts.Draft, unit: int) -> None:
    """Convert ``pyvgpu.io/vmemory-mib`` to units of *unit* bytes, rounded up.

    UsageError for anything but a whole number of MiB that the container's devices can have, and
    for a container that also requests ``pyvgpu.io/vmemory``.
    """
    name = names.VMEMORY_MIB_RESOURCE
    for part, place, container in defaults.containers(draft.document):
        if not _mentions(container, (name,)):
            continue
        try:
            size = _mebibytes(draft.document, container) * _MEBIBYTE
        except errors.UsageError as exc:
            raise errors.UsageError(f"container {container.get('name')}: {exc}") from exc
        _replace(draft, (part, place), (name,), {names.VMEMORY_RESOURCE: -(-size // unit)})


def convert(draft: drafts.Draft, words: Container[Words], memory: defaults.DefaultMemory) -> None:
    """Convert the requests of a pod's containers; UsageError for an invalid request."""
    counts: dict[str, int] = {}
    priorities: set[quota.Priority] = set()
    elastic = noted = False
    for part, place, container in defaults.containers(draft.document):
        where, name = (part, place), str(container.get("name"))
        try:
            gaia = Words.GPU_MANAGER in words and _mentions(container, pod_request.RESOURCES[1])
            if gaia and _is_hami(container, words):
                raise _both(GPU, names.GAIA_VCORE_RESOURCE)
            if gaia:
                _of_gpu_manager(draft, where, memory.unit)
            elif _is_hami(container, words):
                if not noted:
                    _note(draft)
                noted = True
                priorities |= _priorities(container)
                count, free = _of_hami(draft, where, memory)
                elastic |= free
                if count > 1:
                    counts[name] = count
        except errors.UsageError as exc:
            raise errors.UsageError(f"container {name}: {exc}") from exc
    added = {}
    if counts:
        added[names.DEVICE_COUNT_ANNOTATION] = ",".join(f"{k}={v}" for k, v in counts.items())
    if elastic:
        added[names.VCORE_POLICY_ANNOTATION] = "elastic"
    if priorities:  # a pod has a single priority: the highest, so no container gets a lower one
        added[names.PRIORITY_ANNOTATION] = max(priorities).name.lower()
    _annotate(draft, added)
    if noted and draft.document["spec"].get("schedulerName") == HAMI_SCHEDULER:
        draft.put(defaults.DEFAULT_SCHEDULER, "spec", "schedulerName")


def _both(one: str, other: str) -> errors.UsageError:
    return errors.UsageError(
        f"{one} and {other}: must not both be asked for; "
        f"{names.VCORE_RESOURCE} and {names.VMEMORY_RESOURCE} would do"
    )


def _is_hami(container: Object, words: Container[Words]) -> bool:
    if Words.NVIDIA in words and _mentions(container, (GPU, *HAMI_ALONE)):
        return True
    return Words.HAMI in words and _mentions(container, HAMI_ALONE)


def _mebibytes(pod: Object, container: Object) -> int:
    """Return the MiB that a container requests, over all its devices."""
    name = names.VMEMORY_MIB_RESOURCE
    if _mentions(container, (names.VMEMORY_RESOURCE,)):
        raise errors.UsageError(
            f"{names.VMEMORY_RESOURCE} and {name}: must not both be asked for; valid would be "
            f"{name} 4096 alone"
        )
    written = {str(amount[name]) for amount in defaults.amounts(container) if name in amount}
    found = {amounts.units(text, name, _MEBIBYTE) for text in written}
    if len(found) > 1:
        raise errors.UsageError(
            f"{name} {' and '.join(sorted(written))}: the request must equal the limit, such as "
            "4096 in both"
        )
    (mebibytes,) = found
    selection = device_selector.read(objects.section(pod, "metadata", "annotations"))
    limits, requests = defaults.amounts(container)
    vcore = names.VCORE_RESOURCE
    whole = amounts.whole(limits.get(vcore, requests.get(vcore, "0")), vcore)
    devices = selection.count_of(str(container.get("name"))) or whole // quantity.WHOLE_DEVICE or 1
    amounts.check_units(mebibytes, _MEBIBYTE, devices, name)
    return mebibytes


def _of_gpu_manager(draft: drafts.Draft, where: tuple[str, int], unit: int) -> None:
    container = draft.document["spec"][where[0]][where[1]]
    vcore, blocks = pod_request.needs(
        container, GAIA_UNIT
    )  # raises if our resources are requested, too
    found = {names.VCORE_RESOURCE: vcore}
    if _mentions(container, (names.GAIA_VMEMORY_RESOURCE,)):
        found[names.VMEMORY_RESOURCE] = -(-blocks * GAIA_UNIT // unit)
    _replace(draft, where, pod_request.RESOURCES[1], found)


def _of_hami(
    draft: drafts.Draft, where: tuple[str, int], memory: defaults.DefaultMemory
) -> tuple[int, bool]:
    """Convert a container; return its number of devices, and whether its time is unlimited."""
    container = draft.document["spec"][where[0]][where[1]]
    if _mentions(container, (names.VCORE_RESOURCE, names.VMEMORY_RESOURCE)):
        raise _both(GPU, names.VCORE_RESOURCE)
    asked = _read(container)
    gone = (GPU, *HAMI_ALONE, PRIORITY)
    if not asked.count:
        _replace(draft, where, gone, {})
        return 0, False
    if asked.whole:
        vcore = asked.count * quantity.WHOLE_DEVICE
        _replace(draft, where, gone, {names.VCORE_RESOURCE: vcore})
        return 1, False
    annotations = objects.section(draft.document, "metadata", "annotations")
    selector = device_selector.read(annotations).selector
    units = _units(asked, memory, selector)
    cores = asked.cores or _time_for(units, memory, selector)
    amount = {
        names.VCORE_RESOURCE: cores * asked.count,
        names.VMEMORY_RESOURCE: units * asked.count,
    }
    _replace(draft, where, gone, amount)
    return asked.count, not asked.cores


def _priorities(container: Object) -> set[quota.Priority]:
    """Return a container's priorities; UsageError for a value that HAMi would reject."""
    limits, requests = defaults.amounts(container)
    said = [(PRIORITY, amount[PRIORITY]) for amount in (limits, requests) if PRIORITY in amount]
    said += [
        (names.HAMI_PRIORITY_VARIABLE, variable["value"])
        for variable in objects.entries(container, "env")
        if variable.get("name") == names.HAMI_PRIORITY_VARIABLE and "value" in variable
    ]
    return {quota.Priority.of_hami(str(text), name) for name, text in said}


def _read(container: Object) -> _HamiRequest:
    limits, requests = defaults.amounts(container)

    def number(name: str, absent: str, most: int | None = None) -> int:
        found = amounts.whole(limits.get(name, requests.get(name, absent)), name)
        if most is not None and found > most:
            raise errors.UsageError(f"{name} '{found}': must be from 0 to {most}, such as 30")
        return found

    written = limits.get(MEMORY, requests.get(MEMORY, "0"))
    mebibytes = amounts.units(written, MEMORY, _MEBIBYTE)
    amounts.check_units(mebibytes, _MEBIBYTE, 1, MEMORY)
    return _HamiRequest(
        count=number(GPU, "1"),
        mebibytes=mebibytes,
        percentage=number(PERCENTAGE, "0", quantity.WHOLE_DEVICE),
        cores=number(CORES, "0", quantity.WHOLE_DEVICE),
    )


def _units(
    asked: _HamiRequest, memory: defaults.DefaultMemory, selector: datatypes.Selector
) -> int:
    """Return the memory on each device, in units."""
    if asked.mebibytes:
        return -(-asked.mebibytes * _MEBIBYTE // memory.unit)
    percent = asked.percentage or quantity.WHOLE_DEVICE
    if defaults.smallest(memory.devices, selector) is None:
        raise errors.UsageError(
            f"{PERCENTAGE} '{percent}': no device is known yet, so the "
            f"percentage cannot be converted; "
            f"valid would be {MEMORY} 4096"
        )
    return memory.part(percent, selector) or 1


def _time_for(units: int, memory: defaults.DefaultMemory, selector: datatypes.Selector) -> int:
    """Return the vcore for *units* of memory: the same ratio of the smallest device."""
    device = defaults.smallest(memory.devices, selector)
    if device is None:
        raise errors.UsageError(
            f"{MEMORY} without {CORES}: no device is known yet, so no vcore can be derived "
            f"from it; "
            f"valid would be {CORES} 30"
        )
    most = quantity.WHOLE_DEVICE - 1
    return min(max(units * memory.unit * quantity.WHOLE_DEVICE // device.memory_bytes, 1), most)


def _mentions(container: Object, resources: tuple[str, ...]) -> bool:
    return any(name in amount for amount in defaults.amounts(container) for name in resources)


def _replace(
    draft: drafts.Draft, where: tuple[str, int], gone: tuple[str, ...], amount: dict[str, int]
) -> None:
    container = draft.document["spec"][where[0]][where[1]]
    for section, found in zip(("limits", "requests"), defaults.amounts(container), strict=True):
        for name in gone:
            if name in found:
                draft.remove("spec", *where, "resources", section, name)
    defaults.put(draft, where, amount)


def _note(draft: drafts.Draft) -> None:
    """Translate HAMi's annotations to ours; values without an equivalent are ignored."""
    annotations = objects.section(draft.document, "metadata", "annotations")
    added = {}
    for theirs, ours, values in _ANNOTATIONS:
        text = annotations.get(theirs)
        if text is None:
            continue
        meant = str(text) if values is None else values.get(str(text), "")
        if meant:
            added[ours] = meant
    _annotate(draft, added)


def _annotate(draft: drafts.Draft, added: dict[str, str]) -> None:
    """Set the annotations that the pod does not have."""
    annotations = objects.section(draft.document, "metadata", "annotations")
    news = {key: text for key, text in added.items() if key not in annotations}
    if news:
        draft.set_entries(news, "metadata", "annotations")
