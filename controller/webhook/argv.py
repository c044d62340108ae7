"""Move a container's argv into annotations, so that it can be changed while the pod runs.

A pod's command is immutable, its annotations and images are not. So the literal text of each
element of command and args moves into an annotation, a variable takes its value from there
(downward API), and the element becomes ``$(START_COMMAND_0)``, which kubelet expands. The process
sees the same bytes as before.

Kubelet expands once, and does not expand the values of variables. So ``$(NAME)`` in an element
stays in place between the pieces, and ``$$``, the escape of one ``$``, is unescaped in text that
moves. Text that cannot be moved exactly stays; only argv[0] matters to an image swap.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import sidecar_pods
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.kube.objects import Object

PREFIXES = (
    "START_COMMAND_",
    "PYVGPU_START_COMMAND_",
)  # the first unused one
LONGEST_VARIABLE_BYTES = 128 * 1024 - 64  # execve takes 128 KiB with the name and the end


@dataclasses.dataclass(frozen=True, slots=True)
class Literal:
    """Literal text."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """``$(name)``: the value of a variable, or the text itself if there is no such variable."""

    name: str


Token = Literal | Reference


def parse(element: str) -> list[Token]:
    """Split an element of command or args as kubelet parses it; literals are unescaped."""
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
    """Return the element that kubelet expands to *text*."""
    return text.replace("$", "$$")


@dataclasses.dataclass(frozen=True, slots=True)
class MovedContainer:
    """A container after the move. If *why_not* is set, argv[0] did not move."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    variables: tuple[Object, ...]  # to insert before the container's own
    annotations: Mapping[str, str]
    why_not: str = ""


def move(container: Object, room_bytes: int) -> MovedContainer:
    """Move the argv of *container*, one of spec.containers of a pod being created.

    *room_bytes* is how much the pod's annotations may still grow. If not everything fits, only
    argv[0] moves. A container without a command runs its image's ENTRYPOINT, before and after a
    swap, so nothing needs to move.
    """
    command, args = objects.words(container, "command"), objects.words(container, "args")
    kept = MovedContainer(command, args, (), {})
    if not command or already_moved(container):
        return kept
    prefix = _free_prefix(container)
    if prefix is None:
        return dataclasses.replace(kept, why_not=f"it uses variables named {PREFIXES[-1]}*")
    program = _whole_program(command[0], container)
    if program is None:
        return dataclasses.replace(
            kept, why_not=f"its program {command[0][:80]!r} is known only to kubelet"
        )
    for elements in ((escape(program), *command[1:], *args), (escape(program),)):
        mover = _Mover(container, prefix)
        moved = (*map(mover.move, elements), *(*command, *args)[len(elements) :])
        if not mover.annotations or moved[0] == elements[0]:
            break
        if objects.annotation_bytes(mover.annotations) <= room_bytes:
            return MovedContainer(
                moved[: len(command)],
                moved[len(command) :],
                tuple(mover.variables),
                mover.annotations,
            )
    return dataclasses.replace(kept, why_not="the pod's annotations have no room for its program")


def already_moved(container: Object) -> bool:
    """Return whether argv[0] is read from one of our annotations."""
    annotation = sidecar_pods.read_container(0, container, {}, "Never").program_annotation or ""
    return annotation.startswith(names.START_COMMAND_ANNOTATION + ".")


class _Mover:
    """Assigns annotations and variables to the pieces of one container's argv."""

    def __init__(self, container: Object, prefix: str) -> None:
        # By name, because a later webhook may insert a container before it; as a digest, because
        # a container's name may be as long as an annotation key.
        name = str(container.get("name") or "")
        self._key = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._prefix = prefix
        # Annotations of an earlier move may still be in use by a webhook that wrapped the program.
        self._taken = {
            sidecar_pods.annotation_of(one) for one in objects.entries(container, "env")
        }
        self._number = 0
        self.variables: list[Object] = []
        self.annotations: dict[str, str] = {}

    def move(self, element: str) -> str:
        """Return the replacement of *element*."""
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
    """Return whether the pieces of *element* give the same bytes under every kubelet.

    Kubelets before 1.36 keep only the first byte of a character after ``$``, so ``$é`` comes out
    differently. A variable cannot hold a NUL, nor more than the kernel's limit.
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
    """Return a prefix that occurs in no name, value or element of *container*."""
    text = json.dumps(container, default=str)
    return next((prefix for prefix in PREFIXES if prefix not in text), None)


def _whole_program(element: str, container: Object) -> str | None:
    """Return argv[0] as one literal, because it is replaced as a whole; None if it is unknown.

    References to literal variables of the container are resolved.
    """
    environment = sidecar_pods.environment_of(objects.entries(container, "env"))
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
