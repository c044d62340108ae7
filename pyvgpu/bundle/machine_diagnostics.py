"""Machine diagnostics of the support bundle: kernel, driver, runs, grants, mirror, metrics."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, names, region, shim
from pyvgpu.bundle import allow_lists
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.containers import region_files, store
from pyvgpu.deviceplugin.grants import grant_log
from pyvgpu.doctor import inside, machine_checks, node_checks
from pyvgpu.http import endpoints
from pyvgpu.machine import reservations
from pyvgpu.volumes import manifest
from pyvgpu.volumes.node_mirror import NodeMirror as Mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyvgpu.doctor.check_results import CheckResult

_KERNEL = (  # kernel version, and settings that affect us
    "/proc/version",
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/params",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/user/max_mnt_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/filesystems",
)
_MODULES = ("nvidia", "nouveau", "overlay")
_FIGURES = "pyvgpu_"
_SECONDS = 10
_MOST = 16 << 20  # bytes of a response


def documents(
    where: node_checks.NodePaths, run: Path, environment: Mapping[str, str]
) -> Iterator[tuple[str, object]]:
    """Yield the names and contents of files; a failed read becomes its error message."""
    known = {
        variable: environment[variable]
        for variable in allow_lists.VARIABLES
        if variable in environment
    }
    yield "environment.json", {name: allow_lists.text(value) for name, value in known.items()}
    yield (
        "doctor/machine.json",
        _rows(machine_checks.examine(machine_checks.CheckedMachine(environment))),
    )
    if where.state.is_dir():
        yield "doctor/node.json", _rows(node_checks.examine(where, environment))
    place = inside.find()
    if place is not None:
        yield "doctor/inside.json", _rows(inside.examine(place, environment))
    for name in _KERNEL:
        yield f"kernel{name}", _or_error(functools.partial(_read, Path(name)))
    yield "kernel/modules", _or_error(_modules)
    yield "runs.json", _or_error(_runs)
    yield "grants/checkpoint.json", _or_error(lambda: _checkpoint(where.state))
    quotas = (run / store.GRANTS).glob(f"*/{names.QUOTA_FILE}")
    found = sorted(quota.parent for quota in quotas if grants.is_id(quota.parent.name))
    yield "grants/regions.json", [_region(folder) for folder in found]
    yield "mirror.json", _or_error(lambda: _mirror(where.state / node_checks.DRIVER))
    for path in ("/readyz", "/healthz", "/metrics"):
        yield f"agent{path}.txt", _asked(where.agent, path)


def about(versions: str) -> dict[str, object]:
    """Return versions and platform; *versions* is the output of --version."""
    return {
        "versions": versions.splitlines(),
        "python": sys.version,
        "system": platform.platform(),
        "machine": platform.machine(),
        "libc": platform.libc_ver(),
        "uid": os.geteuid(),
        "cgroups": 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
    }


def _or_error(read: Callable[[], object]) -> object:
    """Return the result of *read*, or its error message."""
    try:
        return read()
    except (errors.PyVgpuError, OSError) as exc:
        return {"error": allow_lists.text(str(exc))}


def _rows(rows: tuple[CheckResult, ...]) -> object:
    return [
        {key: allow_lists.text(str(value)) for key, value in dataclasses.asdict(row).items()}
        for row in rows
    ]


def _read(path: Path) -> str:
    return path.read_text(errors="replace")[:_MOST] if path.exists() else "absent\n"


def _modules() -> str:
    lines = _read(Path("/proc/modules")).splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith(_MODULES))


def _runs() -> object:
    """Return the machine's runs, without their commands."""
    return [
        {
            "run": reservation.run_id,
            "name": reservation.holder.name,
            "uid": reservation.uid,
            "pid": reservation.holder.pid,
            "created": reservation.holder.created,
            **_region(reservation.folder),
        }
        for reservation in reservations.Registries().live()
    ]


def _checkpoint(state: Path) -> object:
    shape: allow_lists.Shape = {
        "id": allow_lists.KEEP,
        "created": allow_lists.KEEP,
        "owner": dict.fromkeys(("uid", "namespace", "pod", "container"), allow_lists.KEEP),
        "shares": [dict.fromkeys(("uuid", "vcore", "vmemory"), allow_lists.KEEP)],
        "policy": allow_lists.KEEP,
        "ceiling": allow_lists.KEEP,
        "chosen": allow_lists.KEEP,
        "vcore_ids": allow_lists.KEEP,
        "vmemory_ids": allow_lists.KEEP,
    }
    if not (state / grant_log.FILE).exists():
        return []
    return [
        allow_lists.kept(grants.dump(grant), shape) for grant in grant_log.peek(state).values()
    ]


def _region(path: Path) -> dict[str, object]:
    """Return the quota and the ledger of a region, without names of processes."""
    found: dict[str, object] = {"folder": path.name}
    try:
        with region_files.opened(path, names.QUOTA_FILE, region_files.READ_FILE) as file:
            limits = region.read_limits(file)
        found["limits"] = dataclasses.asdict(limits)
        with region_files.opened(path, names.USAGE_FILE, region_files.READ_FILE) as file:
            count = len(limits.devices)
            usage, compute = region.read_usage(file, count), region.read_compute(file, count)
        found["processes"] = [{"pid": slot.pid, "charged": slot.charged} for slot in usage.slots]
        found["charged"], found["orphaned"] = usage.charged, usage.orphaned
        found["refused"] = usage.refused
        found["compute"] = [dataclasses.asdict(device_compute) for device_compute in compute]
    except (errors.PyVgpuError, OSError) as exc:
        found["error"] = str(exc)
    return found


def _mirror(output: Path) -> object:
    tree = Mirror(output, shim.shim_library()).current()
    if tree is None:
        return None
    found = manifest.Manifest.read(tree)
    entries = {} if found is None else found.entries
    return {
        "tree": str(tree),
        "entries": {path: dataclasses.asdict(entry) for path, entry in entries.items()},
    }


def _asked(address: str, path: str) -> str:
    """Return an agent's response; of its metrics only our own."""
    where = endpoints.read_address(address, "--agent")
    try:
        answer = endpoints.ask(where, path, _SECONDS, _MOST)
    except errors.UnavailableError as exc:
        return f"no answer at {address}: {exc}\n"
    said = answer.content.decode("utf-8", "replace")
    if path == "/metrics":
        lines = said.splitlines(keepends=True)
        return "".join(line for line in lines if line.removeprefix("# HELP ").startswith(_FIGURES))
    return allow_lists.text(f"{answer.code}\n{said}\n")


def encoded(content: object) -> bytes:
    """Encode the content of a file: text as it is, anything else as JSON."""
    if isinstance(content, str):
        return content.encode("utf-8", "replace")
    return json.dumps(content, indent=2, default=str).encode() + b"\n"
