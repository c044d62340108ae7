"""The CUDA driver API and NVML by ctypes: what the stages need of them."""

import ctypes
import os
import pathlib
import subprocess
import sys
import time

P, U64, SIZE, INT, UINT, FLOAT = (
    ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint, ctypes.c_float,
)  # fmt: skip
HERE = pathlib.Path(__file__).parent
NON_BLOCKING = 1
NOT_READY = 600
MIB = 1 << 20
STEPS_VARIABLE = "PYVGPU_KIT_STEPS_PER_NS"


class NoDriverError(Exception):
    """There is no driver that can be loaded."""


class CudaError(Exception):
    """A call of the driver failed."""

    def __init__(self, call, code):
        super().__init__(f"{call} returned {code}")
        self.code = code


def kit_version():
    """Return the version of pyvgpu that this kit was made of."""
    path = HERE.parent / "VERSION"
    return path.read_text(encoding="utf-8").strip() if path.exists() else "unpacked"


class Library:
    """A library whose functions return 0, or raise CudaError."""

    def __init__(self, name):
        try:
            self.raw = ctypes.CDLL(name)
        except OSError as exc:
            raise NoDriverError(str(exc)) from exc

    def __getattr__(self, name):
        function = getattr(self.raw, name)

        def call(*arguments):
            code = function(*arguments)
            if code:
                raise CudaError(name, code)

        setattr(self, name, call)
        return call


def driver():
    return Library("libcuda.so.1")


def nvml():
    library = Library("libnvidia-ml.so.1")
    library.nvmlInit_v2()
    return library


def driver_version():
    version = INT()
    cuda = driver()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    return version.value


class Device:
    """The first device, its primary context current, with the kit's kernel."""

    def __init__(self):
        self.cuda = driver()
        self.cuda.cuInit(0)
        self.context = P()
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0)
        self.cuda.cuCtxSetCurrent(self.context)
        self.sms = self.attribute(16)
        module, self.kernel = P(), P()
        image = (HERE / "kernels.ptx").read_bytes() + b"\0"
        self.cuda.cuModuleLoadData(ctypes.byref(module), image)
        self.cuda.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"sim_work")
        self._times = self.allocate(16)
        self._launch = self.cuda.raw.cuLaunchKernel
        self._launch.argtypes = (P, *([UINT] * 7), P, P, P)
        self.steps_per_ns = 1.0

    def attribute(self, number):
        value = INT()
        self.cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        return value.value

    def allocate(self, size):
        pointer = U64()
        self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), SIZE(size))
        return pointer

    def free(self, pointer):
        self.cuda.cuMemFree_v2(pointer)

    def memory(self):
        """Return free and total bytes, as the driver says."""
        free, total = SIZE(), SIZE()
        self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def stream(self):
        made = P()
        self.cuda.cuStreamCreate(ctypes.byref(made), NON_BLOCKING)
        return made

    def event(self):
        made = P()
        self.cuda.cuEventCreate(ctypes.byref(made), 0)
        return made

    def work(self, ns, stream=None, out=None, blocks=None):
        """Launch a kernel that keeps the device busy for some *ns*, alone."""
        steps = U64(max(0, int(ns * self.steps_per_ns)))
        at = U64((out or self._times).value)
        arguments = (P * 2)(ctypes.addressof(steps), ctypes.addressof(at))
        blocks = self.sms if blocks is None else blocks
        code = self._launch(self.kernel, blocks, 1, 1, 32, 1, 1, 0, stream, arguments, None)
        if code:
            raise CudaError("cuLaunchKernel", code)

    def wait(self, stream=None):
        if stream is None:
            self.cuda.cuCtxSynchronize()
        else:
            self.cuda.cuStreamSynchronize(stream)

    def read(self, pointer, count):
        """Return *count* words of 64 bits of the device's memory."""
        words = (U64 * count)()
        self.cuda.cuMemcpyDtoH_v2(words, pointer, SIZE(8 * count))
        return list(words)

    def calibrate(self):
        """Measure how many steps of the kernel a nanosecond has, unless the parent did.

        The figure goes to child processes by their environment: beside others it would be wrong.
        """
        known = os.environ.get(STEPS_VARIABLE)
        if known:
            self.steps_per_ns = float(known)
            return
        stream = self.stream()
        steps = 10_000
        for _ in range(12):
            self.steps_per_ns = 1.0
            self.work(steps, stream)
            self.wait(stream)
            begin, end = self.read(self._times, 2)
            if end - begin > 2_000_000:
                break
            steps *= 3
        if end <= begin:
            raise CudaError("globaltimer", 0)
        self.steps_per_ns = steps / (end - begin)
        os.environ[STEPS_VARIABLE] = repr(self.steps_per_ns)

    def elapsed_us(self, begin, end):
        milliseconds = FLOAT()
        self.cuda.cuEventElapsedTime(ctypes.byref(milliseconds), begin, end)
        return milliseconds.value * 1000


def calibrate_alone():
    """Calibrate in a process of its own, for this process's children; the context ends with it."""
    code = "from kit import cuda; d = cuda.Device(); d.calibrate(); print(repr(d.steps_per_ns))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    os.environ[STEPS_VARIABLE] = done.stdout.strip()


def until(condition, seconds):
    """Wait until *condition* holds; return the seconds it took, None if it never did."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            return None
        time.sleep(0.0005)
    return time.monotonic() - begun


def simulated():
    """Return the simulated model that this run uses, or None."""
    return os.environ.get("PYVGPU_KIT_SIMULATE")
