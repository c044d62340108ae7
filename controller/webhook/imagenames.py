"""Rewrite image names by an administrator's rules, for example to a registry mirror.

A rule applies to the fully qualified name: ``nginx`` is ``docker.io/library/nginx``. The first
rule that matches rewrites the name; a name that none matches stays as it was written. A rewritten
name begins with its rule's own text, and names that begin so are never changed, so rewriting is
idempotent.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.controller.webhook import drafts, review
from pyvgpu.kube import objects, yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyvgpu.kube.objects import Object

PARTS = ("initContainers", "containers", "ephemeralContainers")
_KEYS = {"prefix", "pattern", "to", "namespaces"}
_EXAMPLE = "{prefix: docker.io/, to: mirror.example/docker.io/, namespaces: [team-*]}"
_REFERENCE = re.compile(r"\\(?:[0-9]|g<)")


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite rule."""

    pattern: re.Pattern[str]  # of a fully qualified name
    to: str  # the replacement, with group references as in ``re.sub``
    namespaces: tuple[str, ...] = ("*",)

    @property
    def begin(self) -> str:
        """The prefix of all names that it produces."""
        return _REFERENCE.split(self.to, maxsplit=1)[0]


def load(path: Path) -> tuple[Rule, ...]:
    """Read a YAML file of rules; DataError with the rule and a valid example."""
    document = yaml_file.read(path, "--image-rules")
    if not isinstance(document, list):
        raise errors.DataError(f"{path}: must be a list of rules, such as [{_EXAMPLE}]")
    return tuple(_rule(entry, f"{path}: rule {at}") for at, entry in enumerate(document, 1))


def _rule(entry: Any, name: str) -> Rule:
    if (
        not isinstance(entry, dict)
        or entry.keys() - _KEYS
        or ("prefix" in entry) == ("pattern" in entry)
        or not all(
            isinstance(value, str) and value for key, value in entry.items() if key != "namespaces"
        )
    ):
        raise errors.DataError(
            f"{name}: {str(entry)[:80]}: must have a prefix or a pattern, a to, and "
            f"optionally namespaces, as patterns; such as {_EXAMPLE}"
        )
    namespaces = entry.get("namespaces", ["*"])
    if not isinstance(namespaces, list) or not all(
        isinstance(namespace, str) for namespace in namespaces
    ):
        raise errors.DataError(
            f"{name}: namespaces {namespaces}: must be a list, such as [team-*]"
        )
    to = entry.get("to", "")
    if "prefix" in entry:
        rule = Rule(re.compile(re.escape(entry["prefix"]) + "(.*)"), _plain(to) + r"\1")
    else:
        rule = Rule(_compiled(entry["pattern"], to, name), to)
    if "/" not in rule.begin:
        raise errors.DataError(
            f"{name}: to {to!r}: must begin with a registry and a slash, which mark names "
            f"that were already rewritten, such as mirror.example/"
        )
    return dataclasses.replace(rule, namespaces=tuple(namespaces))


def _plain(text: str) -> str:
    return text.replace("\\", r"\\")


def _compiled(pattern: str, to: str, name: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
        re.compile(pattern + "|").sub(to, "")  # check its group references
    except (re.error, IndexError) as exc:
        raise errors.DataError(
            f"{name}: pattern {pattern!r} to {to!r}: {exc}; must be a regular expression and a "
            r"replacement of the whole name, such as quay\.io/(.*) to mirror.example/quay/\1"
        ) from exc
    return compiled


def whole_name(image: str) -> str:
    """Return the fully qualified name of an image."""
    first, slash, rest = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    if first != "localhost" and not set(".:") & set(first):
        return f"docker.io/{image}"
    return f"docker.io/library/{rest}" if first == "docker.io" and "/" not in rest else image


def rename(image: str, namespace: str, rules: Sequence[Rule]) -> str:
    """Return *image* rewritten by the rules for *namespace*."""
    whole = whole_name(image)
    here = [
        rule
        for rule in rules
        if any(fnmatch.fnmatchcase(namespace, pattern) for pattern in rule.namespaces)
    ]
    if any(whole.startswith(rule.begin) for rule in rules):
        return image
    for rule in here:
        match = rule.pattern.fullmatch(whole)
        if match:
            return match.expand(rule.to)
    return image


def mutation(rules: Sequence[Rule]) -> review.Mutation:
    """Return the mutation of new pods and of added ephemeral containers."""

    def mutate(request: review.AdmissionRequest) -> review.Review:
        if (request.resource, request.operation) not in (
            ("pods", "CREATE"),
            ("pods/ephemeralcontainers", "UPDATE"),
        ):
            return review.Review()
        known = _images(request.former)
        draft = drafts.Draft(request.thing)
        spec = objects.section(draft.document, "spec")
        for part in PARTS:
            for place, container in enumerate(spec.get(part) or ()):
                image = _image(container)
                if image and (part, container.get("name")) not in known:
                    renamed = rename(image, request.namespace, rules)
                    draft.put(renamed, "spec", part, place, "image")
        return review.Review(tuple(draft.operations))

    return mutate


def _images(pod: Object) -> Mapping[tuple[str, Any], str]:
    """Return the images of a pod's existing containers, which must not change."""
    spec = objects.section(pod, "spec")
    return {
        (part, container.get("name")): _image(container)
        for part in PARTS
        for container in objects.entries(spec, part)
    }


def _image(container: Any) -> str:
    found = container.get("image") if isinstance(container, dict) else None
    return found if isinstance(found, str) else ""
