"""Device selection by pod annotations; pure.

    pyvgpu.io/device-uuids        one of these, separated by commas; not-device-uuids: none
    pyvgpu.io/device-models       parts of the model's name, in any case; not-device-models: none
    pyvgpu.io/device-classes      the administrator's compute classes (--compute-class)
    pyvgpu.io/device-numa         of that NUMA node
    pyvgpu.io/device-memory       with at least that much memory in total
    pyvgpu.io/device-count        number of devices, equal shares of each; for all or by container
    pyvgpu.io/packing             fill devices one after the other, or all evenly
    pyvgpu.io/mig                 an instance of this MIG profile for each container
    pyvgpu.io/isolation           hardware: an instance of the smallest profile that suffices;
                                  mps: a device that MPS divides
    pyvgpu.io/topology-policy     of several devices: as near as possible, or NVLink, or one node

The component that chooses devices reads them: the agent or the scheduler.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import TYPE_CHECKING, TypeVar

from pyvgpu import errors, names, quantity, quota
from pyvgpu.allocator import datatypes, isolation, mig_placement

if TYPE_CHECKING:
    from collections.abc import Mapping

_Choice = TypeVar("_Choice", bound=enum.Enum)
_UUID = re.compile(r"(GPU|MIG)-[\w/-]+", re.ASCII)  # as NVML has them; of MIG's older form, too
_MOST_NUMA = 1023  # Linux' highest NUMA node
_MOST_DEVICES = 64  # of one container
_WORDS = {  # the annotation: the field of a selector, and an example
    names.DEVICE_UUIDS_ANNOTATION: ("uuids", "GPU-6f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
    names.NOT_DEVICE_UUIDS_ANNOTATION: ("not_uuids", "GPU-6f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
    names.DEVICE_MODELS_ANNOTATION: ("models", "H100,A100"),
    names.NOT_DEVICE_MODELS_ANNOTATION: ("not_models", "T4"),
    names.DEVICE_CLASSES_ANNOTATION: ("classes", "fast,large"),
}
_MIG_UUID = re.compile(rf"^{names.MIG_UUID_PREFIX}")
_MIG_MODEL = re.compile(r"\bmig\b", re.IGNORECASE)  # NVIDIA H100 MIG 3g.40gb
ANNOTATIONS = (
    *_WORDS,
    names.DEVICE_NUMA_ANNOTATION,
    names.DEVICE_MEMORY_ANNOTATION,
    names.DEVICE_COUNT_ANNOTATION,
    names.PACKING_ANNOTATION,
    names.TOPOLOGY_POLICY_ANNOTATION,
    names.MIG_ANNOTATION,
    names.ISOLATION_ANNOTATION,
)


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSelector:
    """A pod's device selection, apart from amounts."""

    selector: datatypes.Selector = dataclasses.field(default_factory=datatypes.Selector)
    packing: datatypes.Packing | None = None  # None: the administrator's default
    nearness: datatypes.Nearness | None = None  # None: preferred
    count: int | None = None  # of devices, for each container; None: derived from its vcore
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)  # by container

    def count_of(self, container: str) -> int | None:
        """Return the number of devices of a container, None if it is not given."""
        return self.counts.get(container, self.count)

    def pod(
        self, containers: tuple[datatypes.Container, ...], packing: datatypes.Packing
    ) -> datatypes.Pod:
        """Return a pod of these *containers* with this selection, and *packing* as the default."""
        nearness = self.nearness or datatypes.Nearness.PREFERRED
        return datatypes.Pod(containers, self.packing or packing, nearness, self.selector)


def read(annotations: Mapping[str, str]) -> DeviceSelector:
    """Parse a pod's *annotations*; UsageError names valid values."""
    if not any(annotation in annotations for annotation in ANNOTATIONS):
        return DeviceSelector()
    fields: dict[str, frozenset[str]] = {
        field: _words(name, annotations[name], example)
        for name, (field, example) in _WORDS.items()
        if name in annotations
    }
    for name in (names.DEVICE_UUIDS_ANNOTATION, names.NOT_DEVICE_UUIDS_ANNOTATION):
        _check_uuids(name, fields.get(_WORDS[name][0], frozenset()))
    numa = annotations.get(names.DEVICE_NUMA_ANNOTATION)
    memory = annotations.get(names.DEVICE_MEMORY_ANNOTATION)
    selector = datatypes.Selector(
        **fields,
        instances=True,
        mig=_mig(annotations),
        mps=isolation.read(annotations) is quota.Isolation.MPS,
        numa=None if numa is None else _numa(numa),
        least_memory=0
        if memory is None
        else quantity.parse_size(memory, names.DEVICE_MEMORY_ANNOTATION),
    )
    if selector.mig and (only := _only_mig_devices(selector)):
        raise errors.UsageError(
            f"{only} with {names.MIG_ANNOTATION} or {names.ISOLATION_ANNOTATION} hardware: it "
            "selects MIG devices that exist, and the others request a new instance of a GPU; "
            f"valid would be either of them, or {names.DEVICE_MODELS_ANNOTATION} H100, the GPU"
        )
    count, counts = _counts(annotations.get(names.DEVICE_COUNT_ANNOTATION))
    return DeviceSelector(
        selector,
        _one_of(datatypes.Packing, names.PACKING_ANNOTATION, annotations),
        _one_of(datatypes.Nearness, names.TOPOLOGY_POLICY_ANNOTATION, annotations),
        count,
        counts,
    )


def _mig(annotations: Mapping[str, str]) -> str:
    """Return the MIG profile of which containers get instances, * for the smallest; or nothing."""
    wanted = isolation.read(annotations)
    profile = annotations.get(names.MIG_ANNOTATION)
    if profile is None:
        return mig_placement.SMALLEST if wanted is quota.Isolation.HARDWARE else ""
    if names.ISOLATION_ANNOTATION in annotations and wanted is not quota.Isolation.HARDWARE:
        raise errors.UsageError(
            f"{names.MIG_ANNOTATION} {profile[:40]!r} with {names.ISOLATION_ANNOTATION} "
            f"{annotations[names.ISOLATION_ANNOTATION]}: a MIG instance is isolated by hardware; "
            f"valid would be {names.ISOLATION_ANNOTATION} hardware, or to leave it out"
        )
    return mig_placement.check_name(profile)


def check_need(selector: datatypes.Selector, need: datatypes.ContainerNeed) -> None:
    """Raise UsageError if no device that *selector* allows can ever serve *need*."""
    if selector.mig:
        mig_placement.check_need(need)
    if selector.mps:
        isolation.check_need(need)
    if need.count > 1 and (only := _only_mig_devices(selector)):
        raise errors.UsageError(
            f"{need.count} devices with {only}, which selects MIG devices only: a process sees "
            f"one MIG device; valid would be at most {quantity.WHOLE_DEVICE} vcore, or GPUs"
        )


def _only_mig_devices(selector: datatypes.Selector) -> str:
    """Return the annotation by which *selector* allows only MIG devices; empty if none does."""
    for name, words, part in (
        (names.DEVICE_UUIDS_ANNOTATION, selector.uuids, _MIG_UUID),
        (names.DEVICE_MODELS_ANNOTATION, selector.models, _MIG_MODEL),
    ):
        if words and all(map(part.search, words)):
            return f"{name} {','.join(sorted(words))[:40]!r}"
    return ""


def _words(name: str, text: str, example: str) -> frozenset[str]:
    """Parse words separated by commas; an empty word would match every name."""
    found = frozenset(word.strip() for word in text.split(","))
    if "" in found:
        raise errors.UsageError(
            f"{name} {text!r}: must be words separated by commas, such as {example}"
        )
    return found


def _check_uuids(name: str, words: frozenset[str]) -> None:
    """Refuse a device's index, and other words that no device can have as its UUID."""
    for word in sorted(words):
        if not _UUID.fullmatch(word):
            raise errors.UsageError(
                f"{name} {word!r}: must be UUIDs of devices separated by commas, as `nvidia-smi "
                f"-L` prints them, such as {_WORDS[name][1]}"
            )


def _numa(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,4}", text) is None or int(text) > _MOST_NUMA:
        raise errors.UsageError(
            f"{names.DEVICE_NUMA_ANNOTATION} {text!r}: must be the number of a NUMA node, from 0 "
            f"to {_MOST_NUMA}, such as 0"
        )
    return int(text)


def _counts(text: str | None) -> tuple[int | None, dict[str, int]]:
    """Parse a number of devices for all containers, or one for each of some."""
    if text is None:
        return None, {}
    if "=" not in text:
        return _count(text, text), {}
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (side.strip() for side in part.partition("="))
        if not name or name in found:
            raise _no_count(text)
        found[name] = _count(number, text)
    return None, found


def _count(number: str, text: str) -> int:
    if re.fullmatch(r"[0-9]{1,2}", number) is None or not 1 <= int(number) <= _MOST_DEVICES:
        raise _no_count(text)
    return int(number)


def _no_count(text: str) -> errors.UsageError:
    return errors.UsageError(
        f"{names.DEVICE_COUNT_ANNOTATION} {text!r}: must be a number of devices from 1 to "
        f"{_MOST_DEVICES}, or one for each of some containers, such as 2 or main=2,side=1"
    )


def _one_of(kind: type[_Choice], name: str, annotations: Mapping[str, str]) -> _Choice | None:
    text = annotations.get(name)
    if text is None:
        return None
    valid = [str(member.value) for member in kind]
    if text not in valid:
        raise errors.UsageError(
            f"{name} {text!r}: must be {' or '.join(valid)}, such as {valid[-1]}"
        )
    return kind(text)
