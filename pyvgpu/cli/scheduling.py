"""What commands know of devices in a cluster: a book as the scheduler has one, to look into.

Choices that stand on pods are believed as they stand, for a person has no key; nothing is given
by what is said here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import amounts
from pyvgpu.controller import objects
from pyvgpu.controller.scheduler import asks, book, declared
from pyvgpu.kube import apiserver, informer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from pathlib import Path

    from pyvgpu.controller.objects import Object


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where pods go."""
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        default=asks.Policy.BINPACK.value,
        help="where pods go that do not say: binpack, spread or topology (%(default)s)",
    )


def read_settings(options: argparse.Namespace) -> book.Settings:
    """Return what that option says; UsageError for what is no policy."""
    return book.Settings(policy=asks.read_policy(options.policy, "--policy"))


def from_cluster(api: apiserver.ApiServer, settings: book.Settings) -> book.Book:
    """Read it from a cluster; UnavailableError with what right is missing."""
    found = book.Book(settings)
    for path, what, tell in (
        ("/api/v1/nodes", "nodes", tell_nodes),
        ("/api/v1/pods", "pods of all namespaces", tell_pods),
    ):
        try:
            for page, _ in api.pages(path, {}):
                tell(found, page)
        except apiserver.ServerError as exc:
            if exc.status != 403:
                raise
            raise errors.UnavailableError(
                f"you may not list {what}: it takes that right to say which devices are in use"
            ) from exc
    return found


def from_file(path: Path, settings: book.Settings) -> book.Book:
    """Read it from what `kubectl get nodes,pods -A -o json` has written."""
    things = read_objects(path)
    found = book.Book(settings)
    tell_nodes(found, (it for it in things if it.get("kind") == "Node"))
    tell_pods(found, (it for it in things if it.get("kind") == "Pod"))
    return found


def tell_nodes(known: book.Book, nodes: Iterable[Object]) -> None:
    """Note what nodes say."""
    for node in nodes:
        told = declared.read(node)
        known.see_node(informer.key_of(node), told.published, told.trouble)


def tell_pods(known: book.Book, pods: Iterable[Object]) -> None:
    """Note what pods have, by what stands on them."""
    for pod in pods:
        known.see_pod(informer.key_of(pod), asks.read(pod, None))


def unit_of(known: book.Book) -> int:
    """Return the bytes of one vmemory as nodes have it, or the default where none says it."""
    units = (it.unit for it in known.stands.values() if it.unit)
    return next(units, amounts.UNIT_BYTES)


def read_objects(path: Path) -> list[Object]:
    """Return the objects in a file of JSON or YAML, those of lists one by one; DataError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.DataError(f"{path}: cannot be read: {exc}") from exc
    with errors.needing("PyYAML", "kubernetes"):
        import yaml
    try:
        found = [json.loads(text)] if text.lstrip()[:1] == "{" else list(yaml.safe_load_all(text))
    except (ValueError, yaml.YAMLError, RecursionError) as exc:
        raise errors.DataError(
            f"{path}: must be objects as kubectl writes them, in JSON or YAML: {exc}"
        ) from exc
    return [it for one in found for it in _each(one, path)]


def _each(found: object, path: Path) -> Iterable[Object]:
    if found is None:
        return
    if not isinstance(found, dict):
        raise errors.DataError(
            f"{path}: has {str(found)[:40]!r}, which is no object: must be such as "
            "`kubectl get pods -o yaml` writes"
        )
    if str(found.get("kind", "")).endswith("List") and "items" in found:
        for it in objects.entries(found, "items"):
            yield from _each(it, path)
    else:
        yield found
