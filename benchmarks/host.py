"""The benchmark machine's properties, and the writing of records."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import percentiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
RAW = ROOT / "build/benchmarks"


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


def free_port() -> int:
    """Return a TCP port on which no program of this machine listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


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
    samples: Sequence[str] = (),
    aloud: bool = True,
) -> None:
    """Write a record to *folder* of benchmarks/results, and say where unless it is not *aloud*.

    Its file is named by its date, its *kind* where a folder has several, and the machine; it
    replaces earlier ones of that kind and machine. Of the parts called *samples* it has
    percentiles; each measurement is in a file of the same name below build/benchmarks.
    """
    results, raw = RESULTS / folder, RAW / folder
    results.mkdir(parents=True, exist_ok=True)
    name = f"{'-'.join(filter(None, (kind, short_name())))}.json"
    path = results / f"{record['date'][:10]}-{name}"
    for earlier in results.glob(f"????-??-??-{name}"):
        earlier.unlink()
    if samples:
        raw.mkdir(parents=True, exist_ok=True)
        (raw / path.name).write_text(text(record))
    path.write_text(text({**record, **{part: _summary(record[part]) for part in samples}}))
    if aloud:
        print(f"recorded in {path.relative_to(ROOT)}", flush=True)


def text(record: Mapping[str, Any]) -> str:
    """Return a record as JSON with one line for each member of its members."""
    members = [f"{json.dumps(key)}: {_lines(value)}" for key, value in record.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _lines(value: object) -> str:
    if isinstance(value, dict) and value:
        members = [f" {json.dumps(key)}: {json.dumps(member)}" for key, member in value.items()]
        return "{\n" + ",\n".join(members) + "\n}"
    if isinstance(value, list) and any(isinstance(member, dict | list) for member in value):
        return "[\n" + ",\n".join(f" {json.dumps(member)}" for member in value) + "\n]"
    return json.dumps(value)


def _summary(measured: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {
        name: [round(number, 9) for number in percentiles.summary(values)]
        for name, values in measured.items()
    }


def last(folder: str = "", kind: str = "") -> Path:
    """Return the file of the record with the latest date in it, of those that ``keep`` wrote."""
    found = (RESULTS / folder).glob(f"*-{kind}-*.json" if kind else "*.json")
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
