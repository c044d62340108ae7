"""One rank of NCCL, by ctypes: ``python -m kit.rank LIBRARY RANKS RANK``.

Rank 0 prints the id of the communicator, in hex; the others read it. Then every rank takes part in
one sum over all ranks. Prints ``{"version", "words", "sum"}``: what NCCL says about the first call
that failed, and the first and last of the sums.
"""

import ctypes
import json
import signal
import sys

from kit import cuda

COUNT = 1 << 20
FLOAT, SUM = 7, 0  # ncclFloat32, ncclSum
ID_BYTES = 128
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


class RefusedError(Exception):
    """A call of NCCL did not return 0."""


def call(nccl, name, *arguments):
    code = getattr(nccl, name)(*arguments)
    if code:
        nccl.ncclGetErrorString.restype = ctypes.c_char_p
        words = [nccl.ncclGetErrorString(code)]
        if hasattr(nccl, "ncclGetLastError"):
            nccl.ncclGetLastError.restype = ctypes.c_char_p
            words.append(nccl.ncclGetLastError(None))
        said = "; ".join(word.decode(errors="replace").strip() for word in words if word)
        raise RefusedError(f"{name} returned {code}: {said}")


def make_id(nccl, rank):
    made = Id()
    if rank == 0:
        call(nccl, "ncclGetUniqueId", ctypes.byref(made))
        print(bytes(made).hex(), flush=True)
    else:
        given = bytes.fromhex(sys.stdin.readline())
        if len(given) != ID_BYTES:
            raise RefusedError("rank 0 gave no id")
        ctypes.memmove(ctypes.byref(made), given, ID_BYTES)
    return made


def add(nccl, ranks, rank):
    """Take part in a sum of 1 over all ranks; return the first and the last of what came out."""
    device = cuda.Device()
    made, communicator = make_id(nccl, rank), ctypes.c_void_p()
    nccl.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int)
    call(nccl, "ncclCommInitRank", ctypes.byref(communicator), ranks, made, rank)
    ones = (ctypes.c_float * COUNT)(*[1.0] * COUNT)
    there, stream = device.allocate(4 * COUNT), device.stream()
    device.cuda.cuMemcpyHtoD_v2(there, ones, ctypes.c_size_t(4 * COUNT))
    call(
        nccl, "ncclAllReduce", ctypes.c_void_p(there.value), ctypes.c_void_p(there.value),
        ctypes.c_size_t(COUNT), FLOAT, SUM, communicator, stream,
    )  # fmt: skip
    device.wait(stream)
    device.cuda.cuMemcpyDtoH_v2(ones, there, ctypes.c_size_t(4 * COUNT))
    call(nccl, "ncclCommDestroy", communicator)
    return [ones[0], ones[COUNT - 1]]


def main():
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    nccl = ctypes.CDLL(sys.argv[1])
    version = ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(version))
    answer = {"version": version.value, "words": "", "sum": None}
    try:
        answer["sum"] = add(nccl, int(sys.argv[2]), int(sys.argv[3]))
    except RefusedError as exc:
        answer["words"] = str(exc)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
