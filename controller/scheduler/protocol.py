"""Scheduler extender protocol (v1): parse kube-scheduler's requests and write the responses, JSON.

Go marshals these objects by their field names (``NodeNames``, ``PodUID``) and reads them in any
letter case, so other clients write ``nodeNames``: both are read here, and unknown members are
ignored. Nodes come by name, or as whole objects without ``nodeCacheCapable``; the answer has them
in the same form. gpu-manager's extender speaks the same protocol.

A request about thousands of nodes consists mostly of their names, and so does its answer: names
that Go has written stay text and are not parsed (name_lists.py).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.controller.scheduler import name_lists
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.kube.objects import Object

Refused = Mapping[str, "Sequence[str]"]  # names of nodes, by reason


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A filter or prioritize request: a pod and its candidate nodes."""

    pod: Object
    names: Sequence[str]
    nodes: Sequence[Object] | None = None  # whole objects, where they were sent


@dataclasses.dataclass(frozen=True, slots=True)
class Bind:
    """A bind request."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclasses.dataclass(frozen=True, slots=True)
class Victims:
    """Pods to evict from a node, by uid."""

    uids: tuple[str, ...]
    violations: int = 0  # of PodDisruptionBudgets


@dataclasses.dataclass(frozen=True, slots=True)
class Preemption:
    """A preempt request: candidate nodes and the victims proposed for each."""

    pod: Object
    victims: Mapping[str, Victims]  # by node


# A Kubernetes name: it becomes part of a URL.
_NAME = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,251}[A-Za-z0-9])?")


def read_question(content: bytes) -> Question:
    """Parse a filter or prioritize request; DataError for anything else."""
    document = _parse_apart(content) or _parse(content)
    pod = _pod(document)
    whole = _member(document, "Nodes")
    if isinstance(whole, Mapping) and _member(whole, "Items") is not None:
        nodes = _list(whole, "Items", "Nodes.items", Mapping)
        names = [str(objects.section(node, "metadata").get("name") or "") for node in nodes]
        return Question(pod, name_lists.of(names), nodes)
    found = _list(document, "NodeNames", "NodeNames", str)
    return Question(pod, found if isinstance(found, name_lists.Listed) else name_lists.of(found))


def read_bind(content: bytes) -> Bind:
    """Parse a bind request; DataError for anything else."""
    document = _parse(content)
    found = {
        field: _member(document, name)
        for field, name in (
            ("namespace", "PodNamespace"),
            ("name", "PodName"),
            ("uid", "PodUID"),
            ("node", "Node"),
        )
    }
    for field, value in found.items():
        if not isinstance(value, str) or _NAME.fullmatch(value) is None:
            raise errors.DataError(
                f"bind: the {field} is {str(value)[:80]!r}: must be a name, as in "
                '{"PodNamespace": "default", "PodName": "p", "PodUID": "0-1", "Node": "node-1"}'
            )
    return Bind(**found)


def read_preemption(content: bytes) -> Preemption:
    """Parse a preempt request; DataError for anything else."""
    document = _parse(content)
    pod = _pod(document)
    known = _member(document, "NodeNameToMetaVictims") or {}
    whole = _member(document, "NodeNameToVictims") or {}
    if not isinstance(known, Mapping) or not isinstance(whole, Mapping):
        raise errors.DataError("preempt: the victims must be objects, by the names of their nodes")
    victims = {str(node): _victims(found, _uid) for node, found in known.items()}
    victims |= {str(node): _victims(found, _uid_of_pod) for node, found in whole.items()}
    return Preemption(pod, victims)


def write_filter(
    question: Question, fitting: Sequence[str], refused: Refused, *, may_change: bool = False
) -> bytes:
    """Return the answer of filter.

    Refused nodes are reported as unresolvable by preemption: what the scheduler could free there
    is free already, or it would not have asked. *may_change*: report them as resolvable, like
    gpu-manager's extender.
    """
    if question.nodes is None:
        nodes, names = b"null", _strings(fitting)
    else:
        wanted = set(fitting)
        kept = [
            node
            for node, name in zip(question.nodes, question.names, strict=True)
            if name in wanted
        ]
        nodes, names = _dump({"metadata": {}, "items": kept}), b"null"
    why = _reasons(refused)
    failed, final = (why, b"{}") if may_change else (b"{}", why)
    return (
        b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":""}'
        % (nodes, names, failed, final)
    )


def write_failure(text: str) -> bytes:
    """Return the answer of a filter or bind that failed; kube-scheduler retries."""
    return json.dumps({"Error": text}).encode()


def write_bound() -> bytes:
    """Return the answer of a bind that succeeded."""
    return b'{"Error":""}'


def write_scores(names: Sequence[str], scores: name_lists.Codes) -> bytes:
    """Return the answer of prioritize; scores are from 0 to 10."""
    if isinstance(names, name_lists.Listed):
        return b"[" + names.write(scores, _SCORES)[:-1] + b"]"
    pairs = [{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)]
    return json.dumps(pairs, separators=(",", ":")).encode()


_SCORES = {score: (b'{"Host":', b',"Score":%d},' % score) for score in range(11)}


def write_preemption(victims: Mapping[str, Victims]) -> bytes:
    """Return the answer of preempt: nodes that suffice, and the victims on each.

    A node without victims is left out: kube-scheduler treats it as an error.
    """
    found = {
        node: {
            "Pods": [{"UID": uid} for uid in found.uids],
            "NumPDBViolations": found.violations,
        }
        for node, found in victims.items()
        if found.uids
    }
    return json.dumps({"NodeNameToMetaVictims": found}).encode()


_NAMES = b',"NodeNames":['


def _parse_apart(content: bytes) -> dict[str, Any] | None:
    """Parse a request that ends with NodeNames, as Go writes it, without parsing the names.

    None if it is written differently. A JSON string contains ``,"`` only at its end, so the match
    is the name of a member; the text before it, closed with a brace, must be an object.
    """
    at, end = content.find(_NAMES), len(content)
    while content[end - 1 : end].isspace():
        end -= 1
    if at < 0 or not content.endswith(b"]}", at + len(_NAMES), end):
        return None
    names = name_lists.read(content[at + len(_NAMES) : end - 2])
    if names is None:
        return None
    try:
        document = json.loads(content[:at] + b"}")
    except (ValueError, RecursionError):
        return None
    return {**document, "NodeNames": names} if isinstance(document, dict) else None


def _parse(content: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise errors.DataError(f"the body must be JSON: {exc}") from exc
    if not isinstance(document, Mapping):
        raise errors.DataError(
            "the body must be an object, such as kube-scheduler sends: "
            '{"Pod": {...}, "NodeNames": ["node-1"]}'
        )
    return document


def _member(document: Mapping[str, Any], name: str) -> Any:
    """Return the member called *name* in any letter case; None if there is none."""
    if name in document:
        return document[name]
    lower = name.lower()
    return next((value for key, value in document.items() if key.lower() == lower), None)


def _pod(document: Mapping[str, Any]) -> Object:
    pod = _member(document, "Pod")
    if not isinstance(pod, Mapping) or not objects.section(pod, "metadata").get("name"):
        raise errors.DataError('Pod: must be a pod, such as {"metadata": {"name": "p"}, ...}')
    return pod


def _list(document: Mapping[str, Any], name: str, called: str, kind: type) -> Sequence[Any]:
    found = _member(document, name)
    if found is None:
        return []
    if isinstance(found, name_lists.Listed):
        return found
    if not isinstance(found, list):
        raise errors.DataError(f"{called}: must be a list, not {type(found).__name__}")
    # Check each type once: checking thousands of names one by one is slow.
    if not all(issubclass(found_type, kind) for found_type in set(map(type, found))):
        raise errors.DataError(f"{called}: must contain only {_IN_WORDS[kind]}")
    return found


_IN_WORDS: dict[type, str] = {str: "names", Mapping: "objects"}


def _victims(found: object, uid: Any) -> Victims:
    if found is None:
        return Victims(())
    if not isinstance(found, Mapping):
        raise errors.DataError(f"preempt: victims must be an object, not {found!r}")
    pods = _list(found, "Pods", "Pods", Mapping)
    violations = _member(found, "NumPDBViolations") or 0
    if type(violations) is not int:
        raise errors.DataError(f"preempt: NumPDBViolations {violations!r}: must be a number")
    return Victims(tuple(uid(pod) for pod in pods), violations)


def _uid(pod: Mapping[str, Any]) -> str:
    return str(_member(pod, "UID") or "")


def _uid_of_pod(pod: Mapping[str, Any]) -> str:
    return str(objects.section(pod, "metadata").get("uid") or "")


def _strings(names: Sequence[str]) -> bytes:
    """Return a list of names as JSON."""
    if isinstance(names, name_lists.Listed):
        return b"[" + names.text + b"]"
    return _dump(list(names))


def _reasons(refused: Refused) -> bytes:
    """Return the reason for each name, as JSON."""
    parts = []
    for text, names in refused.items():
        if isinstance(names, name_lists.Listed):
            forms = {0: (b"", b":" + _dump(text) + b",")}
            parts.append(names.write(bytes(len(names)), forms)[:-1])
        else:
            parts.append(_dump(dict.fromkeys(names, text))[1:-1])
    return b"{" + b",".join(filter(None, parts)) + b"}"


def _dump(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
