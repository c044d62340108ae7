"""gpu-manager's options, as its DaemonSets have them: what each of them means for our agent.

Those that have the same name and meaning as one of ours are not here. An underscore in a name
is a hyphen, as there.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

import pyvgpu
from pyvgpu import errors
from pyvgpu.cli import table
from pyvgpu.deviceplugin import gaia

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Fields = dict[str, Any]  # of the agent's settings


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    """One option of gpu-manager."""

    flag: str
    value: str  # how --help calls its value; BOOL may be left out
    means: str  # here, for --help and the documentation
    read: Callable[[str, str], Fields] | None = None  # None: nothing follows from it
    warns: bool = False  # what it means is said when it is given: it is not what it means there


def _driver(text: str, flag: str) -> Fields:
    if text != "nvidia":
        raise errors.UsageError(f"{flag} {text!r}: must be nvidia, there is no other driver")
    return {}


def _bool(text: str, flag: str) -> bool:
    """Return what Go takes for a truth."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise errors.UsageError(f"{flag} {text!r}: must be true or false, such as {flag}=true")


def _node(text: str, flag: str) -> Fields:
    # Theirs is empty where $NODE_NAME is.
    return {"node": table.word(text, flag)} if text else {}


def _display(text: str, flag: str) -> Fields:
    return {"display": table.path(text, flag)}


def _labels(text: str, flag: str) -> Fields:
    return {"labels": gaia.read_labels(text, flag)}


def _share_mode(text: str, flag: str) -> Fields:
    return {"shares": _bool(text, flag)}


def _verbosity(text: str, flag: str) -> Fields:
    return {"verbose": table.whole(0, 99, 2)(text, flag) >= _VERBOSE}


def _truth(text: str, flag: str) -> Fields:
    _bool(text, flag)
    return {}


def _address(text: str, flag: str) -> Fields:
    return {"address": table.word(text, flag)}


def _port(text: str, flag: str) -> Fields:
    return {"port": table.whole(0, 65535, _PORT)(text, flag)}


_ADDRESS, _PORT = "localhost", 5678  # theirs, where only one of both is given
_VERBOSE = 4  # from which number on klog's users mean the details

OPTIONS = (
    Theirs("--driver", "NAME", "nvidia, the only one", _driver),
    Theirs("--hostname-override", "NAME", "--node", _node),
    Theirs("--query-addr", "ADDRESS", f"that of --listen; {_ADDRESS}", _address),
    Theirs("--query-port", "PORT", f"that of --listen; {_PORT}", _port),
    Theirs("--share-mode", "BOOL", "true, as without it; false: whole devices only", _share_mode),
    Theirs("--incluster-mode", "BOOL", "nothing: without --kubeconfig it is so", _truth),
    Theirs("--v", "LEVEL", f"--verbose, from {_VERBOSE} on", _verbosity),
    Theirs("--logtostderr", "BOOL", "nothing: it is so", _truth),
    Theirs("--alsologtostderr", "BOOL", "nothing: it is so", _truth),
    Theirs("--log-dir", "DIR", "nothing: the log goes to standard error", warns=True),
    Theirs("--log-backtrace-at", "LINE", "nothing: there are no such lines", warns=True),
    Theirs("--stderrthreshold", "LEVEL", "nothing: all goes to standard error", warns=True),
    Theirs("--vmodule", "LEVELS", "nothing: --verbose is for all parts", warns=True),
    Theirs("--sample-period", "SECONDS", "nothing: usage is read when asked for", warns=True),
    Theirs("--node-labels", "LABELS", "labels for the node, with commas between them", _labels),
    Theirs("--virtual-manager-path", "DIR", "nothing: grants are below --run", warns=True),
    Theirs("--checkpoint-path", "DIR", "nothing: it is kept below --state", warns=True),
    Theirs(
        "--allocation-check-period",
        "SECONDS",
        "nothing: pods that can never start are evicted at once",
        warns=True,
    ),
    Theirs("--container-runtime", "NAME", "nothing: any runtime with CDI will do", warns=True),
    Theirs(
        "--container-runtime-endpoint",
        "SOCKET",
        "nothing: the runtime is not asked",
        warns=True,
    ),
    Theirs("--cgroup-driver", "NAME", "nothing: it is seen which one it is", warns=True),
    Theirs("--runtime-request-timeout", "TIME", "nothing: the runtime is not asked", warns=True),
    Theirs("--wait-timeout", "TIME", "nothing: it is waited as long as it takes", warns=True),
    Theirs("--addr", "SOCKET", "--display", _display),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let *parser* know them."""
    group = parser.add_argument_group(
        "gpu-manager's options", "taken as they are; ours count where both are given"
    )
    for it in OPTIONS:
        more: dict[str, Any] = {"nargs": "?", "const": "true"} if it.value == "BOOL" else {}
        more |= {"dest": _name(it), "metavar": it.value}
        group.add_argument(it.flag, help=f"means {it.means}", **more)
        other = f"--{it.flag[2:].replace('-', '_')}"
        if other != it.flag:
            group.add_argument(other, help=argparse.SUPPRESS, **more)
    group.add_argument("--version", action="version", version=f"pyvgpu {pyvgpu.__version__}")


def read(options: argparse.Namespace) -> Fields:
    """Return the fields that those which were given mean; UsageError if one is wrong."""
    found: Fields = {}
    for it, text in _given(options):
        if it.read is not None:
            found |= it.read(text, it.flag)
    if "address" in found or "port" in found:
        address, port = found.pop("address", _ADDRESS), found.pop("port", _PORT)
        found["listen"] = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return found


def warnings(options: argparse.Namespace) -> tuple[str, ...]:
    """Return a line for each that was given and means something else here."""
    return tuple(f"{it.flag} means {it.means}" for it, _ in _given(options) if it.warns)


def _given(options: argparse.Namespace) -> Iterator[tuple[Theirs, str]]:
    for it in OPTIONS:
        text = getattr(options, _name(it))
        if text is not None:
            yield it, text


def _name(option: Theirs) -> str:
    return f"theirs_{option.flag[2:].replace('-', '_')}"
