"""Calls every hook with invalid arguments, generated from the prototypes in the hook tables.

Every hook is called with each argument invalid by itself, the others being plausible, and with
all of them invalid at once; a new hook needs no line here. A case is
(symbol, [(type, token)...]); the calling process interprets the tokens, and is restarted after a
call that kills it.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING

from waiting import WHOLE

from pyvgpu import region
from pyvgpu._region import ffi

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import hook_table

PLAUSIBLE = "plausible"
PLAUSIBLE_NUMBERS = {  # where neither 0 nor 4096 is plausible
    ("cuMemAllocManaged", 2): 1,
    ("cuMemAllocPitch_v2", 4): 4,
    ("cuMemCreate", 1): 2 << 20,
}
# A copy dereferences any address, which kills the process, and takes as long as its size demands.
TRANSFERS = {"copy", "fill", "managed"}
TRANSFER_NUMBERS = (0, 1, 77)
TRANSFER_ADDRESSES = (0,)
POINTERS = ("NULL", "ones")
NUMBERS = (0, 1, 2, 77, 0x1234, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, 1 << 63, (1 << 64) - 1)
STRUCTURES = ("CUipcMemHandle", "CUipcEventHandle")  # by value, 64 bytes each

Case = tuple[str, tuple[tuple[str, str | int], ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a call."""

    result: int  # -1 if it killed the process
    wrote: list[int]  # the arguments whose buffers it changed
    charged: int  # change of the ledger, in bytes


def _wrong(type_: str, area: str) -> tuple[str | int, ...]:
    if type_.endswith("*"):
        return POINTERS
    if type_ in STRUCTURES:
        return ("zeros", "ones")
    if area in TRANSFERS:
        return TRANSFER_ADDRESSES if type_.startswith("CUdeviceptr") else TRANSFER_NUMBERS
    return NUMBERS


def _plausible(symbol: str, place: int) -> str:
    return f"{PLAUSIBLE} {PLAUSIBLE_NUMBERS.get((symbol, place), '')}".strip()


def _row(types: tuple[str, ...], tokens: Iterable[str | int]) -> tuple[tuple[str, str | int], ...]:
    return tuple(zip(types, tokens, strict=True))


def cases(hooks: Iterable[hook_table.Hook]) -> list[Case]:
    """Return every call to make, in order; initialisation comes last."""
    found: dict[Case, None] = {}
    for hook in sorted(hooks, key=lambda each: "Init" in each.symbol):
        types = hook.parameters
        wrong = [_wrong(each, hook.area) for each in types]
        right = [_plausible(hook.symbol, place) for place in range(len(types))]
        for place, values in enumerate(wrong):
            for value in values:
                row = [*right[:place], value, *right[place + 1 :]]
                found[hook.symbol, _row(types, row)] = None
        for end in (0, -1):
            found[hook.symbol, _row(types, [values[end] for values in wrong])] = None
    return list(found)


def words(case: Case) -> str:
    """Return a case as an approximate C call."""
    symbol, row = case
    return f"{symbol}({', '.join(str(token) for _, token in row)})"


def is_wrong_more_than_once(case: Case) -> bool:
    """Return whether several arguments are invalid, or a structure is in every field."""
    wrong = [token for _, token in case[1] if not str(token).startswith(PLAUSIBLE)]
    return len(wrong) > 1 or "ones" in wrong


# The calling process. Arguments: how far the API is initialised, and the place of the ledger. It
# reads cases from standard input and prints one answer per line.
CALLER = """
import ctypes, json, os, struct, sys
state, usage, offset, slots = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
U64, ROOM = ctypes.c_uint64, 1 << 16
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
ledger = os.open(usage, os.O_RDONLY) if usage else -1

def check(result):
    if result:
        sys.exit(f"error {result} while preparing")

def made(function, *rest):
    value = U64()
    check(function(ctypes.byref(value), *rest))
    return value.value

def charged():
    return sum(memoryview(os.pread(ledger, 8 * slots, offset)).cast("Q")) if usage else 0

def start():
    if state != "never":
        check(cuda.cuInit(0))
        check(nvml.nvmlInit_v2())

def leave_contexts():
    current = U64()
    while cuda.cuCtxGetCurrent(ctypes.byref(current)) == 0 and current.value:
        if cuda.cuCtxDestroy_v2(current):
            check(cuda.cuCtxPopCurrent_v2(ctypes.byref(current)))

def prepare():
    '''Reset the state; return a valid value for each type that has one.'''
    if state == "never":
        return {}
    leave_contexts()
    check(nvml.nvmlInit_v2())
    device = U64()
    check(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
    good = {"nvmlDevice_t": device.value}
    check(cuda.cuDevicePrimaryCtxReset_v2(0))
    if state == "current":
        context = made(cuda.cuDevicePrimaryCtxRetain, 0)
        check(cuda.cuCtxSetCurrent(U64(context)))
        good |= {
            "const CUDA_ARRAY_DESCRIPTOR *": struct.pack("QQII", 64, 64, 0x20, 4),
            "const CUDA_ARRAY3D_DESCRIPTOR *": struct.pack("QQQIII", 64, 64, 8, 0x20, 4, 0),
            "const CUmemAllocationProp *": struct.pack("IIIi", 1, 0, 1, 0),
            "const CUmemPoolProps *": struct.pack("IIIi", 1, 0, 1, 0),
            "CUcontext": context,
            "CUstream": made(cuda.cuStreamCreate, 0),
            "CUdeviceptr": made(cuda.cuMemAlloc_v2, U64(4096)),
            "CUmemoryPool": made(cuda.cuDeviceGetDefaultMemPool, 0),
            "CUgraph": made(cuda.cuGraphCreate, 0),
        }
    return good

def argument(kind, token, good):
    '''Return the value, and its buffer with the original content.'''
    if kind in ("CUipcMemHandle", "CUipcEventHandle"):
        return Handle((b"\\xff" if token == "ones" else b"\\0") * 64), None
    if token == "NULL":
        return None, None
    if kind.endswith("*"):
        fill = b"\\xff" * (ROOM - 1) if token == "ones" else good.get(kind, b"")
        buffer = ctypes.create_string_buffer(fill, ROOM)
        return buffer, (buffer, buffer.raw)
    if isinstance(token, str):
        token = token.removeprefix("plausible") or good.get(kind, 4096 if kind == "size_t" else 0)
    return U64(int(token)), None

start()
last = None
for line in sys.stdin:
    symbol, row = json.loads(line)
    if symbol != last:
        last, good = symbol, prepare()
    values = [argument(kind, token, good) for kind, token in row]
    function = getattr(nvml if symbol.startswith("nvml") else cuda, symbol)
    before = charged()
    result = function(*(value for value, _ in values))
    wrote = [i for i, (_, was) in enumerate(values) if was and was[0].raw != was[1]]
    print(json.dumps([result, wrote, charged() - before]), flush=True)
"""


def ask(
    environment: Mapping[str, str], state: str, all_cases: list[Case], usage: str = ""
) -> dict[Case, Answer]:
    """Make every call; *usage* is the file with the ledger, if any.

    *state* is "never" initialised, "initialised", or with a "current" context.
    """
    ledger = (ffi.offsetof("struct usage_file", "charged"), region.SLOTS)  # of the first device
    command = [sys.executable, "-c", CALLER, state, usage, *map(str, ledger)]
    lines = [f"{json.dumps(case)}\n" for case in all_cases]
    answers: dict[Case, Answer] = {}
    while len(answers) < len(all_cases):
        left = all_cases[len(answers) :]
        done = subprocess.run(
            command,
            env=dict(environment),
            input="".join(lines[len(answers) :]),
            capture_output=True,
            text=True,
            timeout=WHOLE,
        )
        rows = [Answer(*json.loads(line)) for line in done.stdout.splitlines()]
        assert done.returncode <= 0, f"{left[len(rows)]}: {done.stderr}"
        if done.returncode < 0:
            rows.append(Answer(-1, [], 0))
        answers |= zip(left, rows, strict=False)
    return answers
