"""Driver calls that tests make fail, and preludes of programs that survive such failures.

Such a program tries each allocation once, does without what it did not get, and retries each free.
It stops at stages, at which a test compares the ledger with the simulated machine.
"""

from __future__ import annotations

import collections
import re
import subprocess
from typing import TYPE_CHECKING

import driver_memory
import hook_table

from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shim_room import Room

FAILURE = 999
# Without an event the shim cannot know when a stream reaches a free.
UNTIL_THE_CONTEXT_ENDS = ("cuEventCreate", "cuEventRecord", "cuEventRecord_ptsz")
CALLS = sorted(
    {
        *re.findall(r"^CALL\(\w+, (\w+),", (hook_table.SHIM / "cuda/calls.def").read_text(), re.M),
        *(hook.symbol for hook in hook_table.cuda() if hook.area not in ("refused", "entry")),
    }
)

TRIES = """
def stop(stage):
    print(stage, flush=True)
    sys.stdin.readline()
def again(call, *arguments):
    '''Retry a call that frees something.'''
    for _ in range(4):
        result = call(*arguments)
        if result != 999:
            return result
def each(*arguments):
    '''Return what a call creates through its first argument, None if it fails.'''
    call, kind, *rest = arguments
    made = kind()
    return made if call(byref(made), *rest) == 0 else None

held, missed = [], []
def keep(thing, free):
    if thing is None:
        missed.append(str(free))
    else:
        held.append((free, thing))
    return thing
def begin():
    '''Make the primary context current.'''
    again(cuda.cuInit, 0)
    primary = None
    for _ in range(4):
        primary = primary or each(cuda.cuDevicePrimaryCtxRetain, P, 0)
    keep(primary, lambda _: again(cuda.cuDevicePrimaryCtxRelease_v2, 0))
    cuda.cuCtxSetCurrent(primary)
    return primary
context = begin
"""


PARTS = 8  # of the calls of a program, each a test
MOST = 3  # calls of one function, of which each fails in turn


def failures(
    machine: simulator.Machine, program: Callable[[], object], part: int
) -> Iterator[tuple[str, str]]:
    """Let each call that *program* makes fail once; yield the function, and words for messages.

    The first run of *program* records its calls. Of the functions in CALLS this is one part of
    PARTS. The faults are set when this yields.
    """
    simulator.set_faults(machine, "record")
    program()
    record = (machine.folder / "calls").read_text().split()
    made = collections.Counter(name for name in record if name in CALLS)
    for name in sorted(made)[part::PARTS]:
        for nth in range(1, min(MOST, made[name]) + 1):
            simulator.set_faults(machine, f"call {name} {nth} {FAILURE}")
            yield name, f"{name}, call {nth}"


def in_use(room: Room, others: int = 0) -> tuple[int, int]:
    """Return the bytes charged to the room, and those in use on the device less *others*."""
    return room.usage().charged[0], driver_memory.used_bytes(room.machine) - others


def stages(room: Room, source: str) -> dict[str, tuple[int, int]]:
    """Return the ledger's and the driver's bytes at each stop of the program."""
    found = {}
    with room.start(source, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        assert process.stderr
        for line in process.stdout:
            found[line.strip()] = in_use(room)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait() == 0, process.stderr.read()
    return found
