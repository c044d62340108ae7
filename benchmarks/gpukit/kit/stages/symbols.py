"""Comparison of the functions from cuGetProcAddress and dlsym."""

import ctypes
import pathlib
import subprocess

from kit import cuda

VERSIONS = (2000, 3020, 4000, 6050, 7000, 8000, 9000, 10000, 11000, 11020, 12000, 12080, 13000)
FLAGS = (0, 1, 2)  # default, legacy stream, per-thread default stream


def names_of(path, prefix="cu"):
    """Return names that begin with *prefix*, from the string tables of the ELF file at *path*."""
    data, begin = pathlib.Path(path).read_bytes(), b"\0" + prefix.encode()
    found, start = set(), data.find(begin)
    while start >= 0:
        end = data.find(b"\0", start + 1)
        name = data[start + 1 : end]
        if 3 < len(name) < 80 and name.isascii() and name.replace(b"_", b"").isalnum():
            found.add(name.decode())
        start = data.find(begin, end)
    return sorted(found)


def run(report):
    driver = cuda.driver()
    driver.cuInit(0)
    with open("/proc/self/maps", encoding="utf-8") as file:
        path = next(line.split()[-1] for line in file if "libcuda.so" in line)
    names = [name for name in names_of(path) if hasattr(driver.raw, name)]
    report.figure("exported functions", len(names), "functions")
    addresses = {
        ctypes.cast(getattr(driver.raw, name), ctypes.c_void_p).value: name for name in names
    }
    hidden, asked, answered = {}, 0, 0
    function = ctypes.c_void_p()
    for name in names:
        base = name.removesuffix("_ptsz").removesuffix("_ptds")
        for version in VERSIONS:
            for flag in FLAGS:
                asked += 1
                code = driver.raw.cuGetProcAddress(
                    base.split("_v")[0].encode(), ctypes.byref(function), version,
                    ctypes.c_uint64(flag),
                )  # fmt: skip
                if code == 0 and function.value:
                    answered += 1
                    if function.value not in addresses:
                        hidden[f"{base}@{version}/{flag}"] = hex(function.value)
    report.figure("answers of cuGetProcAddress", answered, f"of {asked}")
    report.figure("pointers that dlsym does not name", len(hidden), "pointers")
    report.fact("hidden", sorted(hidden)[:200])
    report.guarantee(
        "every function is reached by its exported name",
        not hidden,
        f"{len(hidden)} pointers are not exported, such as {sorted(hidden)[:3]}",
    )
    smi = subprocess.run(["sh", "-c", "command -v nvidia-smi"], capture_output=True, check=False)
    if smi.returncode:
        report.missing("nvidia-smi", "no such program in PATH")
