"""What kube-scheduler asks an extender and reads as its answer: extender v1, as JSON.

Go writes these objects without names of its own (``NodeNames``, ``PodUID``) and reads them in any
letter case, so that others write ``nodeNames``: both are read here, and what is unknown is left
alone. Nodes come by name, or as whole objects where an extender is said to know none; the answer
has them in the same way. gpu-manager's extender speaks the same.

A question about thousands of nodes has little else in it than their names, and neither has its
answer: as Go writes them they stay the text that they are (listed.py).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.controller import objects
from pyvgpu.controller.scheduler import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.objects import Object

Refused = Mapping[str, "Sequence[str]"]  # names of nodes, by why they are refused


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """Which of these nodes a pod may go to, or how good each is."""

    pod: Object
    names: Sequence[str]
    nodes: Sequence[Object] | None = None  # themselves, where they were sent


@dataclasses.dataclass(frozen=True, slots=True)
class Bind:
    """A pod is to go to a node."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclasses.dataclass(frozen=True, slots=True)
class Victims:
    """Pods that would have to go from a node, by uid."""

    uids: tuple[str, ...]
    violations: int = 0  # of PodDisruptionBudgets


@dataclasses.dataclass(frozen=True, slots=True)
class Preemption:
    """On which of these nodes a pod could be, and who would go from there."""

    pod: Object
    victims: Mapping[str, Victims]  # by node


# Of anything in Kubernetes: it becomes a part of a URL.
_NAME = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,251}[A-Za-z0-9])?")


def read_question(content: bytes) -> Question:
    """Read what filter and prioritize are asked; DataError for anything else."""
    document = _parse_apart(content) or _parse(content)
    pod = _pod(document)
    whole = _member(document, "Nodes")
    if isinstance(whole, Mapping) and _member(whole, "Items") is not None:
        nodes = _list(whole, "Items", "Nodes.items", Mapping)
        names = [str(objects.section(node, "metadata").get("name") or "") for node in nodes]
        return Question(pod, listed.of(names), nodes)
    found = _list(document, "NodeNames", "NodeNames", str)
    return Question(pod, found if isinstance(found, listed.Listed) else listed.of(found))


def read_bind(content: bytes) -> Bind:
    """Read what bind is asked; DataError for anything else."""
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
    """Read what preempt is asked; DataError for anything else."""
    document = _parse(content)
    pod = _pod(document)
    known = _member(document, "NodeNameToMetaVictims") or {}
    whole = _member(document, "NodeNameToVictims") or {}
    if not isinstance(known, Mapping) or not isinstance(whole, Mapping):
        raise errors.DataError("preempt: the victims must be objects, by the names of their nodes")
    victims = {str(node): _victims(it, _uid) for node, it in known.items()}
    victims |= {str(node): _victims(it, _uid_of_pod) for node, it in whole.items()}
    return Preemption(pod, victims)


def write_filter(
    question: Question, fitting: Sequence[str], refused: Refused, *, may_change: bool = False
) -> bytes:
    """Return the answer of filter.

    Nodes that are refused are no use to preemption: what the scheduler could free there was free
    already, or it would not have asked. *may_change*: say otherwise, as gpu-manager's does.
    """
    if question.nodes is None:
        nodes, names = b"null", _strings(fitting)
    else:
        wanted = set(fitting)
        kept = [
            it for it, name in zip(question.nodes, question.names, strict=True) if name in wanted
        ]
        nodes, names = _dump({"metadata": {}, "items": kept}), b"null"
    why = _reasons(refused)
    failed, final = (why, b"{}") if may_change else (b"{}", why)
    return (
        b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":""}'
        % (nodes, names, failed, final)
    )


def write_failure(text: str) -> bytes:
    """Return the answer of filter and bind where nothing was done; the scheduler tries again."""
    return json.dumps({"Error": text}).encode()


def write_bound() -> bytes:
    """Return the answer of bind where it was done."""
    return b'{"Error":""}'


def write_scores(names: Sequence[str], scores: listed.Codes) -> bytes:
    """Return the answer of prioritize; scores are from 0 to 10."""
    if isinstance(names, listed.Listed):
        return b"[" + names.write(scores, _SCORES)[:-1] + b"]"
    pairs = [{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)]
    return json.dumps(pairs, separators=(",", ":")).encode()


_SCORES = {it: (b'{"Host":', b',"Score":%d},' % it) for it in range(11)}


def write_preemption(victims: Mapping[str, Victims]) -> bytes:
    """Return the answer of preempt: nodes that will do, and who has to go.

    A node from which nobody would go is left out: for kube-scheduler that is an error.
    """
    found = {
        node: {
            "Pods": [{"UID": uid} for uid in it.uids],
            "NumPDBViolations": it.violations,
        }
        for node, it in victims.items()
        if it.uids
    }
    return json.dumps({"NodeNameToMetaVictims": found}).encode()


def _parse_apart(content: bytes) -> dict[str, Any] | None:
    """Read a question that ends with names, as Go's do, of which they stay text.

    None if it is written otherwise. No text in JSON has ``,"`` in it but at its end, so what is
    found is the name of a member; and what is before is an object if it is one without it.
    """
    before, found, rest = content.partition(b',"NodeNames":[')
    text = rest.rstrip()
    if not found or not text.endswith(b"]}"):
        return None
    names = listed.read(text[:-2])
    if names is None:
        return None
    try:
        document = json.loads(before + b"}")
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
    return next((it for key, it in document.items() if key.lower() == lower), None)


def _pod(document: Mapping[str, Any]) -> Object:
    pod = _member(document, "Pod")
    if not isinstance(pod, Mapping) or not objects.section(pod, "metadata").get("name"):
        raise errors.DataError('Pod: must be a pod, such as {"metadata": {"name": "p"}, ...}')
    return pod


def _list(document: Mapping[str, Any], name: str, called: str, kind: type) -> Sequence[Any]:
    found = _member(document, name)
    if found is None:
        return []
    if isinstance(found, listed.Listed):
        return found
    if not isinstance(found, list):
        raise errors.DataError(f"{called}: must be a list, not {type(found).__name__}")
    # By their types, which are few: of thousands of names each takes its time.
    if not all(issubclass(it, kind) for it in set(map(type, found))):
        raise errors.DataError(f"{called}: must have nothing but {_IN_WORDS[kind]} in it")
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
    if isinstance(names, listed.Listed):
        return b"[" + names.text + b"]"
    return _dump(list(names))


def _reasons(refused: Refused) -> bytes:
    """Return for each name why, as JSON."""
    parts = []
    for text, names in refused.items():
        if isinstance(names, listed.Listed):
            forms = {0: (b"", b":" + _dump(text) + b",")}
            parts.append(names.write(bytes(len(names)), forms)[:-1])
        else:
            parts.append(_dump(dict.fromkeys(names, text))[1:-1])
    return b"{" + b",".join(filter(None, parts)) + b"}"


def _dump(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
