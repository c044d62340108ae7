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
    from collections.abc import Iterable, Iterator
    from pathlib import Path

HEAD = """# Messages: errors and events

An error is one line that names the given value, the rule, and a valid example. On the command
line it begins with `pyvgpu: ` and goes to standard error; for a pod it is in an event. Below, `…`
stands for a value. To search by symptom instead of by message, see
[troubleshooting](../troubleshooting.md).

## Exit codes

The exit code tells the kind of error. `pyvgpu run` otherwise ends with the exit code of its
program.

"""
# By exit code: the kind of error, and what a user does about it.
CODES = {
    64: ("an argument, a value or a request is invalid", "change it as the message says"),
    65: ("a file or document is invalid", "repair or replace the named file or object"),
    69: (
        "something required is unavailable: a driver, a device, free capacity, a service",
        "provide it, or wait until it is available; `pyvgpu doctor` checks this machine",
    ),
    70: (
        "the operating system or another program did not do its part",
        "the rest of the message names the failed operation; solve that first",
    ),
    74: (
        "the output cannot be written",
        "free disk space, or keep the reader of the output open",
    ),
    77: (
        "access is denied by the kernel or by a file's mode",
        "use another user or folder, or let an administrator grant the permission",
    ),
    126: ("the program cannot be executed", "make the file executable: `chmod +x FILE`"),
    127: ("there is no such program", "correct the name, or add its folder to `PATH`"),
    141: ("the reader of the output has closed the pipe", "nothing: `head` does so, too"),
}
# What to do about a message that matches a pattern: the first match counts. Others have the answer
# of their folder, or of their exit code.
ADVICE = (
    (r"the rest is reserved", "request less, or lower or end a run: `pyvgpu ps` lists them"),
    (r"valid would be", "use the value after `valid would be`"),
    (r"one is enough", "stop one of the two agents, or give each its own folder"),
    (r"delete the pod", "delete the pod; its controller creates another"),
    (r"it must restart", "nothing: the agent restarts by itself"),
    (r"copy the file again|cut short", "copy the file again, completely"),
    (r"certificate request", "approve or deny it: `kubectl get csr` lists the requests"),
    (
        r"; (?:it is |then )?(?:run|request|put|remove|set|give|free|install|name|read|use) "
        r"|: give --|creates one|lists them|resumes it|--state names|--simulate",
        "do what the second half of the message says",
    ),
    (r"unmount it first", "unmount it, and repeat the command"),
    (r"must not both|makes no sense", "leave out one of the named options"),
    (r"pip install|install pyvgpu again", "run the installation command"),
    (r"\bmust\b", "follow the rule after `must`"),
    (r"JSON|YAML", "correct the syntax of the document"),
    (r"such as", "write it like the example after `such as`"),
    (r"^pod …|is being bound|replica leads|gang", "nothing: kube-scheduler retries"),
    (r"kubelet", "check that kubelet runs on the node; the agent and kubelet retry"),
    (r"certificate", "check the named certificate and its expiry"),
    (r"^watch of|the response is|no response from", "check that the API server is reachable"),
    (r"you may not list", "grant the permission: `kubectl auth can-i list RESOURCE` checks it"),
    (
        r"(?:run` \(pid …\) has|program has just) ended",
        "nothing: `pyvgpu ps` lists the active runs",
    ),
    (r"try again|meanwhile|being upgraded|has just ended", "repeat the command"),
    (r"NVML", "check the driver: `nvidia-smi`, then `pyvgpu doctor`"),
    (r"cannot be read|cannot be opened", "check that the file exists and that you may read it"),
    (
        r"cannot be (?:written|created|filled|used)|no space|no folder",
        "free disk space, or use a folder to which you may write",
    ),
    (r"libcuda|the driver|NVIDIA driver", "check the driver: `pyvgpu doctor`"),
    (r"--serve|--listen|cannot listen", "use another address or a free port"),
    (r"the machine is in use", "end the programs of the machine, or use another"),
    (r"does not answer|it does not run|answers with", "check that the named program runs"),
)
FOLDERS = {  # of programs that retry by themselves what is unavailable
    ("deviceplugin/", 69): "wait: the agent retries; `kubectl vgpu explain POD` shows the state",
    ("controller/", 69): "wait: the program retries; its log has the details",
}
# The functions of input_files that raise errors, with the place of the rule among their arguments.
# The name of the input, if it is an argument, comes before the rule; else it is the path.
READERS = {"read_file": 2, "read_input": 1}
# The errors that errors.of_files returns, with the file system's reason after the text.
OF_FILES = (errors.UnavailableError, errors.PermissionDeniedError)
SHIM = """## Refusals of the shim

The shim writes one of these to a program's standard error, once, when `cuInit` or `nvmlInit` fails
because of it. The line begins with `pyvgpu: CUDA and NVML are refused: `. The shim never lets a
program run without a quota instead.

"""
SHIM_FILES = ("csrc/shim/shim.c", "csrc/shim/init.c", "csrc/core/region.c")
SHIM_SAYS = re.compile(
    r'(?:complain\(|region_fail\(reason,[^"]*?|why\), |sizeof\(reason->text\),\s*'
    r"|region_reason reason = \{)"
    r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
)
FORMAT = re.compile(r"%[-0-9.]*(?:ll|l|z)?[a-z]")


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """An error message in the code."""

    path: str
    kind: type[errors.PyVgpuError]
    text: str


def text(root: Path) -> str:
    """Return the page."""
    codes = ([str(number), *said] for number, said in CODES.items())
    parts = [HEAD, table(("exit code", "what it is", "what to do"), codes)]
    parts += [SHIM, table(("text",), ([code(say)] for say in shim_says(root)))]
    parts += ["## Events\n\n`kubectl describe pod` shows them.\n\n"]
    parts += [table(("reason", "when"), ([code(name), meaning] for name, meaning in events(root)))]
    parts += ["## Errors\n\nSorted by their first word.\n\n"]
    parts += [table(("text", "exit code", "what to do"), _errors(root))]
    return "".join(parts)


def kinds(root: Path) -> list[type[errors.PyVgpuError]]:
    """Return every error class, base classes first."""
    for name in sources.modules(root):
        importlib.import_module(name)
    found = [errors.PyVgpuError]
    for error_class in found:
        found += [below for below in error_class.__subclasses__() if below not in found]
    return found


def answer(message: Message) -> str:
    """Return what a user does about a message."""
    matching = (advice for pattern, advice in ADVICE if re.search(pattern, message.text))
    folder = (message.path.partition("/")[0] + "/", message.kind.exit_code)
    return next(matching, FOLDERS.get(folder, CODES[message.kind.exit_code][1]))


def place(text: str) -> str:
    """Return the sort key of a message: its text from the first letter or digit on."""
    return re.sub(r"^[^a-z0-9]+", "", text.lower())


def messages(root: Path) -> Iterator[Message]:
    """Yield every text with which an error class is constructed."""
    by_name = {error_class.__name__: error_class for error_class in kinds(root)}
    everything = sources.walk(root)
    named = _named(everything)
    for found in everything:
        if not isinstance(found.node, ast.Call) or not found.node.args:
            continue
        name = sources.name_of(found.node)
        if name in READERS:
            yield _reader_message(found.path, found.node)
            continue
        of_files = name == errors.of_files.__name__
        raised = OF_FILES if of_files else filter(None, [by_name.get(name)])
        given = found.node.args[0]
        said = [sources.text_of(given) or ""]
        if isinstance(given, ast.Name):
            said = named.get((found.path, found.where, given.id), [])
        if of_files:
            said = [f"{literal}: {sources.GAP}" for literal in said if literal]
        yield from (
            Message(found.path, kind, literal)
            for kind in raised
            for literal in said
            if literal.strip(f"{sources.GAP}:; ")
        )


def _reader_message(path: str, call: ast.Call) -> Message:
    """Return the message of a call to a function of READERS."""
    place = READERS[sources.name_of(call)]
    name = sources.GAP if place == 1 else sources.text_of(call.args[1])
    rule = sources.text_of(call.args[place])
    if name is None or rule is None:
        raise ValueError(f"{path}:{call.lineno}: the name and the rule must be literal texts")
    return Message(path, errors.DataError, f"{name}: {sources.GAP}; {rule}")


def _named(everything: Iterable[sources.Found]) -> dict[tuple[str, str, str], list[str]]:
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


def _errors(root: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each text; the same text may have several exit codes."""
    found: dict[str, dict[int, Message]] = {}
    for message in messages(root):
        found.setdefault(message.text, {}).setdefault(message.kind.exit_code, message)
    for said in sorted(found, key=lambda said: (place(said), said)):
        numbers = sorted(found[said])
        yield code(said), ", ".join(map(str, numbers)), answer(found[said][numbers[0]])
