"""gpu-manager's command-line options, and what each of them means for our agent.

Options with the same name and meaning as one of ours are not listed. As in gpu-manager, an
underscore in a name counts as a hyphen.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

import pyvgpu
from pyvgpu import errors
from pyvgpu.cli import table
from pyvgpu.deviceplugin.gpu_manager import profile
from pyvgpu.http import endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Fields = dict[str, Any]  # of the agent's settings


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    """One option of gpu-manager."""

    flag: str
    value: str  # its placeholder in --help; a BOOL may be left out
    means: str  # its meaning here, for --help and the documentation
    read: Callable[[str, str], Fields] | None = None  # None: it has no effect
    warns: bool = False  # log its meaning, because it differs from gpu-manager's

    @property
    def explained(self) -> str:
        """Its meaning as a predicate, for --help and the log."""
        return f"{'is' if self.means.startswith('ignored') else 'means'} {self.means}"


def _driver(text: str, flag: str) -> Fields:
    if text != "nvidia":
        raise errors.UsageError(f"{flag} {text!r}: must be nvidia, there is no other driver")
    return {}


def _bool(text: str, flag: str) -> bool:
    """Parse a boolean as Go's strconv.ParseBool does."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise errors.UsageError(f"{flag} {text!r}: must be true or false, such as {flag}=true")


def _node(text: str, flag: str) -> Fields:
    # gpu-manager's value is empty where $NODE_NAME is.
    return {"node": table.object_name("node-1")(text, flag)} if text else {}


def _display(text: str, flag: str) -> Fields:
    return {"display": table.path(text, flag)}


def _labels(text: str, flag: str) -> Fields:
    return {"labels": profile.read_labels(text, flag)}


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


_ADDRESS, _PORT = "localhost", 5678  # gpu-manager's defaults, if only one of both is given
_VERBOSE = 4  # klog's level for debug output

OPTIONS = (
    Theirs("--driver", "NAME", "nvidia, the only valid value", _driver),
    Theirs("--hostname-override", "NAME", "--node", _node),
    Theirs("--query-addr", "ADDRESS", f"the address of --listen; {_ADDRESS}", _address),
    Theirs("--query-port", "PORT", f"the port of --listen; {_PORT}", _port),
    Theirs("--share-mode", "BOOL", "true: the default; false: whole devices only", _share_mode),
    Theirs("--incluster-mode", "BOOL", "ignored: the default without --kubeconfig", _truth),
    Theirs("--v", "LEVEL", f"--verbose, from {_VERBOSE} on", _verbosity),
    Theirs("--logtostderr", "BOOL", "ignored: logs always go to standard error", _truth),
    Theirs("--alsologtostderr", "BOOL", "ignored: logs always go to standard error", _truth),
    Theirs("--log-dir", "DIR", "ignored: logs go to standard error", warns=True),
    Theirs("--log-backtrace-at", "LINE", "ignored: this is not supported", warns=True),
    Theirs("--stderrthreshold", "LEVEL", "ignored: all goes to standard error", warns=True),
    Theirs("--vmodule", "LEVELS", "ignored: --verbose applies to all modules", warns=True),
    Theirs("--sample-period", "SECONDS", "ignored: usage is sampled on request", warns=True),
    Theirs("--node-labels", "LABELS", "labels for the node, separated by commas", _labels),
    Theirs("--virtual-manager-path", "DIR", "ignored: grants are below --run", warns=True),
    Theirs("--checkpoint-path", "DIR", "ignored: the checkpoint is below --state", warns=True),
    Theirs(
        "--allocation-check-period",
        "SECONDS",
        "ignored: pods that can never start are evicted at once",
        warns=True,
    ),
    Theirs("--container-runtime", "NAME", "ignored: any runtime with CDI works", warns=True),
    Theirs(
        "--container-runtime-endpoint",
        "SOCKET",
        "ignored: the runtime is not queried",
        warns=True,
    ),
    Theirs("--cgroup-driver", "NAME", "ignored: it is detected", warns=True),
    Theirs("--runtime-request-timeout", "TIME", "ignored: the runtime is not queried", warns=True),
    Theirs("--wait-timeout", "TIME", "ignored: there is no timeout", warns=True),
    Theirs("--addr", "SOCKET", "--display", _display),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add gpu-manager's options to *parser*."""
    group = parser.add_argument_group(
        "gpu-manager's options", "accepted for compatibility; our own options take precedence"
    )
    for option in OPTIONS:
        more: dict[str, Any] = {"nargs": "?", "const": "true"} if option.value == "BOOL" else {}
        more |= {"dest": _name(option), "metavar": option.value}
        group.add_argument(option.flag, help=option.explained, **more)
        other = f"--{option.flag[2:].replace('-', '_')}"
        if other != option.flag:
            group.add_argument(other, help=argparse.SUPPRESS, **more)
    group.add_argument("--version", action="version", version=f"pyvgpu {pyvgpu.__version__}")


def read(options: argparse.Namespace) -> Fields:
    """Return the agent's settings for the given options; UsageError if one is not valid."""
    found: Fields = {}
    for option, text in _given(options):
        if option.read is not None:
            found |= option.read(text, option.flag)
    if "address" in found or "port" in found:
        address, port = found.pop("address", _ADDRESS), found.pop("port", _PORT)
        found["listen"] = endpoints.format_address(address, port)
    return found


def warnings(options: argparse.Namespace) -> tuple[str, ...]:
    """Return a line for each given option that has another meaning here."""
    return tuple(
        f"{option.flag} {option.explained}" for option, _ in _given(options) if option.warns
    )


def _given(options: argparse.Namespace) -> Iterator[tuple[Theirs, str]]:
    for option in OPTIONS:
        text = getattr(options, _name(option))
        if text is not None:
            yield option, text


def _name(option: Theirs) -> str:
    return f"theirs_{option.flag[2:].replace('-', '_')}"
