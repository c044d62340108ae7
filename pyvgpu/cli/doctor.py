"""`pyvgpu doctor`: check the prerequisites of this machine, node or container."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyvgpu
from pyvgpu import doctor, errors, names
from pyvgpu.doctor import inside, node_checks
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_DESCRIPTION = """\
Check the driver, the devices, the kernel and pyvgpu's own build, and say how to get what is
missing. With --prove, also start a run and prove that its quota is enforced: an allocation over
it is refused, and two seconds of work get no more than its share of the device's time.

In a container with a share of a device, and in a run: check what it has, and prove that its own
quota is enforced. With --node: check what the agent of a node needs, and query its health.

The exit code is 69 if a requirement is missing (outside containers and runs: if `pyvgpu run`
cannot work here at all, not even with --simulate), 70 if a quota is not enforced, else 0.
"""
_EXAMPLES = """\
examples:
  pyvgpu doctor
  pyvgpu doctor --prove
  pyvgpu doctor --prove --simulate h100
  pyvgpu doctor --driver-libraries /opt/driver/lib
  pyvgpu doctor --scheduler-config /etc/kubernetes/scheduler.yaml
  kubectl exec train-0 -- pyvgpu doctor --json
  kubectl -n pyvgpu-agent exec ds/agent -- pyvgpu doctor --node
"""
_COLOURS = {
    doctor.CheckState.OK: "green",
    doctor.CheckState.LIMITED: "yellow",
    doctor.CheckState.MISSING: "red",
    doctor.CheckState.SKIPPED: "dim",
}
_OF_A_NODE = node_checks.NodePaths()
_MORE = (
    "More can be tested on a GPU, such as frameworks, several tenants and the shim's cost per "
    "call: `make gpu-kit` packs the tests, also for machines offline (docs/on-real-gpus.md)."
)
_IN_POD = "KUBERNETES_SERVICE_HOST"  # kubelet sets it in every container
_TRIAL_VCORE, _TRIAL_VMEMORY = "25", "1GiB"  # of one device, for some seconds
_TRIAL_SECONDS = 180
_TRIAL_MAIN = "import sys, pyvgpu.cli; sys.exit(pyvgpu.cli.main())"
_TRIAL_REMEDY = "the rows above say what `pyvgpu run` needs"


@dataclasses.dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of all checks."""

    place: str  # machine, node, container, container of whole devices, run
    rows: tuple[doctor.CheckResult, ...]
    sentence: str
    exit_code: int
    run: doctor.PossibleRuns | None = None  # of a machine: which runs are possible
    more: str = ""  # further tests that are possible


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu doctor`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("--json", action="store_true", help="print the same rows as JSON")
    add(
        "--prove",
        action="store_true",
        help=f"start a run of {_TRIAL_VCORE} vcore and {_TRIAL_VMEMORY} for some seconds, and "
        "prove that its quota is enforced",
    )
    add(
        "--simulate",
        metavar="MODEL[:COUNT]",
        help="prove it on a simulated machine, such as h100",
    )
    add(
        "--driver-libraries",
        metavar="DIR",
        type=Path,
        help="the folder of libcuda.so.* and libnvidia-ml.so.*, if it is not a usual one",
    )
    add(
        "--scheduler-config",
        metavar="FILE",
        type=Path,
        help="kube-scheduler's configuration: check its extender and that it scores all nodes",
    )
    add("--node", action="store_true", help="check what the agent of this node needs")
    for name, metavar, default, what in (
        ("--state", "DIR", _OF_A_NODE.state, "with --node: the agent's state"),
        ("--kubelet", "DIR", _OF_A_NODE.kubelet, "with --node: kubelet's root"),
        ("--cdi", "DIR", _OF_A_NODE.specifications, "with --node: folder of CDI specifications"),
    ):
        add(name, metavar=metavar, type=Path, default=default, help=f"{what} (%(default)s)")
    add(
        "--agent",
        metavar="[ADDRESS:]PORT",
        default=_OF_A_NODE.agent,
        help="with --node: the agent's --listen address (%(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the checks and print the report."""
    _check(options)
    report = _report(options)
    if options.json:
        print(json.dumps(_document(report), indent=2))
    else:
        _show(report)
    return report.exit_code


def _check(options: argparse.Namespace) -> None:
    of_a_node = {
        "--state": options.state != _OF_A_NODE.state,
        "--kubelet": options.kubelet != _OF_A_NODE.kubelet,
        "--cdi": options.cdi != _OF_A_NODE.specifications,
        "--agent": options.agent != _OF_A_NODE.agent,
    }
    for flag, is_given in of_a_node.items():
        if is_given and not options.node:
            raise errors.UsageError(
                f"{flag}: has no effect without --node, such as in `pyvgpu doctor --node`"
            )
    if options.simulate is None:
        return
    simulator.parse_machine(options.simulate)
    if not options.prove:
        raise errors.UsageError(
            f"--simulate {options.simulate}: has no effect without --prove, such as in "
            "`pyvgpu doctor --prove --simulate h100`"
        )


def _report(options: argparse.Namespace) -> DoctorReport:
    if options.node:
        where = node_checks.NodePaths(options.state, options.kubelet, options.cdi, options.agent)
        rows = node_checks.examine(where, os.environ)
        return _evaluated("node", rows, "the agent of this node has what it needs")
    place = inside.find()
    if place is not None:
        rows = inside.examine(place, os.environ)
        held = (
            "this container has whole devices"
            if place.kind is inside.EnvironmentKind.WHOLE
            else ""
        )
        return _evaluated(place.kind, rows, held or f"this {place.kind} is held to its quota")
    scene = doctor.CheckedMachine(
        os.environ, options.driver_libraries, scheduler_config=options.scheduler_config
    )
    rows = doctor.examine(scene)
    verdict = doctor.evaluate(rows)
    possible = verdict.simulated if options.simulate else verdict.real
    if options.prove and possible:
        rows += _try_run(options)
    elif options.prove:
        raise errors.UnavailableError(_sentence(verdict))
    code = 0 if verdict.real or verdict.simulated else errors.UnavailableError.exit_code
    more = _MORE if options.prove else ""
    return DoctorReport(
        "machine", rows, _sentence(verdict), code or _unproven(rows), verdict, more
    )


def _evaluated(place: str, rows: tuple[doctor.CheckResult, ...], well: str) -> DoctorReport:
    """Return the report on a place where every row is required."""
    missing = [row.check for row in rows if row.state is doctor.CheckState.MISSING]
    if not missing:
        return DoctorReport(place, rows, f"{well}.", 0)
    proofs = {inside.MEMORY, inside.TIME}
    code = _unproven(rows) if proofs.issuperset(missing) else errors.UnavailableError.exit_code
    return DoctorReport(place, rows, f"problems: {', '.join(missing)}; see below.", code)


def _unproven(rows: Sequence[doctor.CheckResult]) -> int:
    """Return the exit code for a quota that is not enforced, 0 if *rows* have no failed proof."""
    proofs = [row for row in rows if row.check in (inside.MEMORY, inside.TIME)]
    failed = any(row.state is doctor.CheckState.MISSING for row in proofs)
    return errors.PyVgpuError.exit_code if failed else 0


def _document(report: DoctorReport) -> dict[str, object]:
    return {
        "pyvgpu": pyvgpu.__version__,
        "place": report.place,
        "run": None if report.run is None else dataclasses.asdict(report.run),
        "checks": [dataclasses.asdict(row) for row in report.rows],
    }


def _show(report: DoctorReport) -> None:
    """Print the verdict and the rows: a table in a terminal, else lines that are not wrapped."""
    from rich import console

    out = console.Console(highlight=False)
    if not out.is_terminal:
        _print_lines(report)
        return
    out.print(report.sentence)
    out.print(_table(report))
    if report.more:
        out.print(report.more)


def _print_lines(report: DoctorReport) -> None:
    print(report.sentence)
    print()
    checks = max(len(row.check) for row in report.rows)
    states = max(len(row.state) for row in report.rows)
    for row in report.rows:
        print(f"{row.check:{checks}}  {row.state:{states}}  {row.found}")
        if row.remedy:
            print(f"{'':{checks}}  {'':{states}}  -> {row.remedy}")
    if report.more:
        print(f"\n{report.more}")


def _table(report: DoctorReport) -> Any:
    from rich import box, table, text

    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("check", "state", "found, and what to do"):
        shown.add_column(heading, no_wrap=heading != "found, and what to do", overflow="fold")
    for row in report.rows:
        said = text.Text(row.found)
        if row.remedy:
            said.append(f"\n→ {row.remedy}", style="bold")
        shown.add_row(row.check, text.Text(row.state, style=_COLOURS[row.state]), said)
    return shown


def _sentence(verdict: doctor.PossibleRuns) -> str:
    held = "this program itself has no quota: it is in no grant and no run. "
    if _IN_POD in os.environ:
        held = (
            "this container has no share of a device: its limits must request one, such as "
            f"{names.VCORE_RESOURCE}: 30 and {names.VMEMORY_RESOURCE}: 8. "
        )
    if verdict.real:
        return f"{held}`pyvgpu run` works on this machine's devices" + (
            ", and on simulated ones." if verdict.simulated else "; simulated ones are missing."
        )
    if verdict.simulated:
        return (
            f"{held}`pyvgpu run` works with --simulate h100 only, as does `pyvgpu doctor --prove`."
        )
    return f"{held}`pyvgpu run` does not work here: `pyvgpu doctor` lists what is missing."


def _try_run(options: argparse.Namespace) -> tuple[doctor.CheckResult, ...]:
    """Start a run, and return the proofs of the doctor in it."""
    words = ["--vcore", _TRIAL_VCORE, "--vmemory", _TRIAL_VMEMORY]
    if options.simulate is not None:
        words += ["--simulate", options.simulate]
    elif options.driver_libraries is not None:
        words += ["--driver-libraries", str(options.driver_libraries)]
    myself = [sys.executable, "-P", "-c", _TRIAL_MAIN]  # the folder may be a checkout of pyvgpu
    try:
        done = subprocess.run(
            [*myself, "run", *words, "--", *myself, "doctor", "--json"],
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _trial_failed(f"the trial run took more than {_TRIAL_SECONDS} s")
    return read_proofs(done.stdout, done.stderr)


def read_proofs(output: str, stderr: str) -> tuple[doctor.CheckResult, ...]:
    """Return the proofs in the *output* of a doctor in a run; missing ones count as failed."""
    try:
        rows = {check["check"]: check for check in json.loads(output)["checks"]}
        proofs = [rows[name] for name in (inside.MEMORY, inside.TIME)]
    except (ValueError, KeyError, TypeError):
        said = (stderr.strip().splitlines() or ["it gave no answer"])[-1]
        return _trial_failed(f"the trial run failed: {said.removeprefix('pyvgpu: ')}")
    return tuple(
        doctor.CheckResult(
            proof["check"], doctor.CheckState(proof["state"]), proof["found"], proof["remedy"]
        )
        for proof in proofs
    )


def _trial_failed(found: str) -> tuple[doctor.CheckResult, ...]:
    return tuple(
        doctor.CheckResult(
            name, doctor.CheckState.LIMITED, found, f"nothing was proven; {_TRIAL_REMEDY}"
        )
        for name in (inside.MEMORY, inside.TIME)
    )
