"""Which pods must not be ended, by PodDisruptionBudgets: as the API server counts them now.

A budget says by labels whom it counts, and our record of a pod has none: a hundred thousand pods
would have too many. So the API server is asked which pods a budget counts, when somebody may have
to go, of the budgets in those namespaces alone; that holds for a few seconds. Whoever is ended
through the Eviction API is counted there once more, and that is what holds.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu.controller import objects
from pyvgpu.controller.scheduler import victims
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.scheduler import book

log = logging.getLogger(__name__)

LASTS_SECONDS = 5.0
PROTECTED_SECONDS = 30.0  # for which nobody is asked again to go who was not allowed to


def selector(budget: Object) -> str | None:
    """Return the labels of those whom a budget counts, as a list is asked for; None: nobody."""
    wanted = objects.section(budget, "spec").get("selector")
    if not isinstance(wanted, dict):
        return None
    parts = [f"{key}={value}" for key, value in objects.section(wanted, "matchLabels").items()]
    for it in objects.entries(wanted, "matchExpressions"):
        key, values = it.get("key"), ",".join(objects.words(it, "values"))
        match it.get("operator"):
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
    """Whom a budget counts."""

    at: float
    uids: frozenset[str]


class Reader:
    """Reads budgets; several threads may ask."""

    def __init__(
        self, api: apiserver.ApiServer, known: Callable[[], Sequence[Object]], pods: book.Book
    ) -> None:
        """Read nothing yet; of what is *known*, what counts no pod of *pods* does not matter."""
        self._api = api
        self._known = known
        self._book = pods
        self._counted: dict[str, _Counted] = {}  # by namespace/name
        self._protected: dict[str, float] = {}  # by uid, until when
        self._guard = threading.Lock()

    def protect(self, uid: str) -> None:
        """Note that a pod was not allowed to go."""
        with self._guard:
            self._protected[uid] = time.monotonic() + PROTECTED_SECONDS

    def read(self) -> victims.Budgets:
        """Return what holds now."""
        namespaces = {key.partition("/")[0] for key in tuple(self._book.pods)}
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
        with self._guard:
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
                log.warning("did not read which pods budget %s counts: %s", key, exc)
                return before.uids if before else found
            found = frozenset(str(objects.section(it, "metadata").get("uid")) for it in listed)
        self._counted[key] = _Counted(now, found)
        return found
