"""Compile the SPANK plugin for the Slurm of this machine.

Slurm loads only plugins that were compiled with the headers of its own release, and its headers
are not part of pyvgpu.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyvgpu import errors, shim
from pyvgpu.slurm import job_holder

PLUGIN = "pyvgpu_slurm.so"
OUTPUT = Path("/usr/local/lib/pyvgpu")

_HEADER = "slurm/spank.h"
_SECONDS = 120


def build(output: Path, include: Path | None) -> Path:
    """Compile the plugin into the folder *output*, replacing an older one; return its path.

    *include* is the folder that has slurm/spank.h, if the compiler does not find it by itself. The
    plugin starts this Python. Raises UsageError or UnavailableError, and then changes nothing.
    """
    if include is not None and not (include / _HEADER).is_file():
        raise errors.UsageError(
            f"--include {str(include)!r}: has no {_HEADER}; must be a folder that has it, such as "
            "/opt/slurm/include"
        )
    if '"' in sys.executable or "\\" in sys.executable:
        raise errors.UnavailableError(
            f"{sys.executable}: this Python's path must have no quotes and backslashes"
        )
    asked = os.environ.get("CC", "cc")
    compiler = shutil.which(asked)
    if compiler is None:
        raise errors.UnavailableError(
            f"{asked}: there is no such C compiler (Debian: apt-get install gcc)"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output, prefix=".pyvgpu-") as folder:
            made = Path(folder, PLUGIN)
            _compile(compiler, made, include)
            made.chmod(0o755)
            return made.replace(output / PLUGIN)
    except OSError as exc:
        raise errors.of_files(f"{output}: cannot be written", exc) from exc


def _compile(compiler: str, made: Path, include: Path | None) -> None:
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-fPIC", "-shared"]
    command += [f'-DPYVGPU_PYTHON="{sys.executable}"']
    command += [f'-DPYVGPU_JOBS="{job_holder.FOLDER}"', "-o", str(made)]
    command += [] if include is None else [f"-I{include}"]
    command.append(str(shim.slurm_plugin_source()))
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise errors.UnavailableError(f"{compiler}: did not end in {_SECONDS} s") from exc
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace").strip()
        hint = ""
        if _HEADER in said or "slurm/slurm.h" in said:
            hint = (
                "; install the headers of this machine's Slurm (Debian: apt-get install "
                "libslurm-dev), or name their folder with --include"
            )
        raise errors.UnavailableError(f"the plugin cannot be compiled: {said}{hint}")
