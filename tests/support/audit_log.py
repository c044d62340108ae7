"""The API server's audit log: what the chart's programs have requested in the cluster."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from permissions import Rights

EVERYWHERE = "everywhere"

Permission = tuple[str, str, str, str]  # account, namespace or everywhere, resource, verb


@dataclasses.dataclass(frozen=True, slots=True)
class AuditedRequest:
    """A request by a ServiceAccount."""

    account: str
    verb: str
    resource: str  # with its subresource
    namespace: str
    name: str
    allowed: bool

    def needs(self, permission: Permission) -> bool:
        """Return whether *permission* allows it."""
        account, place, resource, verb = permission
        kind, _, only = resource.partition(" ")
        return (
            (account, verb, kind) == (self.account, self.verb, self.resource)
            and place in (EVERYWHERE, self.namespace)
            and (not only or self.name in only.split(", "))
        )


def size() -> int:
    """Return the length of the log, in bytes."""
    file = _file()
    return file.stat().st_size if file.exists() else 0


def requests(since: int) -> Iterator[AuditedRequest]:
    """Yield the requests for resources after the first *since* bytes."""
    with _file().open("rb") as file:
        file.seek(since)
        for line in file:
            event = json.loads(line)
            asked = event.get("objectRef", {})
            if asked.get("resource"):
                parts = (asked["resource"], asked.get("subresource", ""))
                yield AuditedRequest(
                    event["user"]["username"].rpartition(":")[2],
                    event["verb"],
                    "/".join(part for part in parts if part),
                    asked.get("namespace", ""),
                    asked.get("name", ""),
                    event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow",
                )


def permissions(granted: Mapping[str, Rights]) -> set[Permission]:
    """Return the single permissions of all accounts, without Kubernetes' own roles."""
    return {
        (account, place, resource, verb)
        for account, rights in granted.items()
        for place, resource, verbs in rights
        if not resource.startswith("role ")
        for verb in verbs.split(", ")
    }


def unused(granted: Iterable[Permission], asked: Iterable[AuditedRequest]) -> set[Permission]:
    """Return the permissions that no request needs."""
    seen = set(asked)
    return {one for one in granted if not any(request.needs(one) for request in seen)}


def _file() -> Path:
    return Path(os.environ["CLUSTER_RUN"], "log", "audit.jsonl")
