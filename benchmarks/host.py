"""What the benchmarks ran on, for the record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path


def describe() -> dict[str, object]:
    """Return the machine, the versions and the commit."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "compiler": _output("cc", "--version").splitlines()[0],
        "python": platform.python_version(),
        "pyvgpu": importlib.metadata.version("pyvgpu"),
        "commit": _commit(),
    }


def short_name() -> str:
    """Return a name of the machine that fits into a file name: its processor and cores."""
    words = re.findall(r"[a-z0-9]+", _cpu().lower())
    return "-".join([*words[:3], f"{os.cpu_count()}c"])


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _commit() -> str:
    commit = _output("git", "rev-parse", "--short=12", "HEAD").strip()
    native = _output("git", "status", "--porcelain", "--", "csrc", "CMakeLists.txt").strip()
    return f"{commit} with changes in csrc" if commit and native else commit


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout
