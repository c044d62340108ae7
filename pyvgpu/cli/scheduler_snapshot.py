"""Read-only scheduler cache for commands, filled from a cluster or a file.

Device choices in pod annotations are trusted without checking their seal, because users do not
have the key; commands only print them and allocate nothing.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from pyvgpu import errors, input_files
from pyvgpu.allocator import amounts
from pyvgpu.controller.scheduler import cache, node_annotation_reader, pod_request
from pyvgpu.kube import apiserver, informer, objects

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyvgpu.kube.objects import Object

_MOST_VALUES = 10  # in a file, for each of its characters


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the placement policy option."""
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        default=pod_request.NodePolicy.BINPACK.value,
        help="placement of pods that name no policy: binpack, spread or topology (%(default)s)",
    )


def read_settings(options: argparse.Namespace) -> cache.SchedulerSettings:
    """Return the settings with the policy option; UsageError if it is not a policy."""
    return cache.SchedulerSettings(policy=pod_request.read_policy(options.policy, "--policy"))


def from_cluster(api: apiserver.ApiServer, settings: cache.SchedulerSettings) -> cache.Cache:
    """Read the cache from a cluster; UnavailableError names a missing permission."""
    found = cache.Cache(settings)
    for path, what, add in (
        ("/api/v1/nodes", "nodes", tell_nodes),
        ("/api/v1/pods", "pods of all namespaces", tell_pods),
    ):
        try:
            for page, _ in api.pages(path, {}):
                add(found, page)
        except apiserver.ServerError as exc:
            if exc.status != 403:
                raise
            raise errors.UnavailableError(
                f"you may not list {what}: this permission is needed to tell which devices "
                f"are in use"
            ) from exc
    return found


def from_objects(things: Sequence[Object], settings: cache.SchedulerSettings) -> cache.Cache:
    """Return the cache of a cluster that has these nodes and pods."""
    found = cache.Cache(settings)
    tell_nodes(found, nodes_of(things))
    tell_pods(found, (thing for thing in things if thing.get("kind") == "Pod"))
    return found


def nodes_of(things: Iterable[Object]) -> list[Object]:
    """Return the nodes among *things*."""
    return [thing for thing in things if thing.get("kind") == "Node"]


def tell_nodes(known: cache.Cache, nodes: Iterable[Object]) -> None:
    """Add what the agents of *nodes* published to the cache."""
    for node in nodes:
        found = node_annotation_reader.read(node)
        known.see_node(informer.key_of(node), found.published, found.trouble)


def tell_pods(known: cache.Cache, pods: Iterable[Object]) -> None:
    """Add the devices of *pods*, from their annotations, to the cache."""
    for pod in pods:
        known.see_pod(informer.key_of(pod), pod_request.read(pod, None))


def unit_of(known: cache.Cache) -> int:
    """Return the bytes of one vmemory as the nodes publish it, or the default."""
    units = (info.unit for info in known.nodes.values() if info.unit)
    return next(units, amounts.UNIT_BYTES)


def read_objects(path: Path) -> list[Object]:
    """Return the objects in a JSON or YAML input, with lists flattened; DataError if invalid."""
    text = input_files.read_input(
        path, "must be a file of Kubernetes objects, such as `kubectl get pods -o yaml` writes"
    )
    name = input_files.title(path)
    with errors.needing("PyYAML", "kubernetes"):
        import yaml
    try:
        found = [json.loads(text)] if text.lstrip()[:1] == "{" else list(yaml.safe_load_all(text))
        values = _expanded(found, {})
    except (ValueError, yaml.YAMLError, RecursionError) as exc:
        raise errors.DataError(
            f"{name}: must be objects as kubectl writes them, in JSON or YAML: "
            f"{errors.reason_of(exc)}"
        ) from exc
    if values > _MOST_VALUES * (1 + len(text)):
        raise errors.DataError(
            f"{name}: repeats itself without end by YAML aliases (*NAME): must be objects as "
            "kubectl writes them, without aliases"
        )
    return [thing for one in found for thing in _each(one, name)]


def _expanded(value: object, known: dict[int, float]) -> float:
    """Return the number of values in *value*, counted again for each alias; inf in a cycle."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(value)]


def _each(found: object, name: str) -> Iterable[Object]:
    if found is None:
        return
    if not isinstance(found, dict):
        raise errors.DataError(
            f"{name}: has {str(found)[:40]!r}, which is not an object: must be Kubernetes "
            "objects, such as `kubectl get pods -o yaml` writes"
        )
    if str(found.get("kind", "")).endswith("List") and "items" in found:
        for entry in objects.entries(found, "items"):
            yield from _each(entry, name)
    else:
        yield found
