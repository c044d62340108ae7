"""Admin socket: orders from the node's administrator to the running agent.

    {"order": "set", "name": NAME, "change": {"vcore": 20, ...}}    change a container's quota
    {"order": "cordon", "uuid": UUID, "undo": false}                cordon a device

The socket is in the agent's state folder, and serves only root, as the agent runs as root. Cordons
are stored there too, for the next agent: see cordons.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names, quota
from pyvgpu.deviceplugin.grants import resize
from pyvgpu.machine import ipc, quota_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from pyvgpu.deviceplugin.grants import Grant

ANSWER_SECONDS = 15.0


@dataclasses.dataclass(frozen=True, slots=True)
class Hands:
    """Functions that execute orders; if one raises a PyVgpuError, nothing has changed."""

    grants: Callable[[], Collection[Grant]]  # all grants
    change: Callable[[Grant, quota.QuotaChange], Grant]
    devices: Callable[[], Collection[str]]  # UUIDs of the node's devices
    cordon: Callable[[str], None]
    uncordon: Callable[[str], bool]  # whether it is offered again


class Orders(ipc.Listener):
    """The agent's end: executes orders on a thread of its own."""

    def __init__(self, state: Path, hands: Hands) -> None:
        def answer(question: Mapping[str, Any]) -> Mapping[str, object]:
            if question.get("order") == "set":
                return _set(question, hands)
            if question.get("order") == "cordon":
                return _cordon(question, hands)
            raise errors.DataError(f"{question.get('order')!r}: this agent has no such command")

        super().__init__(state, "what the agent holds", answer)
        self._socket = state / names.CONTROL_SOCKET

    def start(self) -> None:
        """Begin to answer; replace the socket of an agent that was killed."""
        try:
            self._socket.unlink(missing_ok=True)
            super().start()
        except OSError as exc:
            raise errors.UnavailableError(
                f"{self._socket}: the admin socket cannot be created: {exc.strerror}"
            ) from exc


def send(state: Path, order: Mapping[str, object]) -> str:
    """Send an order to the agent with the state folder *state*; return its result, a line."""
    try:
        with ipc.Asker(state, ANSWER_SECONDS) as asker:
            return str(asker.ask(order)["done"])
    except PermissionError as exc:
        raise errors.PermissionDeniedError(
            f"{state}: only root may send commands to the node's agent"
        ) from exc
    except TimeoutError as exc:
        raise errors.UnavailableError(f"{state}: the agent does not answer") from exc
    except OSError as exc:
        raise errors.UnavailableError(
            f"{state}: no agent of this node answers there ({errors.reason_of(exc)}); --state "
            "names its folder"
        ) from exc
    except KeyError as exc:
        raise errors.UnavailableError(f"{state}: the agent there is of another version") from exc


def find(name: str, grants: Iterable[Grant]) -> Grant:
    """Return the grant called *name*: NAMESPACE/POD/CONTAINER, NAMESPACE/POD, or its id.

    UsageError if none or several match.
    """
    bound = {grant.owner.label: grant for grant in grants if grant.owner is not None}
    found = [
        grant
        for label, grant in bound.items()
        if name in (label, grant.id) or label.rpartition("/")[0] == name
    ]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(sorted(grant.owner.container for grant in found if grant.owner))
        raise errors.UsageError(f"RUN {name!r}: must also name one of its containers: {several}?")
    known = ", ".join(sorted(bound)[:10]) or "none has any"
    raise errors.UsageError(f"RUN {name!r}: no container of that name has a grant; valid: {known}")


def _set(question: Mapping[str, Any], hands: Hands) -> dict[str, object]:
    change = question.get("change")
    if type(change) is not dict:
        raise errors.DataError("not a change of a quota")
    grant = find(str(question.get("name")), hands.grants())
    after = hands.change(grant, quota_socket.parse_change(change))
    return {"done": resize.describe(after)}


def _cordon(question: Mapping[str, Any], hands: Hands) -> dict[str, object]:
    uuid, undo = question.get("uuid"), question.get("undo")
    if type(uuid) is not str or type(undo) is not bool:
        raise errors.DataError("the cordon command is not valid")
    known = sorted(hands.devices())
    if uuid not in known and not undo:  # a missing device can still be uncordoned
        raise errors.UsageError(
            f"UUID {uuid!r}: this node has no such device; valid: {', '.join(known) or 'none'}"
        )
    if undo:
        if not hands.uncordon(uuid):
            raise errors.UsageError(
                f"{uuid}: is cordoned by the node's annotation {names.CORDONED_ANNOTATION}, "
                f"too; remove it there, for example by kubectl annotate node NODE "
                f"{names.CORDONED_ANNOTATION}-"
            )
        return {"done": f"{uuid}: uncordoned, new containers can get it"}
    hands.cordon(uuid)
    return {"done": f"{uuid}: cordoned, no new container gets it"}
