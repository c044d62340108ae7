"""Run stages one after the other, each in a separate process, and write a record.

  run --out DIR                       all stages, as long as they take
  run --minutes 9 --out DIR           stop before nine minutes are over
  run --minutes 9 --out DIR --resume  go on with what was not reached
  run --out DIR --only memory pools   these stages, again if they are there
  run --list                          name the stages

The device is the first that CUDA has; name another in CUDA_VISIBLE_DEVICES.

DIR gets record.json, log.txt and, while a stage runs, lines.jsonl. Exit codes: 0 all is done, 1 a
stage failed or a guarantee did not hold, 64 wrong usage, 65 DIR has a record that cannot be read,
69 no driver or no device, 73 DIR cannot be written, 75 some stages were not reached (use
--resume), 77 no permission on the device.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from kit import cuda, private, record, report, simulated, stages
from pyvgpu import errors
from pyvgpu.volumes import find

OK, FAILED, USAGE, DATA, NO_DRIVER, CANNOT_CREATE, NOT_REACHED, NO_PERMISSION = (
    0, 1, 64, 65, 69, 73, 75, 77,
)  # fmt: skip
FINE = ("done", record.IMPOSSIBLE, "not reached")  # states of stages in which nothing failed
MOST_WORDS = 400  # characters of a stage's last line
RESERVE_SECONDS = 3  # at the end of the minutes, for the record and for ending processes


class Stop(Exception):  # noqa: N818 - an end, not always an error
    """The run ends: one line for people, and the exit code."""

    def __init__(self, line, code):
        super().__init__(line)
        self.code = code


def choose(recorded, only, resume):
    """Return the stages to run, given the states that a record has by name."""
    if only:
        return [stage for stage in stages.STAGES if stage.name in only]
    if resume:
        return [s for s in stages.STAGES if recorded.get(s.name, "not reached") == "not reached"]
    return list(stages.STAGES)


def limit_of(stage, seconds_left):
    """Return how long *stage* may take; None if it is not to be begun."""
    if seconds_left is None:
        return stage.seconds
    usable = seconds_left - RESERVE_SECONDS
    return None if usable < stage.least else min(stage.seconds, usable)


class Parser(argparse.ArgumentParser):
    """Ends with the exit code of the documented list."""

    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"run: {message}\n")


def parse(arguments):
    names = [stage.name for stage in stages.STAGES]
    parser = Parser(
        prog="run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="stop before these are over")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder for the record")
    parser.add_argument("--only", nargs="+", choices=names, metavar="STAGE", default=[])
    parser.add_argument("--resume", action="store_true", help="go on with an earlier record")
    parser.add_argument("--list", action="store_true", help="name the stages and end")
    parser.add_argument("--simulate", metavar="MODEL", help="use a simulated device, such as h100")
    options = parser.parse_args(arguments)
    if options.minutes is not None and not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g}: must be above 0, for example 9")
    if not options.list and options.out is None:
        parser.error("--out is missing: name a folder for the record, for example --out results")
    return options


def show_list():
    for stage in stages.STAGES:
        print(f"{stage.name:10} {stage.seconds:4d} s  {stage.answers}")


def open_record(options):
    path = options.out / "record.json"
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise Stop(f"--out {options.out}: cannot be made: {exc.strerror}", CANNOT_CREATE) from exc
    if path.exists():
        try:
            found = record.read(path)
        except record.RecordError as exc:
            raise Stop(str(exc), DATA) from exc
        if options.resume or options.only:
            return found
        raise Stop(
            f"{path}: there is a record already; use --resume, --only or another --out", USAGE
        )
    begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return record.new(cuda.kit_version(), begun, options.simulate)


def survey():
    """Load the driver in a process of its own; return how that ended."""
    return subprocess.run(
        [sys.executable, "-c", "from kit import cuda; cuda.survey()"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def add_driver():
    """Let this process's children find a driver that the loader does not; False if none is found.

    Containers have it in folders such as /usr/local/nvidia/lib64.
    """
    try:
        folder = find.find_driver().place
    except errors.PyVgpuError:
        return False
    before = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = f"{before}:{folder}" if before else str(folder)
    return True


def look_for_device():
    """Return what cuda.survey prints; Stop without a device."""
    closed = closed_nodes(pathlib.Path("/dev"))
    asked = survey()
    if asked.returncode and "NoDriverError" in asked.stderr and add_driver():
        asked = survey()
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
        if closed:
            raise Stop(
                f"no permission on {', '.join(closed)}: run as a user that may read and write it",
                NO_PERMISSION,
            )
        if "CudaError" in reason:
            raise Stop(f"no device: {reason.partition(': ')[2]}; see nvidia-smi", NO_DRIVER)
        raise Stop(f"no driver: {reason}; name its folder in LD_LIBRARY_PATH", NO_DRIVER)
    found = json.loads(asked.stdout)
    version = found["version"]
    if version < cuda.OLDEST_CUDA:
        raise Stop(
            f"driver too old: it says CUDA {version // 1000}.{version % 1000 // 10}; must be "
            "11.0 (release 450) or later",
            NO_DRIVER,
        )
    return found


def obstacles(found):
    """Return, by what stages may need, why this device has it not."""
    known = {}
    if found["mig"]:
        known[stages.QUOTA] = (
            "the device is in MIG mode, and this stage measures whole devices; the stage mig has "
            "a quota on a MIG device. `nvidia-smi -mig 0` (root) ends the mode, or name another "
            "device in CUDA_VISIBLE_DEVICES"
        )
    if found["compute mode"] == "exclusive process":
        known[stages.SEVERAL] = (
            "the compute mode is exclusive process, which admits one process at a time; "
            "`nvidia-smi -c 0` (root) ends that"
        )
    return known


def closed_nodes(folder):
    """Return the nodes of devices in *folder* that this user may not read and write."""
    return [
        str(node)
        for node in sorted(folder.glob("nvidia[0-9]*"))
        if not os.access(node, os.R_OK | os.W_OK)
    ]


def end_group(process):
    """End whatever the stage has left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_stage(stage, limit, lines, log):
    """Run *stage* for *limit* seconds at most; return its state and the reason."""
    environment = {
        **os.environ,
        report.FILE_VARIABLE: str(lines),
        report.DEADLINE_VARIABLE: str(time.monotonic() + limit - 1),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "kit.onestage", stage.name],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return "timeout", f"killed after {limit:.0f} s"
    finally:
        end_group(process)
    if code < 0:
        return "crashed", f"ended by {signal.Signals(-code).name}"
    return ("done", "") if code == 0 else ("failed", f"exit code {code}")


def last_words(log, begin):
    """Return the last line in *log* from byte *begin* on; most errors are there in a line."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:MOST_WORDS] if said else "it said nothing"


def save(kept, out):
    try:
        record.write(kept, out / "record.json")
    except OSError as exc:
        raise Stop(
            f"{out}/record.json: cannot be written: {exc.strerror}; the record of the stage "
            "before is kept",
            CANNOT_CREATE,
        ) from exc


def run_all(options, kept, chosen, missing):
    """Run the *chosen* stages; *missing*: by what a stage may need, why it is not here."""
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    lines = options.out / "lines.jsonl"
    for number, stage in enumerate(chosen, 1):
        reasons = [missing[need] for need in stage.needs if need in missing]
        if reasons:
            kept["stages"][stage.name] = record.stage(record.IMPOSSIBLE, reasons[0], 0, [])
            print(
                f"[{number}/{len(chosen)}] {stage.name}: {record.IMPOSSIBLE}: {reasons[0]}",
                flush=True,
            )
            continue
        limit = limit_of(stage, None if deadline is None else deadline - time.monotonic())
        if limit is None:
            kept["stages"].setdefault(
                stage.name, record.stage("not reached", "the minutes were over", 0, [])
            )
            continue
        print(f"[{number}/{len(chosen)}] {stage.name}: {stage.answers}", flush=True)
        try:
            lines.unlink(missing_ok=True)
            with open(options.out / "log.txt", "ab") as log:
                log.write(f"--- {stage.name}\n".encode())
                log.flush()
                begun, said = time.monotonic(), log.tell()
                state, reason = run_stage(stage, limit, lines, log)
        except OSError as exc:
            raise Stop(f"{options.out}: cannot be written: {exc}", CANNOT_CREATE) from exc
        seconds = time.monotonic() - begun
        if state in ("failed", "crashed"):
            reason = private.clean(f"{reason}; {last_words(options.out / 'log.txt', said)}")
        kept["stages"][stage.name] = record.stage(state, reason, seconds, report.read_lines(lines))
        save(kept, options.out)
        lines.unlink(missing_ok=True)
        print(f"    {state} after {seconds:.1f} s{': ' + reason if reason else ''}", flush=True)
    save(kept, options.out)


def judge(kept, chosen):
    """Print what did not hold; return the exit code."""
    states = {stage.name: kept["stages"][stage.name]["state"] for stage in chosen}
    bad = [name for name, state in states.items() if state not in FINE]
    broken = [
        f"{name}: {guarantee['name']}: {guarantee['detail']}"
        for name in states
        for guarantee in kept["stages"][name]["guarantees"]
        if not guarantee["held"]
    ]
    for line in broken:
        print(f"did not hold: {line}")
    left = [name for name, state in states.items() if state == "not reached"]
    if left:
        print(f"not reached: {' '.join(left)}; go on with --resume")
    if bad or broken:
        return FAILED
    return NOT_REACHED if left else OK


def main(arguments=None):
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.list:
        show_list()
        return OK
    try:
        kept = open_record(options)
        if options.simulate:
            os.environ.update(simulated.environment(options.simulate))
        found = look_for_device()
        os.environ[cuda.DEVICE_VARIABLE] = os.environ["CUDA_VISIBLE_DEVICES"] = found["uuid"]
        missing = obstacles(found)
        recorded = {name: entry["state"] for name, entry in kept["stages"].items()}
        chosen = choose(recorded, options.only, options.resume)
        run_all(options, kept, chosen, missing)
        return judge(kept, chosen)
    except Stop as exc:
        print(f"run: {exc}", file=sys.stderr)
        return exc.code


if __name__ == "__main__":
    sys.exit(main())
