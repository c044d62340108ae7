"""Run stages one after the other, each in a separate process, and write a record.

  run --out DIR                       all stages, as long as they take
  run --minutes 9 --out DIR           stop before nine minutes are over
  run --minutes 9 --out DIR --resume  go on with what was not reached
  run --out DIR --only memory pools   these stages, again if they are there
  run --list                          name the stages

The device is the first that CUDA has; name another in CUDA_VISIBLE_DEVICES.

DIR gets record.json, log.txt and, while a stage runs, lines.jsonl. Exit codes: 0 all is done, 1 a
stage failed or a guarantee did not hold, 64 wrong usage, 65 DIR has a record that cannot be read,
or one of another device, 69 no driver or no device, 73 DIR cannot be written, 75 some stages were
not reached (use --resume), 77 no permission on the device, 129, 130 or 143 ended by SIGHUP, SIGINT
or SIGTERM (use --resume).
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

from kit import cuda, logs, private, record, report, simulated, stages
from pyvgpu import errors
from pyvgpu.volumes import find

OK, FAILED, USAGE, DATA, NO_DRIVER, CANNOT_CREATE, NOT_REACHED, NO_PERMISSION = (
    0, 1, 64, 65, 69, 73, 75, 77,
)  # fmt: skip
FINE = ("done", record.IMPOSSIBLE, "not reached")  # states of stages in which nothing failed
MOST_WORDS = 400  # characters of a stage's last line
RESERVE_SECONDS = 3  # at the end of the minutes, for the record and for ending processes
SURVEY_SECONDS = 60  # for the driver to answer
SPENT_VARIABLE = "PYVGPU_KIT_SPENT"  # seconds that ./run took before this program
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # that end a run
POLL_SECONDS = 0.5  # between two reads of the length of the log
ENDED = "the run ended while this stage ran"
NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm")  # that every process with a context opens


class Stop(Exception):  # noqa: N818 - an end, not always an error
    """The run ends: one line for people, and the exit code."""

    def __init__(self, line, code):
        super().__init__(line)
        self.code = code


class Signalled(BaseException):
    """A signal ends the run."""

    def __init__(self, number):
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.code = 128 + number


def raise_signal(number, _frame):
    """End the run by an exception, so that its stage is ended and recorded."""
    for other in SIGNALS:  # a second one must not interrupt that
        signal.signal(other, signal.SIG_IGN)
    raise Signalled(number)


def take_signals():
    """Let signals raise Signalled, but for those that are ignored, as by nohup."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, raise_signal)


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
    parser.add_argument("--minutes", metavar="NUMBER", help="stop before these are over")
    parser.add_argument("--out", metavar="DIR", help="folder for the record")
    parser.add_argument(
        "--only", nargs="+", metavar="STAGE", default=[], help="run these stages (see --list)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with an earlier record")
    parser.add_argument("--list", action="store_true", help="name the stages and end")
    parser.add_argument("--simulate", metavar="MODEL", help="use a simulated device, such as h100")
    options = parser.parse_args(arguments)
    if options.minutes is not None:
        options.minutes = minutes_of(options.minutes, parser)
    for name in options.only:
        if name not in names:
            parser.error(f"--only {name}: must be one of {', '.join(names)} (see --list)")
    if not options.list and not options.out:
        parser.error("--out is missing: name a folder for the record, for example --out results")
    options.out = pathlib.Path(options.out or ".")
    return options


def minutes_of(text, parser):
    """Return the minutes of the option; an error of *parser* if *text* is not a number above 0."""
    with contextlib.suppress(ValueError):
        if float(text) > 0:
            return float(text)
    parser.error(f"--minutes {text}: must be a number above 0, for example 9")


def simulate(model):
    """Let this process's children use a simulated *model*; nothing if it is None."""
    if model is None:
        return
    try:
        os.environ.update(simulated.environment(model))
    except errors.PyVgpuError as exc:
        raise Stop(f"--simulate: {exc}", exc.exit_code) from exc
    except OSError as exc:
        raise Stop(f"--simulate {model}: {exc}", CANNOT_CREATE) from exc


def say(line):
    """Print a line; a reader of it that is gone ends no run."""
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end


def show_list():
    for stage in stages.STAGES:
        say(f"{stage.name:10} {stage.seconds:4d} s  {stage.answers}")


def open_record(options):
    path = options.out / "record.json"
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except FileExistsError as exc:
        raise Stop(
            f"--out {options.out}: is a file: name a folder, for example --out results",
            CANNOT_CREATE,
        ) from exc
    except OSError as exc:
        raise Stop(
            f"--out {options.out}: cannot be made: {exc.strerror}; name a folder that you can "
            "write, for example --out results",
            CANNOT_CREATE,
        ) from exc
    lock(options.out)
    if has(path):
        try:
            found = record.read(path)
            record.load(path)  # as `pyvgpu calibrate` will
        except errors.DataError as exc:
            raise Stop(f"{exc}; or use another --out", DATA) from exc
        if options.resume or options.only:
            return found
        raise Stop(
            f"{path}: there is a record already; use --resume, --only or another --out", USAGE
        )
    begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return record.new(cuda.kit_version(), begun, options.simulate)


def lock(out):
    """Keep other runs from *out* until this process ends, where its file system has locks."""
    try:
        fcntl.flock(os.open(out, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise Stop(
            f"--out {out}: another run writes there; wait for its end, or use another --out", USAGE
        ) from exc
    except OSError:
        return


def has(path):
    try:
        return path.exists()
    except OSError as exc:
        raise Stop(f"{path}: cannot be read: {exc.strerror}; use another --out", DATA) from exc


def admit(kept, options, device):
    """Refuse to add to the record *kept* of another device; note a kit of another version."""
    here = pathlib.PurePath(options.simulate).name if options.simulate else None
    facts = kept["stages"].get("facts", {}).get("facts", ())
    was = kept.get("device") or next((f["value"] for f in facts if f["name"] == "device"), device)
    if (kept.get("simulated"), was) != (here, device):
        raise Stop(
            f"{options.out}/{record.FILE}: a record of {was}, and this is {device}; use another "
            "--out",
            DATA,
        )
    kept["device"] = device
    if kept.get("kit") != cuda.kit_version():
        note(kept, f"some stages are of kit {cuda.kit_version()}")


def note(kept, condition):
    """Record, and print, a *condition* of the machine that its figures depend on."""
    conditions = kept.setdefault("conditions", [])
    if condition not in conditions:
        conditions.append(condition)
    say(f"note: {condition}")


def survey():
    """Load the driver in a process of its own; return how that ended."""
    try:
        return subprocess.run(
            [sys.executable, "-c", "from kit import cuda; cuda.survey()"],
            capture_output=True, text=True, timeout=SURVEY_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        raise Stop(
            f"no driver: it does not answer within {SURVEY_SECONDS} s; see nvidia-smi", NO_DRIVER
        ) from exc


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


def find_device():
    """Return what cuda.survey prints; Stop without a device."""
    asked = survey()
    if asked.returncode and "NoDriverError" in asked.stderr and add_driver():
        asked = survey()
    if asked.returncode:
        ended = f"exit code {asked.returncode}"
        if asked.returncode < 0:
            ended = f"a process that loads it is ended by {name_of(-asked.returncode)}"
        reason = (asked.stderr.strip().splitlines() or [ended])[-1]
        closed = closed_nodes(pathlib.Path("/dev"))
        if closed:
            raise Stop(
                f"no permission on {', '.join(closed)}: run as a user that may read and write it",
                NO_PERMISSION,
            )
        if "CudaError" in reason:
            raise Stop(f"no device: {reason.partition(': ')[2]}; see nvidia-smi", NO_DRIVER)
        if "NoDriverError" in reason:
            reason = reason.partition(": ")[2]
        raise Stop(f"no driver: {reason}; name its folder in LD_LIBRARY_PATH", NO_DRIVER)
    found = json.loads(asked.stdout)
    version = found["version"]
    if version < cuda.OLDEST_CUDA:
        raise Stop(
            f"driver too old: it says CUDA {version // 1000}.{version % 1000 // 10}; must be "
            "11.0 (release 450) or later",
            NO_DRIVER,
        )
    if found["compute mode"] == "prohibited":
        raise Stop(
            "no device: its compute mode is prohibited, which admits no process; "
            "`nvidia-smi -c 0` (root) ends that, or name another in CUDA_VISIBLE_DEVICES",
            NO_DRIVER,
        )
    return found


def name_of(number):
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def conditions(found):
    """Return what makes figures differ from those of an idle device, as texts."""
    known, others = [], dict(found["others"])
    if found["mps"] and others["processes"]:
        others["processes"] -= 1  # the server
    if any(others.values()):
        known.append(
            f"others use the device (processes: {others['processes']}, memory: "
            f"{others['bytes'] >> 20} MiB, busy: {others['load']} percent of the time): figures "
            "of an idle device differ"
        )
    if found["mps"]:
        known.append("programs are clients of an MPS daemon that runs: they have no turns")
    return known


def obstacles(found):
    """Return, by what stages may need, why this device has it not."""
    known = {}
    if found["mig"]:
        known[stages.QUOTA] = (
            "the device is in MIG mode, and this stage measures whole devices; the stage mig has "
            "a quota on a MIG device. `nvidia-smi -mig 0` (root) ends the mode, or name another "
            "device in CUDA_VISIBLE_DEVICES"
        )
    elif found["free"] is not None and found["free"] < stages.ROOM:
        known[stages.QUOTA] = (
            f"{found['free'] >> 20} MiB of the device are free, and this stage needs "
            f"{stages.ROOM >> 20} MiB; end what else uses it, or name another device in "
            "CUDA_VISIBLE_DEVICES"
        )
    if found["compute mode"] == "exclusive process":
        known[stages.SEVERAL] = (
            "the compute mode is exclusive process, which admits one process at a time; "
            "`nvidia-smi -c 0` (root) ends that"
        )
    return known


def closed_nodes(folder):
    """Return the nodes of devices in *folder* that this process may not open.

    Modes alone do not tell: a container's cgroup denies devices, too.
    """
    closed = []
    for node in sorted(node for pattern in NODES for node in folder.glob(pattern)):
        try:
            os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
        except PermissionError:
            closed.append(str(node))
        except OSError:  # it has another fault, which the driver tells
            continue
    return closed


def end_group(process):
    """End whatever the stage has left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_stage(stage, limit, lines, log):
    """Run *stage* for *limit* seconds at most; return its state and the reason.

    Its processes end with this one, too: see onestage.py.
    """
    environment = {
        **os.environ,
        report.FILE_VARIABLE: str(lines),
        report.DEADLINE_VARIABLE: str(time.monotonic() + limit - 1),
    }
    lived, living = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "kit.onestage", stage.name, str(lived)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=(lived,),
    )
    try:
        code = wait_for(process, limit, log)
    except subprocess.TimeoutExpired:
        return "timeout", f"killed after {limit:.0f} s"
    finally:
        end_group(process)
        os.close(lived)
        os.close(living)
    if code is None:
        return "failed", f"killed: it printed more than {logs.MOST_WHILE_RUNNING >> 20} MiB"
    if code < 0:
        return "crashed", f"ended by {name_of(-code)}"
    return ("done", "") if code == 0 else ("failed", f"exit code {code}")


def wait_for(process, limit, log):
    """Return the exit code of *process*; None if it prints too much into *log*, at its end now.

    subprocess.TimeoutExpired after *limit* seconds.
    """
    begun, most = time.monotonic(), log.tell() + logs.MOST_WHILE_RUNNING
    while True:
        left = limit - (time.monotonic() - begun)
        try:
            return process.wait(max(0, min(POLL_SECONDS, left)))
        except subprocess.TimeoutExpired:
            if left <= POLL_SECONDS:
                raise
        if os.fstat(log.fileno()).st_size > most:
            return None


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


def run_all(options, kept, chosen, missing, deadline):
    """Run the *chosen* stages until *deadline*, a time.monotonic() or None.

    *missing*: by what a stage may need, why it is not here.
    """
    lines = options.out / "lines.jsonl"
    for number, stage in enumerate(chosen, 1):
        place = f"[{number}/{len(chosen)}] {stage.name}"
        reasons = [missing[need] for need in stage.needs if need in missing]
        if reasons:
            kept["stages"][stage.name] = record.stage(record.IMPOSSIBLE, reasons[0], 0, [])
            say(f"{place}: {record.IMPOSSIBLE}: {reasons[0]}")
            continue
        limit = limit_of(stage, None if deadline is None else deadline - time.monotonic())
        if limit is None:
            kept["stages"].setdefault(
                stage.name, record.stage("not reached", "the minutes were over", 0, [])
            )
            continue
        say(f"{place}: {stage.answers}")
        try:
            kept["stages"][stage.name] = entry = run_one(options, kept, stage, limit, lines)
        except OSError as exc:
            raise Stop(
                f"{exc.filename or options.out}: cannot be written: {exc.strerror}; use "
                "another --out",
                CANNOT_CREATE,
            ) from exc
        save(kept, options.out)
        lines.unlink(missing_ok=True)
        reason = f": {entry['reason']}" if entry["reason"] else ""
        say(f"    {entry['state']} after {entry['seconds']:.1f} s{reason}")
    save(kept, options.out)


def run_one(options, kept, stage, limit, lines):
    """Run *stage*; return what the record has of it. OSError if nothing can be written.

    A stage without a result is recorded as not reached while it runs, for a run that is killed.
    """
    path = options.out / "log.txt"
    unknown = kept["stages"].get(stage.name, {}).get("state", "not reached") == "not reached"
    lines.unlink(missing_ok=True)
    with path.open("ab") as log:
        log.write(f"--- {stage.name}\n".encode())
        log.flush()
        begun, said = time.monotonic(), log.tell()
        if unknown:
            kept["stages"][stage.name] = record.stage("not reached", ENDED, 0, [])
            save(kept, options.out)
        try:
            state, reason = run_stage(stage, limit, lines, log)
        except Signalled as exc:
            if unknown:
                kept["stages"][stage.name] = record.stage(
                    "not reached", f"{ENDED}, {exc}", time.monotonic() - begun,
                    report.read_lines(lines),
                )  # fmt: skip
                save(kept, options.out)
            lines.unlink(missing_ok=True)
            raise
    seconds = time.monotonic() - begun
    if state in ("failed", "crashed"):
        reason = private.clean(f"{reason}; {last_words(path, said)}")
    logs.shorten(path, said)
    return record.stage(state, reason, seconds, report.read_lines(lines))


def summarize(kept, out):
    """Print the numbers of the record *kept*, its place in *out*, and what to do with it."""
    entries = kept["stages"].values()
    done = sum(entry["state"] == "done" for entry in entries)
    verdicts = [guarantee["held"] for entry in entries for guarantee in entry["guarantees"]]
    say(
        f"{done} of {len(entries)} stages done; guarantees: {verdicts.count(True)} held, "
        f"{verdicts.count(False)} did not hold, {verdicts.count(None)} inconclusive"
    )
    log = f"; output of the stages: {out}/log.txt" if (out / "log.txt").exists() else ""
    say(f"record: {out}/{record.FILE}{log}")
    options = ["--simulated"] if kept.get("simulated") else []
    command = shlex.join(["pyvgpu", "calibrate", str(out), *options])
    say(f"next: where pyvgpu is installed, `{command}` says what the record shows")


def evaluate(kept, chosen, out):
    """Print what did not hold or is inconclusive; return the exit code."""
    states = {stage.name: kept["stages"][stage.name]["state"] for stage in chosen}
    bad = [name for name, state in states.items() if state not in FINE]
    broken = False
    for name in states:
        for guarantee in kept["stages"][name]["guarantees"]:
            if guarantee["held"]:
                continue
            verdict = "inconclusive" if guarantee["held"] is None else "did not hold"
            broken = broken or guarantee["held"] is not None
            say(f"{verdict}: {name}: {guarantee['name']}: {guarantee['detail']}")
    left = [name for name, state in states.items() if state == "not reached"]
    if left:
        say(f"not reached: {' '.join(left)}; go on with --resume")
    summarize(kept, out)
    if bad or broken:
        return FAILED
    return NOT_REACHED if left else OK


def main(arguments=None):
    begun = time.monotonic() - float(os.environ.get(SPENT_VARIABLE) or 0)
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.list:
        show_list()
        return OK
    take_signals()
    try:
        kept = open_record(options)
        simulate(options.simulate)
        found = find_device()
        admit(kept, options, found["device"])
        for condition in conditions(found):
            note(kept, condition)
        os.environ[cuda.DEVICE_VARIABLE] = os.environ["CUDA_VISIBLE_DEVICES"] = found["uuid"]
        missing = obstacles(found)
        recorded = {name: entry["state"] for name, entry in kept["stages"].items()}
        chosen = choose(recorded, options.only, options.resume)
        logs.make_room(options.out / "log.txt")
        deadline = None if options.minutes is None else begun + 60 * options.minutes
        run_all(options, kept, chosen, missing, deadline)
        return evaluate(kept, chosen, options.out)
    except Stop as exc:
        print(f"run: {exc}", file=sys.stderr)
        return exc.code
    except Signalled as exc:
        print(f"run: {exc}; go on with --resume", file=sys.stderr)
        return exc.code


if __name__ == "__main__":
    sys.exit(main())
