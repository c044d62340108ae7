"""Time-sharing options of users: pod annotations, or a claim's opaque configuration.

Both have the same options: the policy, the limit of an elastic share, and the priority. A limit
without a policy means elastic, as in gpu-manager.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pyvgpu import errors, names, quantity, quota

if TYPE_CHECKING:
    from collections.abc import Iterable

KIND = "VGPUConfig"  # of the opaque configuration of a claim or class
API_VERSION = f"{names.DOMAIN}/v1alpha1"
POLICY, LIMIT, PRIORITY = "policy", "vcoreLimit", "priority"  # beside apiVersion and kind
EXAMPLE = f"{{apiVersion: {API_VERSION}, kind: {KIND}, policy: elastic, vcoreLimit: 80}}"

_ALL = (LIMIT, POLICY, PRIORITY)
_Word = TypeVar("_Word", quota.TimePolicy, quota.Priority)


@dataclasses.dataclass(frozen=True, slots=True)
class TimeSharing:
    """The time-sharing options."""

    policy: quota.TimePolicy = quota.TimePolicy.HARD
    ceiling: int | None = None  # most vcore of an elastic share; None: the whole device
    priority: quota.Priority = quota.Priority.NORMAL


def read(annotations: Mapping[str, str]) -> TimeSharing | None:
    """Return the policy of a pod's *annotations*, None if they have none; UsageError.

    Our limit overrides gpu-manager's. Like gpu-manager, treat a limit of its above 100 as 100.
    """
    text = annotations.get(names.VCORE_LIMIT_ANNOTATION)
    ceiling = None if text is None else quantity.parse_vcore(text, names.VCORE_LIMIT_ANNOTATION)
    theirs = annotations.get(names.GAIA_LIMIT_ANNOTATION)
    if ceiling is None and theirs is not None:
        ceiling = _parse_theirs(theirs)
    named = annotations.get(names.VCORE_POLICY_ANNOTATION)
    if named is None and ceiling is None:
        return None
    if named is None:
        policy = quota.TimePolicy.ELASTIC
    else:
        policy = quota.TimePolicy.parse(named, names.VCORE_POLICY_ANNOTATION)
    if policy is quota.TimePolicy.HARD and text is not None:
        raise errors.UsageError(
            f"{names.VCORE_LIMIT_ANNOTATION} {text!r}: needs {names.VCORE_POLICY_ANNOTATION} "
            "elastic, or no policy"
        )
    return TimeSharing(policy, ceiling if policy is quota.TimePolicy.ELASTIC else None)


def read_priority(annotations: Mapping[str, str]) -> quota.Priority | None:
    """Return the priority of *annotations*, None if they have none; UsageError."""
    text = annotations.get(names.PRIORITY_ANNOTATION)
    return None if text is None else quota.Priority.parse(text, names.PRIORITY_ANNOTATION)


def read_parameters(parameters: object) -> TimeSharing:
    """Parse the *parameters* of an opaque configuration, as decoded JSON.

    UsageError names valid values.
    """
    if not isinstance(parameters, Mapping):
        raise errors.UsageError(f"parameters {_short(parameters)}: must be such as {EXAMPLE}")
    kind = parameters.get("apiVersion"), parameters.get("kind")
    if kind != (API_VERSION, KIND):
        raise errors.UsageError(
            f"parameters of apiVersion {_short(kind[0])}, kind {_short(kind[1])}: must be a "
            f"{KIND} of {API_VERSION}, such as {EXAMPLE}"
        )
    for name in parameters:
        if name not in (*_ALL, "apiVersion", "kind"):
            raise errors.UsageError(
                f"{_short(name)}: is not a field of a {KIND}; it has {POLICY}, {LIMIT} and "
                f"{PRIORITY}, such as {EXAMPLE}"
            )
    priority = _read_word(parameters, PRIORITY, quota.Priority)
    policy = _read_word(parameters, POLICY, quota.TimePolicy)
    ceiling = parameters.get(LIMIT)
    if ceiling is not None and (
        isinstance(ceiling, bool)
        or not isinstance(ceiling, int)
        or not 1 <= ceiling <= quantity.WHOLE_DEVICE
    ):
        raise errors.UsageError(
            f"{LIMIT} {_short(ceiling)}: must be a whole number from 1 to "
            f"{quantity.WHOLE_DEVICE}, such as 80"
        )
    if policy is quota.TimePolicy.HARD and ceiling is not None:
        raise errors.UsageError(f"{LIMIT} {ceiling}: needs {POLICY} elastic, or no policy")
    if policy is None:
        policy = quota.TimePolicy.HARD if ceiling is None else quota.TimePolicy.ELASTIC
    return TimeSharing(policy, ceiling, priority or quota.Priority.NORMAL)


def _read_word(parameters: Mapping[str, Any], name: str, kind: type[_Word]) -> _Word | None:
    """Return the member of *kind* that a parameter names, None if it is missing."""
    text = parameters.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise kind.unknown(_short(text), name)
    return kind.parse(text, name)


def parameters_of(time_sharing: TimeSharing) -> dict[str, Any]:
    """Return *time_sharing* as parameters."""
    said: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        POLICY: time_sharing.policy.name.lower(),
    }
    if time_sharing.ceiling is not None:
        said[LIMIT] = time_sharing.ceiling
    if time_sharing.priority is not quota.Priority.NORMAL:  # older agents do not know this field
        said[PRIORITY] = time_sharing.priority.name.lower()
    return said


def of_request(configurations: Iterable[Mapping[str, Any]], request: str) -> TimeSharing:
    """Return the options for a request from the *configurations* of an allocated claim.

    Configurations of other drivers are ignored; the claim's override the class's, and the last
    one of each counts. *request* may be one of several alternatives: ``main/large``. UsageError
    as in read_parameters.
    """
    found: TimeSharing | None = None
    from_claim = False
    for one in configurations:
        opaque = one.get("opaque") or {}
        about = one.get("requests") or ()
        if opaque.get("driver") != names.DRA_DRIVER or (
            about and request not in about and request.partition("/")[0] not in about
        ):
            continue
        time_sharing = read_parameters(opaque.get("parameters"))
        of_claim = one.get("source") == "FromClaim"
        if of_claim or not from_claim:
            found, from_claim = time_sharing, of_claim
    return found or TimeSharing()


def _parse_theirs(text: str) -> int:
    option = names.GAIA_LIMIT_ANNOTATION
    if text.isascii() and text.isdecimal() and len(text) < 10:
        text = str(min(int(text), quantity.WHOLE_DEVICE))
    return quantity.parse_vcore(text, option)


def _short(value: object) -> str:
    """Format a value of any type, shortened."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
