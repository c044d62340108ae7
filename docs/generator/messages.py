"""The reference of messages: every error that pyvgpu says, every event, and what to do about it.

They are read from the code: what is raised with a text is here with that text, in which `…` stands
for what is known only then.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from typing import TYPE_CHECKING

from generator import sources
from generator.tables import code, table
from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD = """# Messages: errors and events

An error is one line that names what was given, the rule, and what would do. On the command line it
begins with `pyvgpu: ` and goes to standard error; of a pod it stands in an event. `…` below is
where a value stands. If you look for a symptom rather than for a message:
[troubleshooting](../troubleshooting.md).

## What kind it is

The exit code says the kind.

"""
# What a person does about each kind; a class without a line does what the class above it does.
ANSWERS = {
    errors.PyVgpuError: "read on in the message: it says what failed",
    errors.UsageError: "write what the message says would be valid",
    errors.DataError: "mend or replace the file or object that is named",
    errors.UnavailableError: "bring what is named, or wait until it is there: a driver, a device, "
    "room, a service; `pyvgpu doctor` says how",
    errors.OutputError: "give it room, or a reader that stays",
    errors.PermissionDeniedError: "take the right that is named: another user, another mode, a "
    "mount that is not read-only",
}
SHIM = """## What the shim says

In a program's standard error, once, when `cuInit` or `nvmlInit` refuses; the call itself fails. It
begins with `pyvgpu: CUDA and NVML are refused: `. Nothing is ever run without a quota instead.

"""
SHIM_FILES = ("csrc/shim.c", "csrc/region.c")
SHIM_SAYS = re.compile(
    r'(?:complain\(|region_fail\(reason,[^"]*?|why\), |sizeof\(reason->text\),\s*'
    r"|region_reason reason = \{)"
    r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
)
FORMAT = re.compile(r"%[-0-9.]*(?:ll|l|z)?[a-z]")
PARTS = (
    ("The command line and one machine", ("pyvgpu/",)),
    ("The driver and its mirror", ("volumes/",)),
    ("The agent of a node", ("deviceplugin/",)),
    ("The cluster", ("controller/",)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A text that is raised."""

    path: str
    kind: type[errors.PyVgpuError]
    text: str


def text(root: Path) -> str:
    """Return the page."""
    parts = [HEAD, table(("exit code", "error", "what it is", "what to do"), _kinds(root))]
    parts += [SHIM, table(("text",), ([code(it)] for it in shim_says(root)))]
    parts += ["## Events\n\n`kubectl describe pod` shows them.\n\n"]
    parts += [table(("reason", "when"), ([code(name), said] for name, said in events(root)))]
    told = list(messages(root))
    for title, folders in PARTS:
        rows = sorted(
            {(it.text, str(it.kind.exit_code)) for it in told if it.path.startswith(folders)}
        )
        parts.append(f"## {title}\n\n")
        parts.append(table(("text", "exit code"), ((code(said), number) for said, number in rows)))
    return "".join(parts)


def kinds(root: Path) -> list[type[errors.PyVgpuError]]:
    """Return every class of errors, those that others are kinds of first."""
    for name in sources.modules(root):
        importlib.import_module(name)
    found = [errors.PyVgpuError]
    for it in found:
        found += [below for below in it.__subclasses__() if below not in found]
    return found


def answer(kind: type[errors.PyVgpuError]) -> str:
    """Return what a person does about an error of this class."""
    return next(ANSWERS[it] for it in kind.__mro__ if it in ANSWERS)


def messages(root: Path) -> Iterator[Message]:
    """Give every text that is given to a class of errors."""
    by_name = {it.__name__: it for it in kinds(root)}
    everything = list(sources.walk(root))
    named = _named(everything)
    for found in everything:
        if not isinstance(found.node, ast.Call) or not found.node.args:
            continue
        kind = by_name.get(sources.name_of(found.node))
        given = found.node.args[0]
        said = [sources.text_of(given) or ""]
        if isinstance(given, ast.Name):
            said = named.get((found.path, found.where, given.id), [])
        if kind is not None:
            yield from (
                Message(found.path, kind, it) for it in said if it.strip(f"{sources.GAP}: ")
            )


def _named(everything: list[sources.Found]) -> dict[tuple[str, str, str], list[str]]:
    """Return the texts that names stand for, by file, outermost class or function, and name."""
    texts: dict[tuple[str, str, str], list[str]] = {}
    for found in everything:
        if isinstance(found.node, ast.Assign):
            said = sources.text_of(found.node.value)
            for it in found.node.targets:
                if isinstance(it, ast.Name) and said is not None:
                    texts.setdefault((found.path, found.where, it.id), []).append(said)
    return texts


def shim_says(root: Path) -> list[str]:
    """Return every reason that the shim gives for a refusal."""
    found = {}
    for file in SHIM_FILES:
        for match in SHIM_SAYS.finditer((root / file).read_text()):
            joined = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match[1]))
            found[FORMAT.sub(sources.GAP, joined)] = None
    return list(found)


def events(root: Path) -> Iterator[tuple[str, str]]:
    """Give every reason of an event and what it is about: a constant `VGPU...` and its comment."""
    for folder in sources.FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            for match in EVENT.finditer(file.read_text()):
                yield match["name"], match["said"].strip()


EVENT = re.compile(
    r'^\s*[A-Z_]+ = "(?P<name>VGPU(?!Config")\w+)"(?:  # (?P<said>.+))$', re.MULTILINE
)


def _kinds(root: Path) -> Iterator[tuple[str, ...]]:
    for it in sorted(kinds(root), key=lambda kind: kind.exit_code):
        said = (it.__doc__ or "").partition("\n")[0]
        yield str(it.exit_code), code(it.__name__), said, answer(it)
