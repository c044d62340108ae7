"""Fake API server for the scheduler: binds and evicts pods like the real one, and can fail."""

from __future__ import annotations

from typing import Any

import small_api

from pyvgpu import names
from pyvgpu.allocator import annotations, datatypes

KEY = b"k" * 32
GIB = 1 << 30
UNIT = 256 << 20


def devices(
    node: str, count: int = 2, gibibytes: int = 16, **more: Any
) -> tuple[datatypes.NodeDevice, ...]:
    """Return the devices of a node."""
    return tuple(
        datatypes.NodeDevice(f"GPU-{node}-{at}", at, gibibytes * GIB, model="T4", **more)
        for at in range(count)
    )


def node(name: str, *had: datatypes.NodeDevice, unit: int = UNIT) -> dict[str, Any]:
    """Return a node with these devices, as its agent publishes them."""
    published = annotations.Published(unit, had or devices(name))
    text = annotations.publish(published)
    return {"metadata": {"name": name, "annotations": {names.NODE_DEVICES_ANNOTATION: text}}}


def container(name: str, vcore: int, units: int | str) -> dict[str, Any]:
    """Return a container with these limits and requests."""
    limits = {names.VCORE_RESOURCE: str(vcore), names.VMEMORY_RESOURCE: str(units)}
    asked = {key: text for key, text in limits.items() if text != "0"}
    return {"name": name, "resources": {"limits": asked, "requests": asked}}


def pod(
    name: str,
    vcore: int = 50,
    units: int | str = 8,
    noted: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pending pod; with vcore 0 it requests no device."""
    return {
        "metadata": {
            "namespace": "n",
            "name": name,
            "uid": f"uid-{name}",
            "annotations": noted or {},
            "creationTimestamp": "2026-11-22T03:00:00Z",
        },
        "spec": {"containers": [container("main", vcore, units)], **spec},
        "status": {"phase": "Pending"},
    }


def path(name: str) -> str:
    """Return the API path of a pod."""
    return f"/api/v1/namespaces/n/pods/{name}"


class SchedulingApi(small_api.SmallApi):
    """Objects by their paths, and the handling of bindings and evictions."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: list[str] = []  # drop the next bindings "before" or "after" executing them
        self.protected: set[str] = set()  # names of pods that a PodDisruptionBudget protects
        self.staying = 0  # how many of the next evicted pods keep terminating
        self.bound: list[tuple[str, str]] = []  # pods and nodes, in binding order

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Return the status code and the object for a request."""
        place, _, verb = path.rpartition("/")
        if method == "POST" and verb in ("binding", "eviction"):
            with self._changed:
                self.asked.append((method, path))
                self._changed.notify_all()
                return self._bind(place, body) if verb == "binding" else self._evict(place, body)
        if method == "GET" and query.get("labelSelector") and not self.failing:
            self.asked.append((method, path))
            key, _, value = query["labelSelector"].partition("=")
            found = [
                thing
                for thing in self.under(path)
                if (thing["metadata"].get("labels") or {}).get(key) == value
            ]
            return 200, {"metadata": {"resourceVersion": "1"}, "items": found}
        return super().answer(method, path, query, body)

    def _bind(self, place: str, body: Any) -> tuple[int, Any]:
        how = self.lose.pop(0) if self.lose else ""
        if how == "before":
            return 0, None
        if self.refusing.get("POST"):
            return self.refusing["POST"].pop(0), {"message": "as the test wants it"}
        thing = self._objects.get(place)
        if thing is None:
            return 404, {"message": "no such pod"}
        meta, now = body["metadata"], thing["metadata"]
        if (
            meta.get("uid", now["uid"]) != now["uid"]
            or meta.get("resourceVersion", now["resourceVersion"]) != now["resourceVersion"]
            or thing["spec"].get("nodeName")
            or now.get("deletionTimestamp")
        ):
            return 409, {"message": "it is another pod by now"}
        noted = {**(now.get("annotations") or {}), **(meta.get("annotations") or {})}
        target = body["target"]["name"]
        self._put(
            place,
            {
                **thing,
                "metadata": {**now, "annotations": noted},
                "spec": {**thing["spec"], "nodeName": target},
            },
        )
        self.bound.append((now["name"], target))
        return (0, None) if how == "after" else (201, {"status": "Success"})

    def _evict(self, place: str, body: Any) -> tuple[int, Any]:
        thing = self._objects.get(place)
        if thing is None:
            return 404, {"message": "no such pod"}
        wanted = body["deleteOptions"]["preconditions"]["uid"]
        if thing["metadata"]["uid"] != wanted:
            return 409, {"message": "it is another pod by now"}
        if thing["metadata"]["name"] in self.protected:
            return 429, {"message": "a budget forbids it"}
        if body["deleteOptions"].get("dryRun"):
            return 201, {"status": "Success"}
        if self.staying or thing["metadata"].get("deletionTimestamp"):
            self.staying = max(0, self.staying - 1)
            deleted = {"deletionTimestamp": "2026-11-22T03:00:00Z"}
            self._put(place, {**thing, "metadata": {**thing["metadata"], **deleted}})
        else:
            self._note("DELETED", place, self._objects.pop(place))
        return 201, {"status": "Success"}

    def choice(self, name: str) -> annotations.DeviceChoice:
        """Return the device choice of a bound pod."""
        thing = self.read(path(name))
        text = thing["metadata"]["annotations"][names.DEVICES_ANNOTATION]
        where = thing["spec"]["nodeName"]
        return annotations.open_sealed(text, [KEY], thing["metadata"]["uid"], where)
