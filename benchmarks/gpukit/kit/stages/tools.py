"""NVIDIA's tools and nvitop under the shim: they start, exit as without it, and show the quota.

Where a tool prints sizes of memory, the largest must be the quota.
"""

import contextlib
import dataclasses
import re
import subprocess
import tempfile

from kit import binaries, cuda, finding, shimmed
from kit import report as reports

QUOTA_MIB = 4096
QUOTA = ("--vmemory", f"{QUOTA_MIB}MiB")
SECONDS = 60
KEPT_CHARACTERS = 1500
UNITS = {"B": 1 / (1 << 20), "KiB": 1 / 1024, "MiB": 1, "GiB": 1024, "MB": 1, "GB": 1024}
PAIR = r"[\d.]+\s*[KMG]?i?B?\s*/\s*([\d.]+)\s*([KMG]i?B)"  # used / total


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """One way to use a tool; ``{client}`` stands for a client of the driver."""

    tool: str
    arguments: tuple[str, ...]
    shows: str | None = None  # finds sizes of memory, as (number, unit), in what it prints
    client: bool = False  # it runs our client, which prints the total itself

    @property
    def title(self):
        return " ".join((self.tool, *(word for word in self.arguments if word != "{client}")))


USES = (
    Use("nvidia-smi", (), PAIR),
    Use("nvidia-smi", ("-L",)),
    Use("nvidia-smi", ("-q", "-d", "MEMORY"), r"FB Memory Usage\s+Total\s*:\s*(\d+)\s*(MiB)"),
    Use("nvidia-smi", ("--query-gpu=memory.total", "--format=csv,noheader"), r"(\d+)\s*(MiB)"),
    Use("nvidia-smi", ("--query-compute-apps=pid,used_memory", "--format=csv")),
    Use("nvitop", ("--once", "--ascii"), PAIR),
    Use("ncu", ("--launch-count", "2", "{client}"), client=True),
    Use("compute-sanitizer", ("--tool", "memcheck", "{client}"), client=True),
    Use("cuda-gdb", ("-batch", "-ex", "run", "--args", "{client}"), client=True),
)


def run(report):
    client = client_command(report)
    for use in USES:
        path = finding.program(use.tool)
        if path is None:
            report.missing(use.title, f"no program {use.tool} in PATH or the usual folders")
        elif use.client and client is None:
            report.missing(use.title, "there is no client to run it on")
        elif reports.seconds_left() < SECONDS:
            report.missing(use.title, "no time was left")
        else:
            compare(report, use, command_of(use, path, client))


def client_command(report):
    try:
        program = binaries.path("launches")
    except binaries.NotHereError as exc:
        report.missing("launches", exc)
        return None
    return [program, "kernel", "linked", "1", "own", "5", str(cuda.HERE / "kernels.ptx")]


def command_of(use, path, client):
    words = [path]
    for word in use.arguments:
        words += client if word == "{client}" else [word]
    return words


def run_tool(quota, command):
    """Return (exit status, output) of *command*; the status is a text if it did not end."""
    # Tools leave reports where they are started.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            done = shimmed.run(quota, command, SECONDS)
        except subprocess.TimeoutExpired as exc:
            said = exc.stdout or b""
            return f"not done after {SECONDS} s", said.decode(errors="replace")
    return done.returncode, done.stdout + done.stderr


def compare(report, use, command):
    (bare_code, bare), (code, limited) = (run_tool(quota, command) for quota in (None, QUOTA))
    report.fact(f"{use.title}: exit status without a quota", bare_code)
    if bare_code != 0:
        report.fact(f"{use.title}: says without a quota", bare[-KEPT_CHARACTERS:])
    for guarantee, kept, detail in evaluate(use, (bare_code, bare), (code, limited)):
        report.guarantee(f"{use.title}: {guarantee}", kept, detail)


def evaluate(use, without, with_quota):
    """Return (title, held, detail) of a tool's two runs, each as (exit status, output)."""
    (bare_code, _), (code, said) = without, with_quota
    found = [
        ("ends as without a quota", code == bare_code,
         f"{code} with a quota, {bare_code} without; {said[-300:]}" if code != bare_code
         else f"{code}"),
    ]  # fmt: skip
    if bare_code != 0:
        return found
    sizes = sizes_of(use, said)
    if sizes is not None:
        shown = bool(sizes) and abs(max(sizes) - QUOTA_MIB) < 1
        found.append(("shows the quota", shown, f"{sizes or 'no size found'} MiB"))
    return found


def sizes_of(use, said):
    """Return the totals in MiB that a tool, or its client, shows; None if it shows none."""
    if use.client:
        return [int(total) / (1 << 20) for total in re.findall(r'"total": (\d+)', said)]
    if use.shows is None:
        return None
    return [float(number) * UNITS[unit] for number, unit in re.findall(use.shows, said)]
