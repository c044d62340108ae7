"""Permissions that the chart grants each ServiceAccount, as rows for the documentation."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Things = Iterable[Mapping[str, Any]]

Rights = set[tuple[str, str, str]]  # where, resource, verbs


def granted(things: Things) -> dict[str, Rights]:
    """Return by ServiceAccount where it may do what: (namespace or everywhere, resource, verbs).

    A resource is followed by the names of objects to which the permission is limited. Roles that
    are not among *things*, which are Kubernetes' own, count as a resource *role NAME*.
    """
    every = list(things)
    roles = {
        (thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"]): thing
        for thing in every
        if thing["kind"] in ("Role", "ClusterRole")
    }
    verbs: dict[tuple[str, str, str], set[str]] = collections.defaultdict(set)
    for binding in every:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        here = binding["metadata"].get("namespace", "")
        reference = binding["roleRef"]
        home = here if reference["kind"] == "Role" else ""
        role = roles.get((reference["kind"], home, reference["name"]))
        place = "everywhere" if binding["kind"] == "ClusterRoleBinding" else here
        for subject in binding["subjects"]:
            if role is None:
                verbs[subject["name"], place, f"role {reference['name']}"].add(
                    "as Kubernetes' own"
                )
                continue
            for rule in role["rules"]:
                only = f" {', '.join(rule['resourceNames'])}" if rule.get("resourceNames") else ""
                for resource in rule["resources"]:
                    verbs[subject["name"], place, resource + only].update(rule["verbs"])
    found: dict[str, Rights] = collections.defaultdict(set)
    for (account, place, resource), allowed in verbs.items():
        found[account].add((place, resource, ", ".join(sorted(allowed))))
    return dict(found)


def table(things: Things) -> list[str]:
    """Return the documentation's rows: one for each account, place and set of verbs."""
    rows = []
    for account, rights in sorted(granted(things).items()):
        grouped: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for place, resource, allowed in sorted(rights):
            grouped[place, allowed].append(resource)
        rows += [
            f"| {account} | {place} | {'; '.join(resources)} | {allowed} |"
            for (place, allowed), resources in sorted(grouped.items())
        ]
    return rows
