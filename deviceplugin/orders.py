"""What the administrator of a node may tell its agent while it runs, through a socket.

    {"order": "set", "name": NAME, "change": {"vcore": 20, ...}}    another quota for a container
    {"order": "cordon", "uuid": UUID, "undo": false}                nothing new onto a device

The socket lies in the agent's state folder, and root alone is answered, as the agent is root's.
What is cordoned is kept there too, for the next agent: see cordons.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyvgpu import control, errors, names, packets, quota
from pyvgpu.deviceplugin import resize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from pyvgpu.deviceplugin.grants import Grant

ANSWER_SECONDS = 15.0


@dataclasses.dataclass(frozen=True, slots=True)
class Hands:
    """Who carries orders out; each raises a PyVgpuError, and then nothing has changed."""

    grants: Callable[[], Collection[Grant]]  # those there are
    change: Callable[[Grant, quota.Change], Grant]
    devices: Callable[[], Collection[str]]  # UUIDs of those that the node has
    cordon: Callable[[str], None]
    uncordon: Callable[[str], bool]  # whether it is given out again


class Orders(packets.Listener):
    """The agent's end: carries out what it is told, from a thread of its own."""

    def __init__(self, state: Path, hands: Hands) -> None:
        def answer(question: Mapping[str, Any]) -> Mapping[str, object]:
            if question.get("order") == "set":
                return _set(question, hands)
            if question.get("order") == "cordon":
                return _cordon(question, hands)
            raise errors.DataError(f"{question.get('order')!r} is no order that this agent knows")

        super().__init__(state, "what the agent holds", answer)
        self._socket = state / names.CONTROL_SOCKET

    def start(self) -> None:
        """Begin to answer, in the place of an agent that was killed."""
        try:
            self._socket.unlink(missing_ok=True)
            super().start()
        except OSError as exc:
            raise errors.UnavailableError(
                f"{self._socket}: no orders can be given there: {exc.strerror}"
            ) from exc


def tell(state: Path, order: Mapping[str, object]) -> str:
    """Give an order to the agent whose state is in that folder; return what it did, in a line."""
    try:
        with packets.Asker(state, ANSWER_SECONDS) as asker:
            return str(asker.ask(order)["done"])
    except PermissionError as exc:
        raise errors.PermissionDeniedError(
            f"{state}: only root may tell the node's agent what to do"
        ) from exc
    except TimeoutError as exc:
        raise errors.UnavailableError(f"{state}: the agent does not answer") from exc
    except (OSError, KeyError) as exc:
        raise errors.UnavailableError(
            f"{state}: no agent of this node answers there ({exc}); --state names its folder"
        ) from exc


def find(name: str, grants: Iterable[Grant]) -> Grant:
    """Return the grant that is called NAMESPACE/POD/CONTAINER, or its id, or without CONTAINER.

    UsageError if none is, or several.
    """
    bound = {it.owner.label: it for it in grants if it.owner is not None}
    found = [
        it
        for label, it in bound.items()
        if name in (label, it.id) or label.rpartition("/")[0] == name
    ]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(sorted(it.owner.container for it in found if it.owner))
        raise errors.UsageError(f"NAME {name!r}: which of its containers: {several}?")
    known = ", ".join(sorted(bound)[:10]) or "none has any"
    raise errors.UsageError(
        f"NAME {name!r}: no container of that name has a grant; valid: {known}"
    )


def _set(question: Mapping[str, Any], hands: Hands) -> dict[str, object]:
    change = question.get("change")
    if type(change) is not dict:
        raise errors.DataError("this is no change of a quota")
    grant = find(str(question.get("name")), hands.grants())
    after = hands.change(grant, control.parse_change(change))
    return {"done": resize.describe(after)}


def _cordon(question: Mapping[str, Any], hands: Hands) -> dict[str, object]:
    uuid, undo = question.get("uuid"), question.get("undo")
    if type(uuid) is not str or type(undo) is not bool:
        raise errors.DataError("this is no order to cordon a device")
    known = sorted(hands.devices())
    if uuid not in known and not undo:  # one that is gone may be forgotten
        raise errors.UsageError(
            f"UUID {uuid!r}: this node has no such device; valid: {', '.join(known) or 'none'}"
        )
    if undo:
        if not hands.uncordon(uuid):
            raise errors.UsageError(
                f"{uuid}: is cordoned by the node's annotation {names.CORDONED_ANNOTATION}, too; "
                "take it out there, such as by kubectl annotate node NODE "
                f"{names.CORDONED_ANNOTATION}-"
            )
        return {"done": f"{uuid}: is given out again"}
    hands.cordon(uuid)
    return {"done": f"{uuid}: gets nothing new"}
