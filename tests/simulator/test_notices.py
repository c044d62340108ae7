"""Notices of the simulated driver on standard error, and its kernels that compute."""

import json
import subprocess
import sys

import machine_room
import pytest
import runner

from pyvgpu.simulation import simulator

PROGRAM = r"""
import ctypes, json, os, struct, sys

cuda = ctypes.CDLL("libcuda.so.1")
P, U64, F32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_float


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)


def made(kind, name, *arguments):
    value = kind()
    call(name, ctypes.byref(value), *arguments)
    return value


call("cuInit", 0)
call("cuCtxSetCurrent", made(P, "cuDevicePrimaryCtxRetain", 0))
image = b".version 7.0\n.target sm_70\n.address_size 64\n"
for name, types in (("sim_saxpy", ("u64", "u64", "f32", "u64")), ("mine", ()), ("yours", ())):
    listed = ", ".join(f".param .{kind} p{i}" for i, kind in enumerate(types))
    image += f".visible .entry {name}({listed}) {{ ret; }}\n".encode()
module = made(P, "cuModuleLoadData", image)


def launch(name, *arguments):
    function = made(P, "cuModuleGetFunction", module, name.encode())
    row = (P * len(arguments))(*[ctypes.cast(ctypes.pointer(each), P) for each in arguments])
    call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, row, None)


def floats(count, *values):
    at = made(U64, "cuMemAlloc_v2", 4 * count)
    call("cuMemcpyHtoD_v2", at, struct.pack(f"<{count}f", *values), 4 * count)
    return at


def read(at, count):
    back = ctypes.create_string_buffer(4 * count)
    call("cuMemcpyDtoH_v2", back, at, 4 * count)
    return struct.unpack(f"<{count}f", back.raw)


"""


def run(machine, source):
    """Run *source* behind the program; return what it printed and the lines of its errors."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + source],
        env=machine_room.environment(machine),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr.splitlines()


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100", tmp_path)


def test_saxpy_computes_and_needs_no_notice(machine):
    out, notices = run(
        machine,
        "y, x = floats(3, 1, 1, 1), floats(3, 0, 2, -4)\n"
        "launch('sim_saxpy', y, x, F32(2.5), U64(3))\n"
        "print(json.dumps([read(y, 3), read(x, 3)]))\n",
    )
    assert json.loads(out) == [[1.0, 6.0, -9.0], [0.0, 2.0, -4.0]]
    assert notices == []


def test_saxpy_outside_memory_is_an_illegal_address(machine):
    out, _ = run(
        machine,
        "y = floats(3, 1, 1, 1)\n"
        "launch('sim_saxpy', y, U64(4096), F32(1), U64(3))\n"
        "print(cuda.cuCtxSynchronize())\n",
    )
    assert out == "700\n"


def test_first_kernel_without_effect_is_named_once(machine):
    _, notices = run(
        machine,
        "for name in ('mine', 'yours', 'mine'):\n    launch(name)\ncall('cuCtxSynchronize')\n",
    )
    assert len(notices) == 1
    assert "kernel 'mine' takes time and computes nothing" in notices[0]


def test_forked_child_repeats_no_notice(machine):
    again = "launch('mine')\nif os.fork():\n    os.wait()\nelse:\n    cuda.cuInit(0)\n"
    assert [len(run(machine, again)[1]) for _ in range(2)] == [1, 1]


@pytest.mark.slow
def test_processes_of_one_run_repeat_no_notice(tmp_path):
    start = runner.Runner(tmp_path)
    program = PROGRAM + "launch(sys.argv[1])\ncall('cuCtxSynchronize')\n"
    both = 'import subprocess, sys\nfor name in ("mine", "yours"):\n'
    both += "    subprocess.run([sys.executable, '-c', sys.argv[1], name], check=True)\n"
    for _ in range(2):  # a second run has a notice of its own
        done = start("--vmemory", "2GiB", "--", sys.executable, "-c", both, program)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("takes time and computes nothing") == 1
        assert "kernel 'mine' takes time" in done.stderr


def test_request_of_the_cuda_runtime_is_explained(machine):
    out, notices = run(
        machine,
        "table = P()\n"
        "print([cuda.cuGetExportTable(ctypes.byref(table), bytes(16)) for _ in range(2)])\n",
    )
    assert out == "[500, 500]\n"
    assert len(notices) == 1
    assert "fails with cudaErrorSymbolNotFound (500)" in notices[0]
    assert "A program that needs it, such as PyTorch, fails now and needs a GPU" in notices[0]
