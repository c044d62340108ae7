"""Accessors for Kubernetes objects (plain JSON), and JSON patches for them.

Reading is lenient: a section that is absent or null is empty, since many clients send it so.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from pyvgpu.kube import apiserver

OURS = {"app.kubernetes.io/name": "pyvgpu"}  # label of objects that we create, to find them
MOST_ANNOTATION_BYTES = 256 * 1024  # the API server's limit for all annotations of an object

Object = apiserver.Object
Operation = dict[str, Any]  # one operation of a JSON patch (RFC 6902)


def section(parent: Object, *path: str) -> Object:
    """Return the mapping at *path*, an empty one where there is none."""
    for name in path:
        found = parent.get(name)
        if not found or (type(found) is not dict and not isinstance(found, Mapping)):
            return {}
        parent = found
    return parent


def entries(parent: Object, name: str) -> Sequence[Object]:
    """Return the list of mappings called *name*, an empty one where there is none."""
    found = parent.get(name)
    if not found or (type(found) is not list and not isinstance(found, Sequence)):
        return ()
    # The first check is for speed: the type that JSON parses to; a pod has hundreds of entries.
    return [entry for entry in found if type(entry) is dict or isinstance(entry, Mapping)]


def words(parent: Object, name: str) -> tuple[str, ...]:
    """Return the list of strings called *name*, an empty one where there is none."""
    found = parent.get(name)
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def annotation_bytes(annotations: Object) -> int:
    """Return the size of annotations, by the API server's rule."""
    return sum(len(str(k).encode()) + len(str(v).encode()) for k, v in annotations.items())


def owner(kind: str, thing: Object) -> dict[str, str]:
    """Return a reference to *thing*, of *kind* in v1, for metadata.ownerReferences."""
    meta = section(thing, "metadata")
    return {"apiVersion": "v1", "kind": kind, "name": meta["name"], "uid": meta["uid"]}


def now() -> str:
    """Return the time in the format of Kubernetes objects, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_of(text: Any) -> datetime.datetime | None:
    """Return a time of the API server; None if it is absent, or not one that Python knows.

    A client may write any offset: 9999-12-31T23:59:59-01:00 is read back in the year 10000.
    """
    if not text:  # of most containers: they have not ended
        return None
    try:
        found = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def pointer(*path: str | int) -> str:
    """Return *path* as a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(name).replace('~', '~0').replace('/', '~1')}" for name in path)


def expect(value: Any, *path: str | int) -> Operation:
    """Refuse the whole patch unless *value* is at *path*."""
    return {"op": "test", "path": pointer(*path), "value": value}


def put(value: Any, *path: str | int) -> Operation:
    """Set the member at *path*, whether it exists or not; or insert into a list."""
    return {"op": "add", "path": pointer(*path), "value": value}


def remove(*path: str | int) -> Operation:
    """Remove the member at *path*, which must exist."""
    return {"op": "remove", "path": pointer(*path)}


def annotate(existing: Object, changes: Mapping[str, str | None]) -> list[Operation]:
    """Set annotations, and remove those whose new value is None."""
    changed = {key: value for key, value in changes.items() if existing.get(key) != value}
    operations = [] if existing or not changed else [put({}, "metadata", "annotations")]
    for key, value in changed.items():
        path = ("metadata", "annotations", key)
        operations.append(remove(*path) if value is None else put(value, *path))
    return operations
