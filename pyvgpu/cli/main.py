"""Entry points of `pyvgpu` and `kubectl vgpu`: subcommand dispatch and error reporting."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import logging
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pyvgpu
from pyvgpu import errors, log
from pyvgpu.cli import kubectl as kubectl_commands
from pyvgpu.cli import output, versions

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Sequence

# Grouped by where a command is used: its name, module and --help summary. A module has
# prepare_parser(parser) and run(options) -> exit code, and is imported only when it is needed.
GROUPS = (
    (
        "on this machine",
        (
            ("run", "pyvgpu.cli.run", "run a program with a share of a device"),
            ("ps", "pyvgpu.cli.ps", "list the active runs on this machine"),
            ("top", "pyvgpu.cli.top", "show the GPU usage of every run"),
            ("set", "pyvgpu.cli.set", "change the quota of an active run"),
            (
                "cdi",
                "pyvgpu.cli.cdi",
                "give a quota to a container of Docker or Podman",
            ),
            ("suspend", "pyvgpu.cli.suspend", "free the device memory of an active run"),
            ("resume", "pyvgpu.cli.resume", "continue a suspended run"),
            ("demo", "pyvgpu.cli.demo", "demonstrate quota enforcement on a simulated device"),
            (
                "replay",
                "pyvgpu.cli.replay",
                "estimate the slowdown of a profiled job with a share",
            ),
            (
                "calibrate",
                "pyvgpu.cli.calibrate",
                "compare a measured GPU with the simulator's model",
            ),
            (
                "uninstall",
                "pyvgpu.cli.uninstall",
                "remove what pyvgpu has left on this machine",
            ),
            (
                "doctor",
                "pyvgpu.cli.doctor",
                "check the prerequisites, and say how to get them",
            ),
            (
                "slurm-plugin",
                "pyvgpu.cli.slurm_plugin",
                "compile the plugin that enforces Slurm's shards of a GPU",
            ),
        ),
    ),
    (
        "in a cluster",
        (
            ("manifests", "pyvgpu.cli.manifests", "print the Kubernetes manifests of pyvgpu"),
            (
                "explain",
                "pyvgpu.cli.explain",
                "explain why a pod waits for devices, or does not end",
            ),
            (
                "simulate-schedule",
                "pyvgpu.cli.simulate_schedule",
                "predict the nodes and devices of pods",
            ),
            (
                "scheduler",
                "pyvgpu.cli.scheduler",
                "run the scheduler extender for kube-scheduler",
            ),
            (
                "webhook",
                "pyvgpu.cli.webhook",
                "run the admission webhook for pods",
            ),
            (
                "sidecar-controller",
                "pyvgpu.cli.sidecar_controller",
                "run the controller that ends sidecars of finished pods",
            ),
            (
                "claim-controller",
                "pyvgpu.cli.claim_controller",
                "run the garbage collector of claim templates",
            ),
            (
                "status-page",
                "pyvgpu.cli.status_page",
                "run the web page of a cluster's devices",
            ),
        ),
    ),
    (
        "on a node of a cluster",
        (
            (
                "device-plugin",
                "pyvgpu.cli.device_plugin",
                "run the node agent as a device plugin",
            ),
            (
                "dra-driver",
                "pyvgpu.cli.dra_driver",
                "run the node agent as a DRA driver",
            ),
            (
                "control-nodes",
                "pyvgpu.cli.control_nodes",
                "run the device plugin that gives /dev/nvidia* to the agent",
            ),
            (
                "cordon",
                "pyvgpu.cli.cordon",
                "stop placing new containers on a device of this node",
            ),
            (
                "sidecar-node",
                "pyvgpu.cli.sidecar_node",
                "run the node part that stops sidecars",
            ),
            (
                "mirror",
                "pyvgpu.cli.mirror",
                "mirror the driver of a node for its containers",
            ),
            (
                "flexvolume",
                "pyvgpu.cli.flexvolume",
                "mount the mirror into pods as a FlexVolume driver",
            ),
        ),
    ),
    (
        "about pyvgpu",
        (
            (
                "support-bundle",
                "pyvgpu.cli.support_bundle",
                "collect diagnostics, without secrets",
            ),
            (
                "completion",
                "pyvgpu.cli.completion",
                "print the shell completion script",
            ),
            ("manual", "pyvgpu.cli.manual", "print the man page"),
        ),
    ),
)
COMMANDS = tuple(command for _, commands in GROUPS for command in commands)


@dataclasses.dataclass(frozen=True, slots=True)
class CommandLine:
    """One program and its subcommands."""

    name: str
    description: str | None
    groups: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]  # with their titles
    example: str

    @property
    def commands(self) -> tuple[tuple[str, str, str], ...]:
        """The commands of all groups."""
        return tuple(command for _, commands in self.groups for command in commands)


PYVGPU = CommandLine("pyvgpu", pyvgpu.__doc__, GROUPS, "pyvgpu run --help")
KUBECTL = CommandLine(
    "kubectl vgpu",
    "Show which pods hold which devices, how much of them they use, and why other pods wait.",
    (("commands", kubectl_commands.COMMANDS),),
    "kubectl vgpu top --help",
)


ALL = "*"  # all subcommands

# argparse's messages about a missing argument, and the names of the option that lacks one.
_INCOMPLETE = re.compile(
    r"arguments are required|argument (?P<options>-[^:]*): expected (?:one|at least one) argument"
)
_NO_VALUE = re.compile(r"argument (?P<options>-[^:]*): ignored explicit argument (?P<value>'.*')")
# Names of the same thing in Docker, Slurm, watch(1) and other GPU sharing systems.
_SYNONYMS = {
    "--gpus": "--device",
    "--gpu": "--device",
    "--memory": "--vmemory",
    "--mem": "--vmemory",
    "--vram": "--vmemory",
    "--gpu-memory": "--vmemory",
    "--gpumem": "--vmemory",
    "--cores": "--vcore",
    "--gpucores": "--vcore",
    "--compute": "--vcore",
    "--delay": "--interval",
    "--refresh": "--interval",
    "--all": "--all-namespaces",
    "-m": "--vmemory",
    "-d": "--interval",
}


class Parser(argparse.ArgumentParser):
    """Argument parser that raises UsageError."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Take `--vmemory -1GiB` as an invalid size, not as an unknown option.
        self._negative_number_matcher = re.compile(r"-[0-9.]")

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage, with an example if something is missing."""
        if match := _INCOMPLETE.search(message):
            message += self.example((match["options"] or "").split("/"))
        if match := _NO_VALUE.fullmatch(message):
            options = match["options"].split("/")
            message = f"{options[-1]} {match['value']}: must have no value{self.example(options)}"
        raise errors.UsageError(f"{message} (see `{self.prog} --help`)")

    def example(self, options: Sequence[str] = ("",), words: str = ", such as") -> str:
        """Return *words* and the help's first example with one of the *options*; empty if none."""
        lines = re.findall(rf"^  ({re.escape(self.prog)} .*?)(?:  .*)?$", self.epilog or "", re.M)
        fitting = (line for line in lines if any(f" {option}" in line for option in options))
        found = next(fitting, None)
        return f"{words} `{found}`" if found else ""


class ProgramParser(Parser):
    """The parser of a program, whose help lists its subcommands by group."""

    def __init__(self, program: CommandLine) -> None:
        super().__init__(
            prog=program.name,
            description=program.description,
            allow_abbrev=False,
            epilog=f"Each command has --help with an example, such as `{program.example}`; "
            "defaults are in parentheses.",
        )
        self._program = program

    def format_help(self) -> str:
        """Return the help, with groups of subcommands in place of one list."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, commands in self._program.groups:
            formatter.start_section(title)
            for name, _, summary in commands:
                formatter.add_argument(argparse.Action([], name, help=summary, metavar=name))
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(action for action in self._actions if action.option_strings)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def kubectl(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of the kubectl plugin."""
    return main(arguments, KUBECTL)


def kubectl_complete(arguments: Sequence[str] | None = None) -> int:
    """Print completions of the plugin's command line for kubectl."""
    from pyvgpu.cli.kubectl import completions

    given = list(sys.argv[1:] if arguments is None else arguments)
    print("\n".join([*completions.candidates(whole(KUBECTL), given), completions.NO_FILES]))
    return 0


def main(arguments: Sequence[str] | None = None, program: CommandLine = PYVGPU) -> int:
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


def whole(program: CommandLine) -> Parser:
    """Return the parser of a *program* with the options of all its subcommands."""
    return _parsers(program, ALL)[0]


def _parsers(program: CommandLine, asked: str | None) -> tuple[Parser, Parser]:
    """Return the parser of *program* and that of subcommand *asked*; only that one has options."""
    whole = ProgramParser(program)
    whole.add_argument("--version", action=versions.VersionAction)
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


def _run(given: list[str], program: CommandLine) -> int:
    modules = {name: module for name, module, _ in program.commands}
    whole, chosen = _parsers(program, given[0] if given else None)
    if not given:
        whole.print_help()
        return 0
    if given[0].startswith("-"):
        _check_order(given, whole, program)
    if not given[0].startswith("-") and given[0] not in modules:
        whole.error(f"{given[0]!r}: is no command{_perhaps(given[0], modules)}")
    options, unknown = whole.parse_known_args(given)
    if unknown:
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown[0], chosen)}")
    if options.command_name is None:
        whole.error("no command is given, such as `run`")
    module = importlib.import_module(modules[options.command_name])
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # while modules loaded: see __main__
        signal.signal(signal.SIGINT, interrupt)
    return int(module.run(options))


def _check_order(given: Sequence[str], whole: Parser, program: CommandLine) -> None:
    """UsageError if the command follows one of its options."""
    first = given[0].partition("=")[0]
    known = {name for action in whole._actions for name in action.option_strings}
    commands = {name for name, _, _ in program.commands}
    command = next((word for word in given[1:] if word in commands), None)
    if command is not None and first not in known:
        whole.error(
            f"{first}: is an option of a command, and must follow it, such as "
            f"`{program.name} {command} {given[0]}`"
        )


def interrupt(number: int, frame: types.FrameType | None) -> NoReturn:
    """Handle SIGINT while a command runs: raise KeyboardInterrupt.

    While a further module loads, end the process silently instead: Python prints an exception that
    is raised in some functions of importlib, and goes on.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        frame = frame.f_back
    raise KeyboardInterrupt


def _usual(given: list[str]) -> list[str]:
    """Turn the commands `help` and `version` of other programs into options."""
    if given[:1] == ["help"]:
        return [*given[1:], "--help"]
    return ["--version"] if given == ["version"] else given


def _meant(given: str, parser: Parser) -> str:
    """Return what to write in place of an argument that *parser* does not know."""
    known = [name for action in parser._actions for name in action.option_strings]
    if given.startswith("-"):
        name = given.partition("=")[0]
        synonym = _SYNONYMS.get(name)
        if synonym in known:
            return f"; did you mean {synonym}?"
        return _perhaps(name, known) or parser.example(words="; valid would be")
    if "--vcore" in known and re.fullmatch("[0-9]{1,3}%?", given):
        return f"; did you mean --vcore {given.removesuffix('%')}?"
    if "--vmemory" in known and re.fullmatch("[0-9]+[KMGT]i?B?", given):
        return f"; did you mean --vmemory {given}?"
    places = [str(action.metavar) for action in parser._actions if not action.option_strings]
    taken = f"one {' and one '.join(places)}, and options" if places else "only options"
    return f"; `{parser.prog}` takes {taken}{parser.example()}"


def _perhaps(given: str, known: Iterable[str]) -> str:
    """Return a "did you mean" question, empty if no known word is similar without its hyphens."""
    bare = {word.lstrip("-"): word for word in known if len(word) > 2}
    found = difflib.get_close_matches(given.lstrip("-"), bare, 1)
    return f"; did you mean {bare[found[0]]}?" if found else ""
