"""Move a container's argv into annotations, so that it can be changed while the pod lives.

A pod's command cannot be changed, its annotations and images can. So the literal text of each
element of command and args moves into an annotation, a variable takes its value from there
(downward API), and the element becomes ``$(START_COMMAND_0)``, which kubelet expands. The process
sees the same bytes as before.

Kubelet expands once, and never what a variable's value holds. So ``$(NAME)`` in an element stays
where it is between the pieces, and ``$$``, with which people write one ``$``, is undone in what
moves. What cannot be moved exactly is left as it is; only argv[0] matters to a swap of images.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller import objects
from pyvgpu.controller.sidecar import pods

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.controller.objects import Object

PREFIXES = ("START_COMMAND_", "PYVGPU_START_COMMAND_")  # the first that the container does not use
LONGEST_VARIABLE_BYTES = 128 * 1024 - 64  # execve takes 128 KiB with the name and the end


@dataclasses.dataclass(frozen=True, slots=True)
class Literal:
    """Text that means itself."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """``$(name)``: the value of a variable, or its own text where there is no such variable."""

    name: str


Token = Literal | Reference


def parse(element: str) -> list[Token]:
    """Split an element of command or args as kubelet reads it; literals are unescaped."""
    tokens: list[Token] = []
    text: list[str] = []
    position = 0
    while position < len(element):
        character = element[position]
        following = element[position + 1 : position + 2]
        closer = element.find(")", position + 2) if character + following == "$(" else -1
        if closer >= 0:
            if text:
                tokens.append(Literal("".join(text)))
                text = []
            tokens.append(Reference(element[position + 2 : closer]))
            position = closer + 1
        elif character == "$" and following:
            text.append("$" if following == "$" else character + following)
            position += 2
        else:
            text.append(character)
            position += 1
    if text:
        tokens.append(Literal("".join(text)))
    return tokens


def escape(text: str) -> str:
    """Return the element that means *text*."""
    return text.replace("$", "$$")


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """What becomes of a container. Where *why_not* says something, argv[0] stayed where it was."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    variables: tuple[Object, ...]  # to be put before the container's own
    annotations: Mapping[str, str]
    why_not: str = ""


def move(container: Object, room_bytes: int) -> Moved:
    """Move what can be moved of *container*, one of spec.containers of a pod being created.

    *room_bytes* is how much the pod's annotations may still grow. If not everything fits, argv[0]
    alone moves. A container without a command starts its image's ENTRYPOINT, and so will another
    image; nothing moves, and nothing needs to.
    """
    command, args = objects.words(container, "command"), objects.words(container, "args")
    kept = Moved(command, args, (), {})
    if not command or already_moved(container):
        return kept
    prefix = _free_prefix(container)
    if prefix is None:
        return dataclasses.replace(kept, why_not=f"it uses variables named {PREFIXES[-1]}*")
    program = _whole_program(command[0], container)
    if program is None:
        return dataclasses.replace(
            kept, why_not=f"its program {command[0][:80]!r} is known to kubelet alone"
        )
    for elements in ((escape(program), *command[1:], *args), (escape(program),)):
        mover = _Mover(container, prefix)
        moved = (*map(mover.move, elements), *(*command, *args)[len(elements) :])
        if not mover.annotations or moved[0] == elements[0]:
            break
        if objects.annotation_bytes(mover.annotations) <= room_bytes:
            return Moved(
                moved[: len(command)],
                moved[len(command) :],
                tuple(mover.variables),
                mover.annotations,
            )
    return dataclasses.replace(kept, why_not="the pod's annotations have no room for its program")


def already_moved(container: Object) -> bool:
    """Tell whether argv[0] is read from an annotation of ours."""
    annotation = pods.read_container(0, container, {}, "Never").program_annotation or ""
    return annotation.startswith(names.START_COMMAND_ANNOTATION + ".")


class _Mover:
    """Gives the pieces of one container their annotations and variables."""

    def __init__(self, container: Object, prefix: str) -> None:
        # By the name, for a later webhook may put a container before it; as a digest, for a name
        # may be as long as a key may be.
        name = str(container.get("name") or "")
        self._key = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._prefix = prefix
        # What moved before may be read still: who wrapped the program since left its variables.
        self._taken = {pods.annotation_of(it) for it in objects.entries(container, "env")}
        self._number = 0
        self.variables: list[Object] = []
        self.annotations: dict[str, str] = {}

    def move(self, element: str) -> str:
        """Return what takes the place of *element*."""
        tokens = parse(element)
        if not _is_exact(element, tokens):
            return element
        return "".join(
            self._piece(token.text) if isinstance(token, Literal) else f"$({token.name})"
            for token in tokens
        )

    def _piece(self, text: str) -> str:
        annotation = self._free_annotation()
        variable = f"{self._prefix}{len(self.variables)}"
        path = f"metadata.annotations['{annotation}']"
        self.annotations[annotation] = text
        self.variables.append(
            {
                "name": variable,
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}},
            }
        )
        return f"$({variable})"

    def _free_annotation(self) -> str:
        while True:
            annotation = f"{names.START_COMMAND_ANNOTATION}.{self._key}.{self._number}"
            self._number += 1
            if annotation not in self._taken:
                return annotation


def _is_exact(element: str, tokens: Sequence[Token]) -> bool:
    """Tell whether the pieces of *element* give the same bytes under every kubelet.

    Kubelets before 1.36 take a character after ``$`` by its first byte, so that ``$é`` comes out
    differently. No variable holds a NUL, nor more than the kernel takes.
    """
    return (
        not re.search(r"\$[^\x00-\x7f]", element)
        and "\0" not in element
        and all(
            len(token.text.encode()) <= LONGEST_VARIABLE_BYTES
            for token in tokens
            if isinstance(token, Literal)
        )
    )


def _free_prefix(container: Object) -> str | None:
    """Return a prefix that no name, no value and no element of *container* has in it."""
    text = json.dumps(container, default=str)
    return next((prefix for prefix in PREFIXES if prefix not in text), None)


def _whole_program(element: str, container: Object) -> str | None:
    """Return argv[0] as one literal, for all of it must be replaceable; None if that is unknown.

    A reference is resolved where a literal variable of the container defines it.
    """
    environment = pods.environment_of(objects.entries(container, "env"))
    text = ""
    for token in parse(element):
        if isinstance(token, Literal):
            text += token.text
            continue
        value = environment.get(token.name)
        if value is None or "$" in value:
            return None
        text += value
    return text if text and _is_exact(escape(text), [Literal(text)]) else None
