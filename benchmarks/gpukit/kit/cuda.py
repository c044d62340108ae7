"""ctypes bindings of the CUDA driver API and NVML, as far as the stages need them."""

import contextlib
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import uuid

P, U64, SIZE, INT, UINT, FLOAT = (
    ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint, ctypes.c_float,
)  # fmt: skip
HERE = pathlib.Path(__file__).parent
NON_BLOCKING = 1
NOT_READY = 600
MIB = 1 << 20
STEPS_VARIABLE = "PYVGPU_KIT_STEPS_PER_NS"
DEVICE_VARIABLE = "PYVGPU_KIT_DEVICE"  # the UUID of the device that is measured
OLDEST_CUDA = 11000  # that of driver release 450
CALIBRATION_NS = 2_000_000  # of a kernel that is measured
WARM_UP_SECONDS, MOST_WARM_UP_SECONDS = 0.3, 3.0
STEADY = 0.01  # by which rates may differ that are the same
MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED
LEAST_OF_OTHERS = {"processes": 1, "bytes": 64 << 20, "load": 5}
COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
SHARED = "default"
COMPUTE_MODES = {0: SHARED, 2: "prohibited", 3: "exclusive process"}


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


def survey():
    """Print as JSON the CUDA version, and the first device where the driver is new enough.

    The first device is the one that CUDA_VISIBLE_DEVICES puts first, if that is set.
    """
    found = {"version": driver_version()}
    if found["version"] >= OLDEST_CUDA:
        cuda = driver()
        cuda.cuInit(0)
        number, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(128)
        cuda.cuDeviceGetName(name, 128, 0)
        # Of a MIG instance only the newer function gives its own UUID.
        newer = hasattr(cuda.raw, "cuDeviceGetUuid_v2")
        (cuda.cuDeviceGetUuid_v2 if newer else cuda.cuDeviceGetUuid)(number, 0)
        part = " MIG " in name.value.decode()
        found["device"] = name.value.decode()
        found["uuid"] = f"{'MIG' if part else 'GPU'}-{uuid.UUID(bytes=bytes(number))}"
        found["compute mode"] = compute_mode()
        found["mig"] = part or in_mig_mode(found["uuid"])
        found["mps"] = in_mps(cuda)
        found["others"] = others(found["uuid"])
        found["free"] = free_bytes(found["uuid"])
    print(json.dumps(found))


def compute_mode():
    """Return the compute mode of the device, SHARED if it admits several processes."""
    cuda, mode = driver(), INT()
    cuda.cuInit(0)
    cuda.cuDeviceGetAttribute(ctypes.byref(mode), COMPUTE_MODE, 0)
    return COMPUTE_MODES.get(mode.value, str(mode.value))


def in_mps(cuda):
    """Return whether contexts on the device are clients of an MPS server."""
    enabled = INT()
    code = cuda.raw.cuDeviceGetAttribute(ctypes.byref(enabled), MPS_ENABLED, 0)
    return code == 0 and enabled.value == 1  # older drivers do not know it


def others(name):
    """Return the use of the device by others: processes, bytes, and percent of the time.

    For a process without a context. What NVML does not tell, or is too little to matter, is 0.
    """
    from kit import watch

    found = {"processes": 0, "bytes": 0, "load": 0}
    try:
        seen = watch.Watch(name)
    except (CudaError, NoDriverError):
        return found
    probes = {
        "processes": lambda: len(seen.processes()),
        "bytes": lambda: nvml_memory_taken(seen.nvml, seen.handle),
        "load": lambda: least_of(seen.load),
    }
    for title, probe in probes.items():
        with contextlib.suppress(CudaError, AttributeError):
            found[title] = probe()
    return {title: n if n >= LEAST_OF_OTHERS[title] else 0 for title, n in found.items()}


def free_bytes(name):
    """Return the bytes of the device that are free, None if NVML does not tell."""
    try:
        library = nvml()
        return nvml_memory(library, nvml_handle(library, name)).free
    except (CudaError, NoDriverError):
        return None


def least_of(probe):
    """Return the least of some probes: a device that has just been woken says that it is busy."""
    found = []
    for _ in range(5):
        found.append(probe())
        time.sleep(0.1)
    return min(found)


def in_mig_mode(name):
    """Return whether the device of this UUID is divided into MIG instances."""
    current, pending = UINT(), UINT()
    try:
        library = nvml()
        library.nvmlDeviceGetMigMode(
            nvml_handle(library, name), ctypes.byref(current), ctypes.byref(pending)
        )
    except (CudaError, NoDriverError, AttributeError):  # the device or the driver has no MIG
        return False
    return current.value == 1


def nvml_handle(library, name=None):
    """Return NVML's handle of the device that is measured; NVML has an order of its own."""
    handle, name = P(), name or os.environ.get(DEVICE_VARIABLE)
    if name:
        library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    else:
        library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    return handle


class _Memory(ctypes.Structure):  # nvmlMemory_t
    _fields_ = [("total", U64), ("free", U64), ("used", U64)]


def nvml_memory(library, handle):
    """Return the bytes of memory of a device, as NVML says: .total, .free and .used."""
    memory = _Memory()
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return memory


class _MemoryV2(ctypes.Structure):  # nvmlMemory_v2_t
    _fields_ = [("version", UINT), ("total", U64), ("reserved", U64), ("free", U64),
                ("used", U64)]  # fmt: skip


def nvml_memory_taken(library, handle):
    """Return the bytes of memory that are in use, without those that the driver reserves."""
    memory = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
    library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory))
    return memory.used


class Device:
    """The device that is measured, its primary context current, with the kit's kernel."""

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
        steps, took = 10_000, 0
        while took < CALIBRATION_NS and steps < 1 << 50:
            steps *= 3
            took = self.time_steps(steps)
        if took <= 0:
            raise CudaError("globaltimer", 0)
        self.steps_per_ns = steady_rate(lambda: steps / self.time_steps(steps))
        os.environ[STEPS_VARIABLE] = repr(self.steps_per_ns)

    def time_steps(self, steps):
        """Run a kernel of so many *steps*; return how long it took by its own timer, ns."""
        self.steps_per_ns = 1.0
        self.work(steps)
        self.wait()
        begin, end = self.read(self._times, 2)
        return end - begin

    def elapsed_us(self, begin, end):
        milliseconds = FLOAT()
        self.cuda.cuEventElapsedTime(ctypes.byref(milliseconds), begin, end)
        return milliseconds.value * 1000


def steady_rate(measure):
    """Return what *measure* says once it says the same thrice: an idle GPU raises its clock late.

    Without that, kernels would be shorter than they are taken for, and shares too high.
    """
    rates, begun = [], time.monotonic()
    warm_up = 0 if simulated() else WARM_UP_SECONDS
    while True:
        rates.append(measure())
        last, passed = rates[-3:], time.monotonic() - begun
        same = len(last) == 3 and max(last) - min(last) <= STEADY * min(last)
        if (same and passed >= warm_up) or passed >= MOST_WARM_UP_SECONDS:
            return statistics.median(last)


def has_room(report, size):
    """Return whether *size* bytes of the device are free; report what is missing if not.

    With less, a program that is refused memory says nothing of its quota.
    """
    library = nvml()
    free = nvml_memory(library, nvml_handle(library)).free
    if free < size:
        report.missing("device memory", f"{free >> 20} MiB are free; this needs {size >> 20} MiB")
    return free >= size


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
