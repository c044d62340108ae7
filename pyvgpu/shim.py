"""Paths of the built native libraries and programs, in a plain or an editable install.

The build puts ``_region.py`` and the folder ``lib`` side by side, so wherever the import
system finds ``_region.py``, ``lib`` is beside it.
"""

from __future__ import annotations

from pathlib import Path

from pyvgpu import _region, errors, names


def shim_library() -> Path:
    """Return the path of the shim."""
    return _built(_library_folder() / names.SHIM_FILE)


def simulator_libraries() -> Path:
    """Return the folder that holds the simulated driver."""
    folder = _library_folder() / "simulator"
    if not any(folder.glob("libcuda.so.*")):
        _built(folder / "libcuda.so.999.1")
    return folder


def tenant_program() -> Path:
    """Return the path of the demonstration's CUDA program."""
    return _built(_library_folder() / "demo" / "tenant")


def arbiter_program() -> Path:
    """Return the path of the program that keeps the clocks of contended devices."""
    return _built(_library_folder() / "arbiter" / "pyvgpu-arbiter")


def replay_tool(name: str) -> Path:
    """Return the path of a replay tool: player, witness or libvirtualclock.so."""
    return _built(_library_folder() / "replay" / name)


def fast_exit_program() -> Path:
    """Return the path of the program of the fast-exit image."""
    return _built(_library_folder() / "sidecar" / "pyvgpu-exit")


def created_hook() -> Path:
    """Return the path of the hook that reports each container to the node agent."""
    return _built(_library_folder() / "hook" / "pyvgpu-created")


def slurm_plugin_source() -> Path:
    """Return the path of the source of Slurm's plugin, to be compiled for each Slurm."""
    return _built(_library_folder() / "slurm" / "plugin.c")


def _library_folder() -> Path:
    return Path(_region.__file__).resolve().parent / "lib"


def _built(path: Path) -> Path:
    if not path.is_file():
        raise errors.UnavailableError(
            f"{path} is missing: this pyvgpu was installed without its native side; "
            "install it again (pip install --force-reinstall pyvgpu, or make build)"
        )
    return path
