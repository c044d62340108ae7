"""Templates of claims in the API server: when a use is noted, and when they are collected; pure.

Who needs a template notes on it when, unless that was noted a short time ago. It is collected when
that is long ago and no pod names it. The two times are so far apart that no template goes while a
pod that it was looked at for is on its way, whatever is known of it late.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller import objects
from pyvgpu.controller.claims import shapes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyvgpu.controller.objects import Object

FOLDER = "/apis/resource.k8s.io/v1"
ALL = f"{FOLDER}/resourceclaimtemplates"
OURS = {"labelSelector": names.CLAIM_TEMPLATE_LABEL}
NOTED = datetime.timedelta(minutes=10)  # for which a use that was noted is not noted again
KEPT = datetime.timedelta(minutes=60)  # for which a template stays that no pod names
_LONG_AGO = datetime.datetime.fromtimestamp(0, datetime.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """What is kept of a template."""

    namespace: str
    name: str
    uid: str
    version: str
    used: datetime.datetime


def path(namespace: str, name: str = "") -> str:
    """Return where templates are, in a URL."""
    folder = f"{FOLDER}/namespaces/{namespace}/resourceclaimtemplates"
    return f"{folder}/{name}" if name else folder


def read(thing: Object) -> Template:
    """Return what is kept of *thing*; one without a time was used long ago."""
    meta = objects.section(thing, "metadata")
    text = objects.section(meta, "annotations").get(names.CLAIM_TEMPLATE_USED_ANNOTATION)
    try:
        used = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        used = _LONG_AGO
    return Template(
        str(meta.get("namespace") or ""),
        str(meta.get("name") or ""),
        str(meta.get("uid") or ""),
        str(meta.get("resourceVersion") or ""),
        used if used.tzinfo else used.replace(tzinfo=datetime.UTC),
    )


def make(namespace: str, name: str, spec: Object) -> dict[str, Any]:
    """Return a new template, used now."""
    labels = {names.CLAIM_TEMPLATE_LABEL: "shape"}
    metadata = {"namespace": namespace, "name": name, "labels": labels, **used_now()}
    return {"metadata": metadata, "spec": {"spec": spec}}


def used_now() -> dict[str, Any]:
    """Return the metadata that note a use."""
    return {"annotations": {names.CLAIM_TEMPLATE_USED_ANNOTATION: objects.now()}}


def is_noted(template: Template | None, now: datetime.datetime) -> bool:
    """Tell whether a use needs not be noted again; a time in the future is somebody's error."""
    return template is not None and now - NOTED < template.used <= now + NOTED


def old(known: Iterable[Template], now: datetime.datetime) -> dict[str, list[Template]]:
    """Return the templates that may go if no pod names them, by namespace."""
    found: dict[str, list[Template]] = {}
    for one in known:
        if shapes.is_ours(one.name) and now - one.used > KEPT:
            found.setdefault(one.namespace, []).append(one)
    return found


def unused(candidates: Iterable[Template], named: Collection[str]) -> list[Template]:
    """Return those of one namespace that no pod there names."""
    return [it for it in candidates if it.name not in named]


def named_by(pod: Object) -> set[str]:
    """Return the templates that a pod names."""
    listed = objects.entries(objects.section(pod, "spec"), "resourceClaims")
    return {str(it.get("resourceClaimTemplateName") or "") for it in listed} - {""}
