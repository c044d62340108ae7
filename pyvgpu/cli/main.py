"""Find the subcommand, run it, and say in one line what went wrong."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import logging
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pyvgpu
from pyvgpu import errors, log
from pyvgpu.cli import kubectl as kubectl_commands
from pyvgpu.cli import output, versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# By where it is of use: the name, its module and what --help says; a module has
# prepare_parser(parser) and run(options) -> exit code, and is imported only when it is asked for.
GROUPS = (
    (
        "on this machine",
        (
            ("run", "pyvgpu.cli.run", "run a program with a part of a device"),
            ("ps", "pyvgpu.cli.ps", "list the runs that live on this machine"),
            ("top", "pyvgpu.cli.top", "show what every run uses of the devices"),
            ("set", "pyvgpu.cli.set", "change the quota of a run that lives"),
            ("demo", "pyvgpu.cli.demo", "show tenants of a simulated device held to their quotas"),
            (
                "replay",
                "pyvgpu.cli.replay",
                "say what a share would cost a job that was profiled",
            ),
            (
                "calibrate",
                "pyvgpu.cli.calibrate",
                "say what a GPU is like, from a record of the GPU kit",
            ),
            (
                "doctor",
                "pyvgpu.cli.doctor",
                "say what works here, what is missing, how to get it",
            ),
        ),
    ),
    (
        "in a cluster",
        (
            ("manifests", "pyvgpu.cli.manifests", "say what installs pyvgpu in a cluster"),
            (
                "explain",
                "pyvgpu.cli.explain",
                "say why a pod waits for devices, or does not end",
            ),
            (
                "simulate-schedule",
                "pyvgpu.cli.simulate_schedule",
                "say where pods would go, and on which devices",
            ),
            (
                "scheduler",
                "pyvgpu.cli.scheduler",
                "choose the devices of pods, asked by kube-scheduler",
            ),
            (
                "webhook",
                "pyvgpu.cli.webhook",
                "complete or refuse pods when they are created",
            ),
            (
                "sidecar-controller",
                "pyvgpu.cli.sidecar_controller",
                "end the sidecars of finished pods",
            ),
            (
                "claim-controller",
                "pyvgpu.cli.claim_controller",
                "collect templates of claims that no pod names",
            ),
            (
                "status-page",
                "pyvgpu.cli.status_page",
                "show a cluster's devices to people, by HTTPS",
            ),
        ),
    ),
    (
        "on a node of a cluster",
        (
            (
                "device-plugin",
                "pyvgpu.cli.device_plugin",
                "give containers of this node their parts of devices",
            ),
            (
                "dra-driver",
                "pyvgpu.cli.dra_driver",
                "the same for claims: dynamic resource allocation",
            ),
            (
                "control-nodes",
                "pyvgpu.cli.control_nodes",
                "let the agent of this node open its devices",
            ),
            (
                "cordon",
                "pyvgpu.cli.cordon",
                "let nothing new come onto a device of this node",
            ),
            (
                "sidecar-node",
                "pyvgpu.cli.sidecar_node",
                "stop sidecars on this node, when it asks",
            ),
            (
                "mirror",
                "pyvgpu.cli.mirror",
                "mirror the driver of a node for its containers",
            ),
            (
                "flexvolume",
                "pyvgpu.cli.flexvolume",
                "give the mirror to pods, as kubelet asks for it",
            ),
        ),
    ),
    (
        "about pyvgpu",
        (
            (
                "support-bundle",
                "pyvgpu.cli.support_bundle",
                "pack what helps to help, without secrets",
            ),
            (
                "completion",
                "pyvgpu.cli.completion",
                "let a shell complete commands and options",
            ),
            ("manual", "pyvgpu.cli.manual", "print the man page"),
        ),
    ),
)
COMMANDS = tuple(command for _, commands in GROUPS for command in commands)


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """What is called by one name, with its subcommands."""

    name: str
    description: str | None
    groups: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]  # with their titles
    example: str

    @property
    def commands(self) -> tuple[tuple[str, str, str], ...]:
        """All of them, whatever their group."""
        return tuple(command for _, commands in self.groups for command in commands)


PYVGPU = Program("pyvgpu", pyvgpu.__doc__, GROUPS, "pyvgpu run --help")
KUBECTL = Program(
    "kubectl vgpu",
    "See which pods have which devices, what they use of them, and why others wait.",
    (("commands", kubectl_commands.COMMANDS),),
    "kubectl vgpu top --help",
)


ALL = "*"  # subcommands


class Parser(argparse.ArgumentParser):
    """Reports errors as every other part of pyvgpu does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # So that `--vmemory -1GiB` is a size that is wrong, and no option that is unknown.
        self._negative_number_matcher = re.compile(r"-[0-9.]")

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage."""
        raise errors.UsageError(f"{message} (see `{self.prog} --help`)")


class ProgramParser(Parser):
    """The parser of a program, whose help has its subcommands by group."""

    def __init__(self, program: Program) -> None:
        super().__init__(
            prog=program.name,
            description=program.description,
            allow_abbrev=False,
            epilog=f"Each command has --help with an example, such as `{program.example}`.",
        )
        self._program = program

    def format_help(self) -> str:
        """Return the help with the groups of subcommands in the place of a list of them all."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, commands in self._program.groups:
            formatter.start_section(title)
            for name, _, summary in commands:
                formatter.add_argument(argparse.Action([], name, help=summary, metavar=name))
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(it for it in self._actions if it.option_strings)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def kubectl(arguments: Sequence[str] | None = None) -> int:
    """Run the command line as kubectl's plugin."""
    return main(arguments, KUBECTL)


def kubectl_complete(arguments: Sequence[str] | None = None) -> int:
    """Tell kubectl what its plugin's command line may become."""
    from pyvgpu.cli.kubectl import completing

    given = list(sys.argv[1:] if arguments is None else arguments)
    print("\n".join([*completing.candidates(whole(KUBECTL), given), completing.NO_FILES]))
    return 0


def main(arguments: Sequence[str] | None = None, program: Program = PYVGPU) -> int:
    """Run the command line and return its exit code."""
    given = _usual(list(sys.argv[1:] if arguments is None else arguments))
    logging.lastResort = log.LastResort(logging.WARNING)
    try:
        with output.guarded():
            return _run(given, program)
    except output.ReaderGoneError as exc:
        return exc.exit_code
    except errors.PyVgpuError as exc:
        log.say(str(exc))
        return exc.exit_code
    except KeyboardInterrupt:
        return 130


def whole(program: Program) -> Parser:
    """Return the parser of a *program* with the options of all its subcommands."""
    return _parsers(program, ALL)[0]


def _parsers(program: Program, asked: str | None) -> tuple[Parser, Parser]:
    """Return the parser of a *program*, with the options of the subcommand *asked*; and that's."""
    whole = ProgramParser(program)
    whole.add_argument("--version", action=versions.Action)
    commands = whole.add_subparsers(dest="command_name", metavar="COMMAND", parser_class=Parser)
    chosen: Parser = whole
    for name, module, summary in program.commands:
        command = commands.add_parser(
            name,
            help=summary,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if asked in (name, ALL):
            importlib.import_module(module).prepare_parser(command)
            chosen = command
    return whole, chosen


def _run(given: list[str], program: Program) -> int:
    modules = {name: module for name, module, _ in program.commands}
    whole, chosen = _parsers(program, given[0] if given else None)
    if not given:
        whole.print_help()
        return 0
    if not given[0].startswith("-") and given[0] not in modules:
        whole.error(f"{given[0]!r}: is no command{_perhaps(given[0], modules)}")
    options, unknown = whole.parse_known_args(given)
    if unknown:
        known = [name for action in chosen._actions for name in action.option_strings]
        meant = _perhaps(unknown[0].partition("=")[0], known)
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    if options.command_name is None:
        whole.error("no command is given, such as `run`")
    return int(importlib.import_module(modules[options.command_name]).run(options))


def _usual(given: list[str]) -> list[str]:
    """Return the arguments with the words that other programs have as commands as options."""
    if given[:1] == ["help"]:
        return [*given[1:], "--help"]
    return ["--version"] if given == ["version"] else given


def _perhaps(given: str, known: Iterable[str]) -> str:
    """Return the question whether another word was meant, empty if none is like it."""
    found = difflib.get_close_matches(given, known, 1)
    return f"; did you mean {found[0]}?" if found else ""
