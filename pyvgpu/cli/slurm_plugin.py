"""`pyvgpu slurm-plugin`: compile the plugin that holds Slurm's shards to a quota."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, shim
from pyvgpu.slurm import job_holder

if TYPE_CHECKING:
    import argparse

PLUGIN = "pyvgpu_slurm.so"
OUTPUT = Path("/usr/local/lib/pyvgpu")

_HEADER = "slurm/spank.h"  # Slurm loads only plugins compiled with its own release's headers
_BUILD_SECONDS = 120
_DESCRIPTION = """\
Compile the SPANK plugin that holds jobs with shards of a GPU (--gres=shard:N) to their part of its
time and memory, and print its line of plugstack.conf. Needs a C compiler and the headers of this
machine's Slurm; to be repeated after each upgrade of Slurm, and if pyvgpu's Python moves.
"""
_EXAMPLES = """\
examples:
  pyvgpu slurm-plugin >>/etc/slurm/plugstack.conf
  pyvgpu slurm-plugin --include /opt/slurm/include --output /opt/slurm/lib/pyvgpu
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu slurm-plugin`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--output",
        metavar="DIR",
        default=str(OUTPUT),
        help=f"the plugin's folder ({OUTPUT})",
    )
    parser.add_argument(
        "--include",
        metavar="DIR",
        help="the folder that has slurm/spank.h (where the compiler searches)",
    )


def run(options: argparse.Namespace) -> int:
    """Compile the plugin."""
    include = None if options.include is None else Path(options.include)
    made = build(Path(options.output).absolute(), include)
    print(f"required {made}")
    return 0


def build(output: Path, include: Path | None) -> Path:
    """Compile the plugin into the folder *output*, replacing an older one; return its path.

    *include* is the folder that has slurm/spank.h, if the compiler does not find it by itself. The
    plugin starts this Python. Raises UsageError or UnavailableError, and then changes nothing.
    """
    if include is not None:
        _check_include(include)
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


def _check_include(folder: Path) -> None:
    try:
        why = "" if (folder / _HEADER).is_file() else f"has no {_HEADER}"
    except OSError as exc:
        why = errors.reason_of(exc)
    if why:
        raise errors.UsageError(
            f"--include {str(folder)!r}: {why}; must be a folder that has {_HEADER}, such as "
            "/opt/slurm/include"
        )


def _compile(compiler: str, made: Path, include: Path | None) -> None:
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-fPIC", "-shared"]
    command += [f'-DPYVGPU_PYTHON="{sys.executable}"']
    command += [f'-DPYVGPU_JOBS="{job_holder.FOLDER}"', "-o", str(made)]
    command += [] if include is None else [f"-I{include}"]
    command.append(str(shim.slurm_plugin_source()))
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise errors.UnavailableError(f"{compiler}: did not end in {_BUILD_SECONDS} s") from exc
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace").strip()
        hint = ""
        if _HEADER in said or "slurm/slurm.h" in said:
            hint = (
                "; install the headers of this machine's Slurm (Debian: apt-get install "
                "libslurm-dev), or name their folder with --include"
            )
        raise errors.UnavailableError(f"the plugin cannot be compiled: {said}{hint}")
