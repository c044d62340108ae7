"""Suspension of runs by the driver's checkpoint interface: bytes, times, NVML, what is refused.

All runs are children of this stage and in its process group: what ends the stage ends them, so no
process stays locked.
"""

import collections
import contextlib
import ctypes
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import time

from kit import cuda, shimmed, watch
from kit.stages import descriptors, offers
from pyvgpu.run import checkpoint_calls

MIB = 1 << 20
SIZES = (256 * MIB, 1024 * MIB)
SMALL = 64 * MIB  # for what is not about the time
PIECE = 16 * MIB
QUOTA = ("--vmemory", "4GiB")
ROUNDS = 3
COMMAND_SECONDS, END_SECONDS, SETTLE_SECONDS = 30, 10, 3
REFUSED = {"managed": "managed memory", "shared": "memory of cuIpcGetMemHandle"}
FUNCTIONS = [
    f"cuCheckpointProcess{name}"
    for name in ("Lock", "Checkpoint", "Restore", "Unlock", "GetState")
]

Held = collections.namedtuple("Held", "name pid process")


def hold(kind, size):
    """Be the program of a run: fill memory, say ready, compare the bytes when a line comes."""
    device, other = cuda.Device(), None
    if kind == "managed":
        pointer = cuda.U64()
        device.cuda.cuMemAllocManaged(ctypes.byref(pointer), cuda.SIZE(size), 1)
    elif kind == "shared":
        memory = descriptors.Linear(device)
        pointer, other = memory.pointer, share(memory)
    else:
        pointer = device.allocate(size)
    block = random.Random(1).randbytes(PIECE)
    pieces = [
        (cuda.U64(pointer.value + at), struct.pack("<Q", at) + block[8:])
        for at in range(0, size, PIECE)
    ]
    for address, piece in pieces:
        device.cuda.cuMemcpyHtoD_v2(address, piece, cuda.SIZE(PIECE))
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    back, same = ctypes.create_string_buffer(PIECE), True
    for address, piece in pieces:
        device.cuda.cuMemcpyDtoH_v2(back, address, cuda.SIZE(PIECE))
        same = same and back.raw == piece
    device.work(1000)
    device.wait()
    if other is not None:
        other.communicate("\n")
    print(json.dumps(same))


def share(memory):
    """Return a process that has opened *memory*."""
    key, _ = memory.pass_on()
    other = subprocess.Popen(
        [sys.executable, "-c", descriptors.IMPORTER, key],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    other.stdout.readline()
    other.stdin.write("import\n")
    other.stdin.flush()
    if other.stdout.readline() != "has it\n":
        sys.exit("the other process could not open the memory")
    return other


def run(report):
    driver, version = cuda.driver(), cuda.driver_version()
    absent = [name for name in FUNCTIONS if not hasattr(driver.raw, name)]
    if absent or version < checkpoint_calls.CUDA_VERSION:
        report.missing(
            "checkpoint interface",
            f"the driver, of CUDA {version // 1000}.{version % 1000 // 10}, does not offer "
            f"{', '.join(absent or FUNCTIONS)}: release {checkpoint_calls.DRIVER_RELEASE} does",
        )
        return
    report.fact("functions of the checkpoint interface", FUNCTIONS)
    seen = watch.Watch()
    least = [moved(report, driver, seen, size) for size in SIZES]
    if all(least):
        for command in ("suspend", "resume"):
            more = least[1][command] - least[0][command]
            report.figure(f"{command}: each GiB", more * 1024 * MIB / (SIZES[1] - SIZES[0]), "s")
    killed(report)
    for kind, title in REFUSED.items():
        refused(report, kind, title)


@contextlib.contextmanager
def held(kind, size):
    """Have a run that holds memory; kill it at the end, in whatever state it is."""
    name = f"kit-suspend-{os.getpid()}"
    program = shimmed.python(f"from kit.stages import suspend; suspend.hold({kind!r}, {size})")
    process = shimmed.start(("--name", name, *QUOTA), program)
    try:
        line = process.stdout.readline()
        if not line:
            raise shimmed.EndedError(f"its run ended with {process.wait()}; see log.txt")
        yield Held(name, int(line), process)
    finally:
        process.kill()
        process.communicate()


def ask(command, name):
    """Return the exit code of ``pyvgpu COMMAND NAME``, what it said, and the seconds it took."""
    begun = time.monotonic()
    try:
        done = shimmed.run(None, [*shimmed.PYVGPU, command, name], COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"{command} is not done after {COMMAND_SECONDS} s", COMMAND_SECONDS
    said = (done.stdout + done.stderr).strip()[-400:]
    return done.returncode, said, time.monotonic() - begun


def go_on(one):
    """Return whether the program of a run still has its bytes, or a text that says why not."""
    try:
        lines = one.process.communicate("go on\n", COMMAND_SECONDS)[0].splitlines()
    except subprocess.TimeoutExpired:
        return f"it does not go on within {COMMAND_SECONDS} s"
    return json.loads(lines[-1]) if lines else f"it ended with {one.process.returncode}"


def moved(report, driver, seen, size):
    """Suspend and resume a run some times; return the least seconds of each, None if refused."""
    title, others = f"{size // MIB} MiB", seen.processes().keys()
    times = {"suspend": [], "resume": []}
    with held("plain", size) as one:
        used, own = seen.used(), seen.processes().keys() - others
        for _ in range(ROUNDS):
            for command in times:
                code, said, seconds = ask(command, one.name)
                if code != 0:
                    report.guarantee(f"{title}: {command} works", False, said)
                    return None
                if command == "suspend" and not times[command]:
                    while_suspended(report, title, seen, used - size, own)
                    report.figure(f"{title}: comes free", used - seen.used(), "bytes")
                    name = f"{title}, while suspended: state of the process"
                    state = watch.attempt(report, name, offers.Checkpoint(driver, one.pid).state)
                    report.fact(name, state)
                times[command].append(seconds)
        same = go_on(one)
        report.guarantee(f"{title}: all bytes are the same after a resume", same is True, same)
    for command, seconds in times.items():
        report.median(f"{title}: {command}", seconds, "s")
    return {command: min(seconds) for command, seconds in times.items()}


def while_suspended(report, title, seen, most, own):
    """Report what NVML shows of a suspended run; *own* are its processes, as NVML listed them."""
    free = cuda.until(lambda: seen.used() <= most, SETTLE_SECONDS) is not None
    report.guarantee(f"{title}: memory of a suspended run is free", free, f"{seen.used()} in use")
    if own:
        listed = "listed" if own & seen.processes().keys() else "not listed"
        report.fact(f"{title}, while suspended: the process in NVML", listed)
    else:
        report.missing(f"{title}: the process in NVML", "NVML did not list it before either")


def killed(report):
    """Kill a suspended run: none of its processes may be left, locked."""
    with held("plain", SMALL) as one:
        code, said, _ = ask("suspend", one.name)
    begun = time.monotonic()  # its supervisor is dead now
    if code != 0:
        report.guarantee("a small run: suspend works", False, said)
        return
    gone = cuda.until(lambda: not is_alive(one.pid), END_SECONDS) is not None
    report.guarantee(
        "of a suspended run that is killed, no process is left", gone,
        f"pid {one.pid} after {time.monotonic() - begun:.1f} s",
    )  # fmt: skip


def is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def refused(report, kind, title):
    """Record whether memory that is said not to move is refused, and that its program goes on."""
    try:
        with held(kind, SMALL) as one:
            code, said, _ = ask("suspend", one.name)
            report.fact(f"{title}: suspend", {"exit code": code, "said": said})
            if code == 0:
                code, said, _ = ask("resume", one.name)
                report.fact(f"{title}: resume", {"exit code": code, "said": said})
            same = go_on(one)
            report.guarantee(
                f"{title}: its program goes on with the same bytes", same is True, same
            )
    except shimmed.EndedError as exc:
        report.missing(title, exc)
