"""Parse and validate the sidecar controller's configuration file.

An invalid value is refused at startup, with the value, the rule and a valid example.
``docs/sidecar.md`` shows the same table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.controller.sidecar import controller_settings, marking
from pyvgpu.kube import yaml_file

if TYPE_CHECKING:
    from pathlib import Path


class _WrongError(ValueError):
    """A value breaks its rule."""


Reader = Callable[[Any], object]


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or value != value.strip():
        raise _WrongError
    return value


def _image(value: Any) -> str:
    if not isinstance(value, str) or not controller_settings.is_image(value):
        raise _WrongError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _WrongError
    return tuple(map(_text, value))


def _pairs(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _WrongError
    return {_text(key): _text(text) for key, text in value.items()}


def _number(lowest: float, highest: float, *, whole: bool = False) -> Reader:
    def read(value: Any) -> float:
        kinds = int if whole else int | float
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise _WrongError
        if not lowest <= value <= highest:
            raise _WrongError
        return value

    return read


def _paths(value: Any) -> frozenset[str]:
    found = _texts(value)
    if not set(found) <= set(controller_settings.PATHS):
        raise _WrongError
    return frozenset(found)


def _programs(value: Any) -> frozenset[str]:
    found = _texts(value)
    if not all(path.startswith("/") for path in found):
        raise _WrongError
    return frozenset(found)


def _policies(value: Any) -> tuple[marking.MarkingPolicy, ...]:
    if not isinstance(value, list):
        raise _WrongError
    return tuple(map(_policy, value))


def _policy(value: Any) -> marking.MarkingPolicy:
    if not isinstance(value, Mapping) or value.keys() - {"containers", "namespace", "labels"}:
        raise _WrongError
    containers = _texts(value.get("containers"))
    if not containers:
        raise _WrongError
    return marking.MarkingPolicy(
        containers, _text(value.get("namespace", "*")), _pairs(value.get("labels", {}))
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One setting of the file."""

    name: str
    place: str  # the attribute of Settings; a nested one has a dot
    read: Reader
    rule: str
    example: str  # in YAML
    meaning: str


FIELDS: tuple[Field, ...] = (
    Field(
        "policies",
        "policies",
        _policies,
        "a list of {containers: [names], namespace: name, labels: {key: value}}, where * "
        "matches anything",
        "[{namespace: train-*, containers: [istio-proxy, log-*]}]",
        "marks containers that do not mark themselves",
    ),
    Field(
        "paths",
        "paths",
        _paths,
        f"some of {', '.join(controller_settings.PATHS)}",
        "[stop, hybrid]",
        "the allowed ways to end a sidecar",
    ),
    Field(
        "raiseBackoffLimit",
        "raise_backoff_limit",
        _switch,
        "true or false",
        "false",
        "raise the `backoffLimit` of a Job by the restarts of swapped sidecars",
    ),
    Field(
        "insist",
        "insist",
        _switch,
        "true or false",
        "true",
        "stop a sidecar not known to exit with 0 if nothing else is possible; the pod ends Failed",
    ),
    Field(
        "mostWrites",
        "most_writes",
        _number(1, 2, whole=True),
        "1 or 2",
        "1",
        "writes to a pod; the second takes the next path for a sidecar that did not end in time",
    ),
    Field(
        "marginSeconds",
        "margin_seconds",
        _number(0, 3600),
        "a number from 0 to 3600",
        "5",
        "how long after its grace period a sidecar counts as not ended",
    ),
    Field(
        "pullSeconds",
        "pull_seconds",
        _number(0, 3600),
        "a number from 0 to 3600",
        "30",
        "how long a changed image may take to be pulled and started",
    ),
    Field(
        "providerSeconds",
        "provider_seconds",
        _number(0, 86400),
        "a number from 0 to 86400",
        "60",
        "how long a virtual node's provider may take to end the containers that its switch names",
    ),
    Field(
        "leaseSeconds",
        "lease_seconds",
        _number(20, 3600),
        "a number from 20 to 3600",
        "40",
        "maximum age of a live node part's lease; the node part renews it three times as often",
    ),
    Field(
        "recheckSeconds",
        "recheck_seconds",
        _number(1, 86400),
        "a number from 1 to 86400",
        "300",
        "between rechecks of a sidecar that nothing can end",
    ),
    Field(
        "sweepSeconds",
        "sweep_seconds",
        _number(0, 86400),
        "a number from 0 (never) to 86400",
        "300",
        "between sweeps for marked pods that lack our label",
    ),
    Field(
        "writesPerSecond",
        "writes_per_second",
        _number(1, 10000),
        "a number from 1 to 10000",
        "200",
        "rate limit of writes to pods, Jobs and events together",
    ),
    Field(
        "workers",
        "workers",
        _number(1, 64, whole=True),
        "a whole number from 1 to 64",
        "4",
        "pods processed concurrently",
    ),
    Field(
        "fastExitImage",
        "fast_exit.image",
        _image,
        "the name of an image",
        "registry.example/pyvgpu/fast-exit:1",
        "the image for swaps; `--fast-exit-image` overrides it",
    ),
    Field(
        "fastExitInRegistry",
        "fast_exit.in_registry",
        _switch,
        "true or false",
        "true",
        "every node can pull that image",
    ),
    Field(
        "fastExitNames",
        "fast_exit.other_names",
        _programs,
        "a list of paths",
        "[/bin/sh, /bin/bash]",
        "further paths of that image's program",
    ),
    Field(
        "virtualLabels",
        "virtual.labels",
        lambda value: tuple(_pairs(value).items()),
        "labels and their values",
        "{type: virtual-kubelet}",
        "a node with one of them is virtual",
    ),
    Field(
        "virtualTaints",
        "virtual.taint_prefixes",
        _texts,
        "a list of prefixes of taint keys",
        "[virtual-kubelet.io/]",
        "a node with one of them is virtual",
    ),
    Field(
        "virtualPulls",
        "virtual.pulls",
        _switch,
        "true or false",
        "false",
        "virtual nodes can pull the fast-exit image",
    ),
)


def load(path: Path) -> controller_settings.SidecarSettings:
    """Read the settings from a file."""
    return _settings(yaml_file.read(path, "--config"), str(path))


def parse(text: str, name: str) -> controller_settings.SidecarSettings:
    """Parse settings from YAML or JSON; *name* is for error messages."""
    return _settings(yaml_file.parse(text, name), name)


def _settings(document: Any, name: str) -> controller_settings.SidecarSettings:
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise errors.DataError(f"{name}: must be settings and their values, such as insist: true")
    found = controller_settings.SidecarSettings()
    known = {field.name: field for field in FIELDS}
    for key, value in document.items():
        field = known.get(key) if isinstance(key, str) else None
        if field is None:
            raise errors.DataError(f"{name}: {str(key)[:40]}: must be one of: {', '.join(known)}")
        found = _set(found, field, value, name)
    return found


def _set(
    found: controller_settings.SidecarSettings, field: Field, value: Any, name: str
) -> controller_settings.SidecarSettings:
    try:
        read = field.read(value)
    except _WrongError as exc:
        raise errors.DataError(
            f"{name}: {field.name}: {str(value)[:80]}: must be {field.rule}, such as "
            f"{field.name}: {field.example}"
        ) from exc
    whole, _, part = field.place.rpartition(".")
    change: dict[str, Any] = {part: read}
    if whole:
        change = {whole: dataclasses.replace(getattr(found, whole), **change)}
    return dataclasses.replace(found, **change)
