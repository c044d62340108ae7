"""Find the subcommand, run it, and say in one line what went wrong."""

from __future__ import annotations

import argparse
import importlib
import logging
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pyvgpu
from pyvgpu import errors, log
from pyvgpu.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

# The name, its module and what --help says; a module has prepare_parser(parser) and
# run(options) -> exit code, and is imported only when it is asked for.
COMMANDS = (
    ("run", "pyvgpu.cli.run", "run a program with a part of a device"),
    ("ps", "pyvgpu.cli.ps", "list the runs that live on this machine"),
    ("top", "pyvgpu.cli.top", "show what every run uses of the devices"),
    ("set", "pyvgpu.cli.set", "change the quota of a run that lives"),
    ("demo", "pyvgpu.cli.demo", "show tenants of a simulated device held to their quotas"),
    ("mirror", "pyvgpu.cli.mirror", "mirror the driver of a node for its containers"),
    ("flexvolume", "pyvgpu.cli.flexvolume", "give the mirror to pods, as kubelet asks for it"),
    (
        "device-plugin",
        "pyvgpu.cli.device_plugin",
        "give containers of this node their parts of devices",
    ),
    ("control-nodes", "pyvgpu.cli.control_nodes", "let the agent of this node open its devices"),
    ("cordon", "pyvgpu.cli.cordon", "let nothing new come onto a device of this node"),
    ("sidecar-controller", "pyvgpu.cli.sidecar_controller", "end the sidecars of finished pods"),
    ("sidecar-node", "pyvgpu.cli.sidecar_node", "stop sidecars on this node, when it asks"),
    ("webhook", "pyvgpu.cli.webhook", "change pods with sidecars when they are created"),
    ("explain", "pyvgpu.cli.explain", "say what a pod that does not end waits for"),
    ("doctor", "pyvgpu.cli.doctor", "say what works here, what is missing, how to get it"),
)


class Parser(argparse.ArgumentParser):
    """Reports errors as every other part of pyvgpu does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # So that `--vmemory -1GiB` is a size that is wrong, and no option that is unknown.
        self._negative_number_matcher = re.compile(r"-[0-9.]")

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage."""
        raise errors.UsageError(f"{message} (see `{self.prog} --help`)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    logging.lastResort = log.LastResort(logging.WARNING)
    try:
        with output.guarded():
            return _run(given)
    except output.ReaderGoneError as exc:
        return exc.exit_code
    except errors.PyVgpuError as exc:
        log.say(str(exc))
        return exc.exit_code
    except KeyboardInterrupt:
        return 130


def _run(given: list[str]) -> int:
    parser = Parser(
        prog="pyvgpu",
        description=pyvgpu.__doc__,
        allow_abbrev=False,
        epilog="Each command has --help with an example, such as `pyvgpu run --help`.",
    )
    parser.add_argument("--version", action="version", version=f"pyvgpu {pyvgpu.__version__}")
    commands = parser.add_subparsers(dest="command_name", metavar="COMMAND", required=True)
    asked = parser
    for name, module, summary in COMMANDS:
        command = commands.add_parser(
            name,
            help=summary,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if given[:1] == [name]:
            chosen = importlib.import_module(module)
            chosen.prepare_parser(command)
            asked = command
    options, unknown = parser.parse_known_args(given)
    if unknown:
        asked.error(f"unrecognized arguments: {' '.join(unknown)}")
    return int(chosen.run(options))
