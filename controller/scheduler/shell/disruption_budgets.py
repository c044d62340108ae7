"""PodDisruptionBudgets: which pods the API server would let us evict now.

A budget selects pods by labels, and our record of a pod has none: those of a hundred thousand
pods would be too many. So when preemption needs victims we list the pods that each budget in the
namespaces of known pods selects, and cache that for a few seconds. The Eviction API checks the
budgets again, and its answer decides.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu.controller.scheduler import victims
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.controller.scheduler import cache
    from pyvgpu.kube.objects import Object

log = logging.getLogger(__name__)

LASTS_SECONDS = 5.0
PROTECTED_SECONDS = 30.0  # during which a pod that may not be evicted is not tried again


def selector(budget: Object) -> str | None:
    """Return a budget's selector as the query of a list; None if it selects no pod."""
    wanted = objects.section(budget, "spec").get("selector")
    if not isinstance(wanted, dict):
        return None
    parts = [f"{key}={value}" for key, value in objects.section(wanted, "matchLabels").items()]
    for entry in objects.entries(wanted, "matchExpressions"):
        key, values = entry.get("key"), ",".join(objects.words(entry, "values"))
        match entry.get("operator"):
            case "In":
                parts.append(f"{key} in ({values})")
            case "NotIn":
                parts.append(f"{key} notin ({values})")
            case "Exists":
                parts.append(f"{key}")
            case "DoesNotExist":
                parts.append(f"!{key}")
    return ",".join(parts)


@dataclasses.dataclass(frozen=True, slots=True)
class _Counted:
    """The pods that a budget selects."""

    at: float
    uids: frozenset[str]


class Reader:
    """Reads budgets; thread-safe."""

    def __init__(
        self, api: apiserver.ApiServer, known: Callable[[], Sequence[Object]], pods: cache.Cache
    ) -> None:
        """Read nothing yet; *known* budgets in namespaces without pods of *pods* are ignored."""
        self._api = api
        self._known = known
        self._cache = pods
        self._counted: dict[str, _Counted] = {}  # by namespace/name
        self._protected: dict[str, float] = {}  # by uid, until when
        self._lock = threading.Lock()

    def protect(self, uid: str) -> None:
        """Note that the API server refused to evict a pod."""
        with self._lock:
            self._protected[uid] = time.monotonic() + PROTECTED_SECONDS

    def read(self) -> victims.Budgets:
        """Return the budgets as they are now."""
        namespaces = {key.partition("/")[0] for key in tuple(self._cache.pods)}
        now = time.monotonic()
        allowed: dict[str, int] = {}
        of: dict[str, list[str]] = {}
        for budget in self._known():
            meta = objects.section(budget, "metadata")
            namespace = str(meta.get("namespace"))
            if namespace not in namespaces:
                continue
            key = f"{namespace}/{meta.get('name')}"
            left = objects.section(budget, "status").get("disruptionsAllowed")
            allowed[key] = left if type(left) is int else 0
            for uid in self._uids(key, namespace, budget, now):
                of.setdefault(uid, []).append(key)
        with self._lock:
            self._protected = {uid: at for uid, at in self._protected.items() if at > now}
            protected = frozenset(self._protected)
        return victims.Budgets(lambda pod: of.get(pod.uid, ()), allowed, protected)

    def _uids(self, key: str, namespace: str, budget: Object, now: float) -> frozenset[str]:
        before = self._counted.get(key)
        if before is not None and now < before.at + LASTS_SECONDS:
            return before.uids
        wanted = selector(budget)
        found: frozenset[str] = frozenset()
        if wanted is not None:
            path, query = f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": wanted}
            try:
                listed, _ = self._api.items(path, query)
            except apiserver.ServerError as exc:
                log.warning("cannot list the pods of PodDisruptionBudget %s: %s", key, exc)
                return before.uids if before else found
            found = frozenset(str(objects.section(pod, "metadata").get("uid")) for pod in listed)
        self._counted[key] = _Counted(now, found)
        return found
