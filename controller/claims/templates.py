"""Life cycle of claim templates: when a use is noted and when a template is unused; pure.

The webhook writes the time of use on a template that it needs, unless a use was noted within
NOTED. A template is collected when its use is older than KEPT and no pod names it. KEPT is so much
longer that no template is deleted while a pod that needs it is being created, even if our watch
lags.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller.claims import claim_templates
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyvgpu.kube.objects import Object

FOLDER = "/apis/resource.k8s.io/v1"
ALL = f"{FOLDER}/resourceclaimtemplates"
OURS = {"labelSelector": names.CLAIM_TEMPLATE_LABEL}
NOTED = datetime.timedelta(minutes=10)  # a use noted within this time is not noted again
KEPT = datetime.timedelta(minutes=60)  # a template that no pod names stays this long
_LONG_AGO = datetime.datetime.fromtimestamp(0, datetime.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """The fields of a template that we keep."""

    namespace: str
    name: str
    uid: str
    version: str
    used: datetime.datetime


def path(namespace: str, name: str = "") -> str:
    """Return the API path of a namespace's templates, or of the one called *name*."""
    folder = f"{FOLDER}/namespaces/{namespace}/resourceclaimtemplates"
    return f"{folder}/{name}" if name else folder


def read(thing: Object) -> Template:
    """Return the template *thing*; one without a valid time counts as used long ago."""
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
    """Return the metadata that notes a use now."""
    return {"annotations": {names.CLAIM_TEMPLATE_USED_ANNOTATION: objects.now()}}


def is_noted(template: Template | None, now: datetime.datetime) -> bool:
    """Return whether a recent use is noted; a time more than NOTED in the future is invalid."""
    return template is not None and now - NOTED < template.used <= now + NOTED


def old(known: Iterable[Template], now: datetime.datetime) -> dict[str, list[Template]]:
    """Return the templates that may be deleted if no pod names them, by namespace."""
    found: dict[str, list[Template]] = {}
    for one in known:
        if claim_templates.is_ours(one.name) and now - one.used > KEPT:
            found.setdefault(one.namespace, []).append(one)
    return found


def unused(candidates: Iterable[Template], named: Collection[str]) -> list[Template]:
    """Return the *candidates* of one namespace that are not in *named*, which its pods name."""
    return [one for one in candidates if one.name not in named]


def named_by(pod: Object) -> set[str]:
    """Return the templates that a pod names."""
    listed = objects.entries(objects.section(pod, "spec"), "resourceClaims")
    return {str(claim.get("resourceClaimTemplateName") or "") for claim in listed} - {""}
