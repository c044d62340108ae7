"""Memory of contexts, by NVML and by cuMemGetInfo, each series in a separate process.

The process names a step and waits; meanwhile this one reads NVML.
"""

import ctypes
import json
import os
import pathlib
import sys

from kit import cuda, shimmed, watch

STACK, PRINTF, HEAP = 0, 1, 2  # CU_LIMIT_*
SERIES = {
    "lazy loading": ("LAZY", "primary module kernel local stack printf heap cublas second green"),
    "eager loading": ("EAGER", "primary module kernel local cublas"),
    "green first": ("LAZY", "green"),
    "many contexts": ("LAZY", "primary second second second"),
}
LOCAL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry kit_local(.param .u32 at, .param .u64 out)
{
    .local .align 16 .b8 room[16384];
    .reg .b32 %r<4>;
    .reg .b64 %rd<6>;
    ld.param.u32 %r1, [at];
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u64 %rd2, room;
    cvt.u64.u32 %rd3, %r1;
    add.u64 %rd4, %rd2, %rd3;
    st.local.u32 [%rd4], %r1;
    ld.local.u32 %r2, [%rd4];
    st.global.u32 [%rd1], %r2;
    ret;
}
"""


class Steps:
    """One method a step; all in one process."""

    def __init__(self):
        self.cuda = cuda.driver()
        self.cuda.cuInit(0)
        self.device = None

    def primary(self):
        context = cuda.P()
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.cuda.cuCtxSetCurrent(context)

    def module(self):
        self.device = cuda.Device()

    def kernel(self):
        self.device.work(1000)
        self.device.wait()

    def local(self):
        """Run a kernel with 16 KiB of local memory a thread."""
        module, function = cuda.P(), cuda.P()
        self.cuda.cuModuleLoadData(ctypes.byref(module), LOCAL + b"\0")
        self.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"kit_local")
        place, out = cuda.UINT(64), self.device.allocate(64)
        arguments = (cuda.P * 2)(ctypes.addressof(place), ctypes.addressof(out))
        launch = self.cuda.raw.cuLaunchKernel  # its types are set by the device
        code = launch(function, self.device.sms, 1, 1, 256, 1, 1, 0, None, arguments, None)
        if code:
            raise cuda.CudaError("cuLaunchKernel", code)
        self.device.wait()

    def stack(self):
        self.limit(STACK, 16384)

    def printf(self):
        self.limit(PRINTF, 64 << 20)

    def heap(self):
        self.limit(HEAP, 256 << 20)

    def limit(self, number, value):
        self.cuda.cuCtxSetLimit(number, cuda.SIZE(value))
        self.kernel()

    def cublas(self):
        folders = [pathlib.Path(folder) for folder in sys.path if folder]
        found = [
            str(path)
            for folder in (*folders, pathlib.Path("/usr/local/cuda/lib64"))
            for pattern in ("nvidia/*/lib/libcublas.so.1[0-9]", "libcublas.so.1[0-9]")
            for path in sorted(folder.glob(pattern))
        ]
        library = cuda.Library((found or ["libcublas.so"])[0])
        library.cublasCreate_v2(ctypes.byref(cuda.P()))

    def second(self):
        before = cuda.P()
        self.cuda.cuCtxGetCurrent(ctypes.byref(before))
        self.cuda.cuCtxCreate_v2(ctypes.byref(cuda.P()), 0, 0)
        self.cuda.cuCtxSetCurrent(before)

    def green(self):
        resource, description, made = (ctypes.c_char * 256)(), cuda.P(), cuda.P()
        self.cuda.cuDeviceGetDevResource(0, resource, 1)
        self.cuda.cuDevResourceGenerateDesc(ctypes.byref(description), resource, 1)
        self.cuda.cuGreenCtxCreate(ctypes.byref(made), description, 0, 1)


def child(names):
    """Take the steps; after each one, print what was done and wait for a line."""
    steps = Steps()
    say("cuInit", None)
    for name in names:
        free, reason = None, None
        try:
            getattr(steps, name)()
            free = free_bytes(steps.cuda)
        except (cuda.CudaError, cuda.NoDriverError, AttributeError) as exc:
            reason = str(exc)
        say(name, free, reason)


def free_bytes(raw):
    free, total, current = cuda.SIZE(), cuda.SIZE(), cuda.P()
    raw.cuCtxGetCurrent(ctypes.byref(current))
    if not current.value:
        return None
    raw.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return free.value


def say(step, free, reason=None):
    print(json.dumps([step, free, reason]), flush=True)
    sys.stdin.readline()


def run(report):
    seen = watch.Watch()
    for title, (loading, steps) in SERIES.items():
        os.environ["CUDA_MODULE_LOADING"] = loading
        series(report, seen, title, steps.split())


def series(report, seen, title, steps):
    program = "import sys; from kit.stages import contexts; contexts.child(sys.argv[1:])"
    before, free_before = seen.used(), None
    process = shimmed.start(None, shimmed.python(program, *steps))
    for number, line in enumerate(process.stdout):
        step, free, reason = json.loads(line)
        name = f"{title}: {number} {step}"
        if reason:
            report.missing(name, reason)
        used = seen.used()
        report.figure(f"{name}, by NVML", used - before, "bytes")
        if step == "primary":
            held = seen.processes().get(process.pid)
            if held is None:
                report.missing(f"{name}, of its process", "NVML does not list it by its pid")
            else:
                report.figure(f"{name}, of its process", held, "bytes")
        if free is not None and free_before is not None:
            report.figure(f"{name}, by cuMemGetInfo", free_before - free, "bytes")
        before, free_before = used, free
        process.stdin.write("\n")
        process.stdin.flush()
    process.stdin.close()
    if process.wait():
        report.missing(title, f"its process ended with {process.returncode}; see log.txt")
