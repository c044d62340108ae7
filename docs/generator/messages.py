"""Message reference page: every error and event of pyvgpu, and what to do about each.

They are read from the code: each raised error is listed with its text, in which `…` stands for
values that are known only at run time.
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

An error is one line that names the given value, the rule, and a valid example. On the command
line it begins with `pyvgpu: ` and goes to standard error; for a pod it is in an event. Below, `…`
stands for a value. To search by symptom instead of by message, see
[troubleshooting](../troubleshooting.md).

## Exit codes

The exit code tells the kind of error.

"""
# What a user does about each kind; a class that is not listed has the answer of its base class.
ANSWERS = {
    errors.PyVgpuError: "read the rest of the message: it says what failed",
    errors.UsageError: "use a value that is valid by the rule in the message",
    errors.DataError: "repair or replace the named file or object",
    errors.UnavailableError: "provide the named resource (a driver, a device, free capacity, a "
    "service), or wait until it is available; `pyvgpu doctor` says how",
    errors.OutputError: "free disk space, or use a reader that does not close the pipe early",
    errors.PermissionDeniedError: "get the named permission: another user, another file mode, a "
    "mount that is not read-only",
}
SHIM = """## Refusals of the shim

The shim writes one of these to a program's standard error, once, when `cuInit` or `nvmlInit` fails
because of it. The line begins with `pyvgpu: CUDA and NVML are refused: `. The shim never lets a
program run without a quota instead.

"""
SHIM_FILES = ("csrc/shim/shim.c", "csrc/core/region.c")
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
    """An error message in the code."""

    path: str
    kind: type[errors.PyVgpuError]
    text: str


def text(root: Path) -> str:
    """Return the page."""
    parts = [HEAD, table(("exit code", "error", "what it is", "what to do"), _kinds(root))]
    parts += [SHIM, table(("text",), ([code(say)] for say in shim_says(root)))]
    parts += ["## Events\n\n`kubectl describe pod` shows them.\n\n"]
    parts += [table(("reason", "when"), ([code(name), meaning] for name, meaning in events(root)))]
    raised = list(messages(root))
    for title, folders in PARTS:
        rows = sorted(
            {
                (error.text, str(error.kind.exit_code))
                for error in raised
                if error.path.startswith(folders)
            }
        )
        parts.append(f"## {title}\n\n")
        parts.append(
            table(("text", "exit code"), ((code(message), number) for message, number in rows))
        )
    return "".join(parts)


def kinds(root: Path) -> list[type[errors.PyVgpuError]]:
    """Return every error class, base classes first."""
    for name in sources.modules(root):
        importlib.import_module(name)
    found = [errors.PyVgpuError]
    for error_class in found:
        found += [below for below in error_class.__subclasses__() if below not in found]
    return found


def answer(kind: type[errors.PyVgpuError]) -> str:
    """Return what a user does about an error of this class."""
    return next(ANSWERS[ancestor] for ancestor in kind.__mro__ if ancestor in ANSWERS)


def messages(root: Path) -> Iterator[Message]:
    """Yield every text with which an error class is constructed."""
    by_name = {error_class.__name__: error_class for error_class in kinds(root)}
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
                Message(found.path, kind, literal)
                for literal in said
                if literal.strip(f"{sources.GAP}: ")
            )


def _named(everything: list[sources.Found]) -> dict[tuple[str, str, str], list[str]]:
    """Return the texts assigned to names, by file, outermost class or function, and name."""
    texts: dict[tuple[str, str, str], list[str]] = {}
    for found in everything:
        if isinstance(found.node, ast.Assign):
            said = sources.text_of(found.node.value)
            for target in found.node.targets:
                if isinstance(target, ast.Name) and said is not None:
                    texts.setdefault((found.path, found.where, target.id), []).append(said)
    return texts


def shim_says(root: Path) -> list[str]:
    """Return every reason for which the shim refuses to initialise."""
    found = {}
    for file in SHIM_FILES:
        for match in SHIM_SAYS.finditer((root / file).read_text()):
            joined = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match[1]))
            found[FORMAT.sub(sources.GAP, joined)] = None
    return list(found)


def events(root: Path) -> Iterator[tuple[str, str]]:
    """Yield every event reason and its meaning: a constant `VGPU...` and its comment."""
    for folder in sources.FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            for match in EVENT.finditer(file.read_text()):
                yield match["name"], match["said"].strip()


EVENT = re.compile(
    r'^\s*[A-Z_]+ = "(?P<name>VGPU(?!Config")\w+)"(?:  # (?P<said>.+))$', re.MULTILINE
)


def _kinds(root: Path) -> Iterator[tuple[str, ...]]:
    for error_class in sorted(kinds(root), key=lambda kind: kind.exit_code):
        said = (error_class.__doc__ or "").partition("\n")[0]
        yield str(error_class.exit_code), code(error_class.__name__), said, answer(error_class)
