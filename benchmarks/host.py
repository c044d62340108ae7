"""What the benchmarks ran on, for the record."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_RESULTS = Path(__file__).parent / "results"


def describe() -> dict[str, object]:
    """Return the machine, the versions and the commit, and what was stolen until now."""
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
        "stolen_percent": round(_stolen_percent(), 1),
    }


def stamped(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was *measured* as a record: with the time, and what it ran on."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, **measured, "host": describe()}


def remark() -> str:
    """Return a sentence on how much a virtual machine's host has disturbed the figures."""
    return f"stolen by the host meanwhile: {_stolen_percent():.1f} % of the processors' time"


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


def keep(
    record: Mapping[str, Any],
    folder: str = "",
    *,
    kind: str = "",
    indent: int | None = 1,
    aloud: bool = True,
) -> None:
    """Write a record to *folder* of benchmarks/results, and say where unless it is not *aloud*.

    Its file is named by its date, its *kind* where a folder has several, and the machine; one of
    the same day is replaced.
    """
    results = _RESULTS / folder
    results.mkdir(parents=True, exist_ok=True)
    parts = (record["date"][:10], kind, short_name())
    path = results / f"{'-'.join(filter(None, parts))}.json"
    path.write_text(json.dumps(record, indent=indent) + "\n")
    if aloud:
        print(f"recorded in {path.relative_to(_RESULTS.parents[1])}", flush=True)


def last(folder: str = "", kind: str = "") -> Path:
    """Return the file of the record with the latest date in it, of those that ``keep`` wrote."""
    found = (_RESULTS / folder).glob(f"*-{kind}-*.json" if kind else "*.json")
    return max(found, key=lambda path: str(json.loads(path.read_text())["date"]))


def _stolen_percent() -> float:
    """Return how much of the time since the start others on the host had the processors for.

    They had something to run then, and stood still (`steal` in proc_stat(5)); 0 on bare metal.
    """
    seconds = (time.monotonic() - _BEGUN) * (os.cpu_count() or 1)
    return 100 * (_stolen_seconds() - _STOLEN_BEFORE) / max(seconds, 1e-9)


def _stolen_seconds() -> float:
    fields = Path("/proc/stat").read_text().split(maxsplit=9)
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


_BEGUN, _STOLEN_BEFORE = time.monotonic(), _stolen_seconds()


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
