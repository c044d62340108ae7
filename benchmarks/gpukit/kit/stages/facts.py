"""Machine, driver and limits of the host."""

import ctypes
import fcntl
import os
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import sys

from kit import cuda

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
PROGRAMS = (
    "gcc", "nvcc", "nvidia-smi", "ncu", "nsys", "compute-sanitizer", "cuda-gdb", "nvitop",
    "nvidia-cuda-mps-control",
)  # fmt: skip
PACKAGES = (
    "torch",
    "jax",
    "cupy",
    "numba_cuda",
    "triton",
    "transformers",
    "cuda.bindings",
    "pynvml",
)
IDENTITY = re.compile(r"\s*(Serial Number|GPU UUID|GPU PDI|Board ID|Chassis Serial Number)\s*:")
GVISOR_BUILD = "#1 SMP Sun Jan 10 15:06:54 PST 2016"  # which it names since its first release
ATTRIBUTES = {
    "multiprocessors": 16, "compute capability major": 75, "compute capability minor": 76,
    "pageable memory access": 88, "concurrent managed access": 89, "stream priorities": 78,
    "memory pools": 115, "host NUMA id": 134,
}  # fmt: skip


def run(report):
    host(report)
    device(report)
    libraries(report)
    rights(report)
    programs(report)


def host(report):
    report.fact("kernel", platform.release())
    report.fact("machine", platform.machine())
    report.fact("python", sys.version.split()[0])
    report.fact("glibc", " ".join(platform.libc_ver()))
    report.fact("user", os.geteuid())
    report.fact("processors", len(os.sched_getaffinity(0)))
    report.fact("sandbox", sandbox(f"{platform.release()} {platform.version()}"))
    report.fact("driver module", first_line("/proc/driver/nvidia/version"))
    report.fact("device nodes", sorted(str(p) for p in pathlib.Path("/dev").glob("nvidia*")))


def sandbox(version):
    """Return the sandbox that answers with a kernel *version*, release and build, of its own."""
    found = "gvisor" in version.lower() or GVISOR_BUILD in version
    return "gVisor" if found else "none seen"


def first_line(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace").split("\n")[0]
    except OSError as exc:
        return f"{path}: {exc.strerror}"


def programs(report):
    for name in PROGRAMS:
        found = shutil.which(name)
        if found:
            report.fact(f"program {name}", found)
        else:
            report.missing(name, "no such program in PATH")
    if shutil.which("nvidia-smi"):
        try:
            done = subprocess.run(
                ["nvidia-smi", "-q"], capture_output=True, text=True, timeout=20, check=False,
                errors="replace",
            )  # fmt: skip
            report.fact("nvidia-smi -q", anonymous(done.stdout)[:20000] or done.stderr[:2000])
        except (OSError, subprocess.TimeoutExpired) as exc:
            report.missing("nvidia-smi -q", exc)
    for name in PACKAGES:
        code = (
            "import importlib.util as u, sys\n"
            f"try: found = u.find_spec({name!r})\n"
            "except ImportError: found = None\n"
            "sys.exit(found is None)"
        )
        if subprocess.run([sys.executable, "-c", code], check=False).returncode:
            report.missing(name, "no such Python package")
        else:
            report.fact(f"package {name}", "installed")


def anonymous(text):
    """Return what nvidia-smi says without the device's identity and other users' programs."""
    kept, depth = [], None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if depth is not None and indent > depth:
            continue
        depth = indent if line.strip().startswith("Processes") else None
        if depth is None and not IDENTITY.match(line):
            kept.append(line)
    return "\n".join(kept)


def libraries(report):
    for name in LIBRARIES:
        cuda.Library(name)
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = sorted(
            {line.split()[-1] for line in file if any(n[:-2] in line for n in LIBRARIES)}
        )
    for path in paths:
        report.fact(f"library {pathlib.Path(path).name.partition('.so')[0]}", path)
    for folder in sorted({pathlib.Path(path).parent for path in paths}):
        report.fact(f"{folder} is writable", os.access(folder, os.W_OK))
        report.fact(
            f"libraries in {folder}",
            sorted(p.name for p in folder.glob("libcuda*"))
            + sorted(p.name for p in folder.glob("libnvidia-*"))[:80],
        )


def device(report):
    found = cuda.Device()
    report.fact("CUDA version", cuda.driver_version())
    name = ctypes.create_string_buffer(128)
    found.cuda.cuDeviceGetName(name, 128, 0)
    report.fact("device", name.value.decode())
    for title, number in ATTRIBUTES.items():
        try:
            report.fact(title, found.attribute(number))
        except cuda.CudaError as exc:
            report.missing(title, exc)
    free, total = found.memory()
    report.figure("memory total", total, "bytes")
    report.figure("memory free", free, "bytes")
    found.calibrate()
    report.figure("kernel steps", found.steps_per_ns, "1/ns")
    nvml = cuda.nvml()
    release = ctypes.create_string_buffer(96)
    nvml.nvmlSystemGetDriverVersion(release, 96)
    report.fact("driver release", release.value.decode())


def rights(report):
    for flag, title in ((0x10000000, "user namespace"), (0x00020000, "mount namespace")):
        child = os.fork()
        if child == 0:
            libc = ctypes.CDLL(None, use_errno=True)
            os._exit(0 if libc.unshare(flag) == 0 else ctypes.get_errno())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        report.fact(title, "can be made" if code == 0 else os.strerror(code))
    for path in ("/dev/nvidiactl",):
        try:
            with open(path, "rb") as file:
                question = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 1 << 62, 1, 0)
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, question)
            report.fact(f"lock of an open file description on {path}", "taken")
        except OSError as exc:
            report.missing(f"lock of an open file description on {path}", exc.strerror)
