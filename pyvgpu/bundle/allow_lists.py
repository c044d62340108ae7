"""Allow-lists ("shapes") of the object fields that a support bundle may contain; pure.

A shape is KEEP (a plain value, or a list of such), a list of one shape, a mapping of shapes by
name, or a function from a value to the part of it that may be kept. A name that ends in ``*`` is a
prefix. A value that does not match its shape is left out, so that nothing slips through inside of
a kept field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, Union

from pyvgpu import names
from pyvgpu.allocator import device_selector

KEEP: Final = "keep"
Shape = Union[str, "list[Shape]", "Mapping[str, Shape]", "Callable[[object], object]"]

_OURS = f"{names.DOMAIN}/"
_LEFT_OUT = object()
# Secrets in free text: tokens of the API server and other JSON web tokens, keys in PEM and of
# well-known services, user names and passwords in URLs, and values with names of secrets.
_TOKENS = re.compile(
    r"(?<![A-Za-z0-9])eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
    r"|-----BEGIN [^-]*KEY-----.*?(?:-----END [^-]*KEY-----|\Z)"
    r"|\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}|(?:gh[a-z]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-)[\w-]{16,})"
    r"|(?<=://)[^\s/@]{1,256}@"
    r"|(?i:(?:bearer|basic) +)[\w.~+/=-]{8,}"
    r"|(?i:(?:token|passw(?:or)?d|passphrase|secret|credential|(?:api|access|private)[_-]?key"
    r"|key-data)[\w-]{0,40}[\"']?\s*[:=]\s*)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;]+)"
    r"|(?i:--[\w-]{0,40}(?:token|password|secret)[\w-]{0,40} +)[^\s,;]+",
    re.DOTALL,
)


def kept(thing: object, shape: Shape) -> object:
    """Return the part of *thing* that *shape* allows; None if nothing."""
    found = _kept(thing, shape)
    return None if found is _LEFT_OUT else found


def text(said: str) -> str:
    """Return free text without tokens and keys."""
    return _TOKENS.sub("[left out]", said)


def _kept(thing: object, shape: Shape) -> object:
    if callable(shape):
        return shape(thing)
    if isinstance(shape, str):
        return _plain(thing)
    if isinstance(shape, list):
        if not isinstance(thing, list):
            return _LEFT_OUT
        those = (_kept(element, shape[0]) for element in thing)
        return [element for element in those if element is not _LEFT_OUT]
    if not isinstance(thing, Mapping):
        return _LEFT_OUT
    found = {}
    for name, value in thing.items():
        inner = _of(str(name), shape)
        if inner is not None and (it := _kept(value, inner)) is not _LEFT_OUT:
            found[name] = it
    return found


def _plain(thing: object) -> object:
    if isinstance(thing, str):
        return text(thing)
    if thing is None or isinstance(thing, int | float):
        return thing
    if isinstance(thing, list) and all(
        isinstance(element, str | int | float) for element in thing
    ):
        return [text(element) if isinstance(element, str) else element for element in thing]
    return _LEFT_OUT


def _of(name: str, shape: Mapping[str, Shape]) -> Shape | None:
    if name in shape:
        return shape[name]
    return next(
        (
            member
            for key, member in shape.items()
            if key.endswith("*") and name.startswith(key[:-1])
        ),
        None,
    )


def _unsealed(value: object) -> object:
    """Return a scheduler's choice, without its seal."""
    try:
        document = json.loads(str(value))
    except ValueError:
        return _LEFT_OUT
    choice: Shape = {
        "v": KEEP,
        "uid": KEEP,
        "node": KEEP,
        "containers": {"*": [{"uuid": KEEP, "vcore": KEEP, "bytes": KEEP}]},
    }
    return _kept(document, choice)


# Not those with a user's commands or images: start_command, swap, swapped.
_NOTES = (
    names.CORDONED_ANNOTATION,
    names.NODE_DEVICES_ANNOTATION,
    names.DEVICE_ISOLATION_ANNOTATION,
    names.STOP_ANNOTATION,
    names.VCORE_POLICY_ANNOTATION,
    names.VCORE_LIMIT_ANNOTATION,
    names.PRIORITY_ANNOTATION,
    names.SUSPEND_ANNOTATION,
    names.SUSPENSION_ANNOTATION,
    names.GAIA_LIMIT_ANNOTATION,
    names.GAIA_ASSIGNED_ANNOTATION,
    *device_selector.ANNOTATIONS,
    names.PLACEMENT_ANNOTATION,
    names.GANG_ANNOTATION,
    names.GANG_SIZE_ANNOTATION,
    names.GANG_TIMEOUT_ANNOTATION,
)
_ANNOTATIONS: Shape = {names.DEVICES_ANNOTATION: _unsealed, **dict.fromkeys(_NOTES, KEEP)}
_META: Mapping[str, Shape] = {
    "name": KEEP,
    "namespace": KEEP,
    "uid": KEEP,
    "generation": KEEP,
    "creationTimestamp": KEEP,
    "deletionTimestamp": KEEP,
    "labels": {f"{_OURS}*": KEEP, "app": KEEP, "app.kubernetes.io/*": KEEP},
    "annotations": _ANNOTATIONS,
    "ownerReferences": [{"kind": KEEP, "name": KEEP}],
}
_AMOUNTS: Shape = {
    f"{_OURS}*": KEEP,
    f"{names.GAIA_DOMAIN}/*": KEEP,
    "cpu": KEEP,
    "memory": KEEP,
    "pods": KEEP,
}
_RESOURCES: Shape = {"limits": _AMOUNTS, "requests": _AMOUNTS}
_CONDITIONS: Shape = [
    {"type": KEEP, "status": KEEP, "reason": KEEP, "message": KEEP, "lastTransitionTime": KEEP}
]
_ENDED: Shape = {"exitCode": KEEP, "reason": KEEP, "signal": KEEP, "finishedAt": KEEP}
_STATE: Shape = {"waiting": {"reason": KEEP}, "running": {"startedAt": KEEP}, "terminated": _ENDED}
_STATUSES: Shape = [
    {"name": KEEP, "ready": KEEP, "restartCount": KEEP, "state": _STATE, "lastState": _STATE}
]
_POD_STATUS: Mapping[str, Shape] = {
    "phase": KEEP,
    "reason": KEEP,
    "qosClass": KEEP,
    "startTime": KEEP,
    "conditions": _CONDITIONS,
    "containerStatuses": _STATUSES,
    "initContainerStatuses": _STATUSES,
    "resourceClaimStatuses": [{"name": KEEP, "resourceClaimName": KEEP}],
}
_CONTAINERS: Shape = [{"name": KEEP, "resources": _RESOURCES, "restartPolicy": KEEP}]
_OWN_CONTAINERS: Shape = [
    {
        "name": KEEP,
        "image": KEEP,
        "args": KEEP,
        "resources": _RESOURCES,
        "env": [{"name": KEEP}],
        "ports": [{"name": KEEP, "containerPort": KEEP}],
        "securityContext": {
            "privileged": KEEP,
            "runAsUser": KEEP,
            "readOnlyRootFilesystem": KEEP,
            "capabilities": {"add": KEEP, "drop": KEEP},
        },
        "volumeMounts": [{"name": KEEP, "mountPath": KEEP, "readOnly": KEEP}],
    }
]
_OWN_SPEC: Shape = {
    "nodeName": KEEP,
    "hostPID": KEEP,
    "serviceAccountName": KEEP,
    "priorityClassName": KEEP,
    "nodeSelector": {"*": KEEP},
    "containers": _OWN_CONTAINERS,
    "initContainers": _OWN_CONTAINERS,
}

# Users' pods: no image, no command, no environment.
POD: Shape = {
    "metadata": _META,
    "spec": {
        "nodeName": KEEP,
        "schedulerName": KEEP,
        "restartPolicy": KEEP,
        "containers": _CONTAINERS,
        "initContainers": _CONTAINERS,
    },
    "status": _POD_STATUS,
}
OWN_POD: Shape = {"metadata": _META, "spec": _OWN_SPEC, "status": _POD_STATUS}
WORKLOAD: Shape = {
    "metadata": _META,
    "spec": {"replicas": KEEP, "template": {"metadata": _META, "spec": _OWN_SPEC}},
    "status": {"*": KEEP, "conditions": _CONDITIONS},
}
NODE: Shape = {
    "metadata": _META,
    "spec": {"unschedulable": KEEP, "taints": [{"key": KEEP, "effect": KEEP}]},
    "status": {
        "capacity": _AMOUNTS,
        "allocatable": _AMOUNTS,
        "conditions": _CONDITIONS,
        "nodeInfo": {
            "kernelVersion": KEEP,
            "osImage": KEEP,
            "containerRuntimeVersion": KEEP,
            "kubeletVersion": KEEP,
            "architecture": KEEP,
        },
    },
}
EVENT: Shape = {
    "reason": KEEP,
    "message": KEEP,
    "type": KEEP,
    "count": KEEP,
    "firstTimestamp": KEEP,
    "lastTimestamp": KEEP,
    "eventTime": KEEP,
    "involvedObject": {"kind": KEEP, "namespace": KEEP, "name": KEEP, "uid": KEEP},
}
SLICE: Shape = {
    "metadata": _META,
    "spec": {
        "driver": KEEP,
        "nodeName": KEEP,
        "pool": {"*": KEEP},
        "devices": [
            {
                "name": KEEP,
                "attributes": {"*": {"string": KEEP, "int": KEEP, "bool": KEEP, "version": KEEP}},
                "capacity": {"*": {"value": KEEP}},
                "consumesCounters": [{"counterSet": KEEP, "counters": {"*": {"value": KEEP}}}],
                "taints": [{"key": KEEP, "effect": KEEP, "value": KEEP}],
            }
        ],
        "sharedCounters": [{"name": KEEP, "counters": {"*": {"value": KEEP}}}],
    },
}
CLAIM: Shape = {
    "metadata": _META,
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": KEEP,
                        "driver": KEEP,
                        "pool": KEEP,
                        "device": KEEP,
                        "consumedCapacity": {"*": KEEP},
                    }
                ]
            }
        },
        "reservedFor": [{"resource": KEEP, "name": KEEP, "uid": KEEP}],
    },
}
WEBHOOK: Shape = {
    "metadata": _META,
    "webhooks": [
        {
            "name": KEEP,
            "failurePolicy": KEEP,
            "timeoutSeconds": KEEP,
            "clientConfig": {"service": {"*": KEEP}},
            "rules": [{"operations": KEEP, "resources": KEEP, "apiGroups": KEEP}],
        }
    ],
}
VARIABLES = (  # environment variables that may be packed; not even the names of any others
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "PYVGPU_LOG",
    "PYVGPU_SIMULATED_MACHINE",
    "PYVGPU_SIMULATED_MACHINES",
    "XDG_CACHE_HOME",
)
