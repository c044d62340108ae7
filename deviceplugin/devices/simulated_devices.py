"""A node with simulated devices, which needs no GPU, no driver and no node in /dev.

The machine and the root of its driver are in the agent's state folder, so that devices keep their
UUIDs when the agent restarts. Containers write to the machine, as any user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import os
import platform
import shutil
from typing import TYPE_CHECKING

from pyvgpu import errors, names, shim
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.deviceplugin.agent_settings import AgentSettings

_FOLDER = "simulated"  # in the agent's state
_MACHINES = "machines"


def settle(settings: AgentSettings) -> AgentSettings:
    """Create the machine that *settings* name, if any; return them with its driver's root.

    This process and its children use it from then on. UnavailableError if a folder cannot be
    written.
    """
    if not settings.simulate:
        return settings
    folder = settings.state / _FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        machines = folder / _MACHINES
        machines.mkdir(exist_ok=True)
        machines.chmod(0o1777)  # a container may run as any uid
        root = install(settings.state)
    except OSError as exc:
        raise errors.of_files(f"{folder}: cannot be filled", exc) from exc
    machine = simulator.open_machine(settings.simulate, machines)
    os.environ[names.SIMULATED_MACHINE_VARIABLE] = str(machine.folder)
    return dataclasses.replace(settings, driver_root=root)


def install(state: Path) -> Path:
    """Install the simulated driver below *state*; return its root. OSError."""
    root = state / _FOLDER / "root"
    _install(root / f"usr/lib/{platform.machine()}-linux-gnu")
    return root


def environment(state: Path) -> dict[str, str]:
    """Return the environment to use the machine in an agent's *state*; nothing without one."""
    machines = sorted((state / _FOLDER / _MACHINES).glob("*/machine.conf"))
    if len(machines) != 1:
        return {}
    return {names.SIMULATED_MACHINE_VARIABLE: str(machines[0].parent)}


def _install(libraries: Path) -> None:
    """Install the simulated driver; unchanged files stay, and are not mirrored again."""
    libraries.mkdir(parents=True, exist_ok=True)
    for source in shim.simulator_libraries().iterdir():
        target = libraries / source.name
        with contextlib.suppress(FileNotFoundError):
            same_kind = source.is_symlink() == target.is_symlink()
            if same_kind and filecmp.cmp(source, target, shallow=False):
                continue
        draft = target.with_name(f".{target.name}")
        draft.unlink(missing_ok=True)
        shutil.copy2(source, draft, follow_symlinks=False)
        draft.replace(target)
