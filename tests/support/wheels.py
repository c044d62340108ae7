"""Wheels of the package index that pip uses here, unpacked and never installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

_PLATFORMS = ("manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_SECONDS = 120


def unpacked(requirement: str) -> Path:
    """Return the folder in which the newest wheel that meets *requirement* lies, as installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyvgpu-packages"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / requirement
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft = cache / ".new"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            with zipfile.ZipFile(_fetch(draft, requirement)) as wheel:
                wheel.extractall(draft)
            draft.rename(folder)
    return folder


def _fetch(folder: Path, requirement: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder)]
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    done = subprocess.run(
        [*command, requirement], capture_output=True, text=True, timeout=_SECONDS
    )
    if done.returncode:
        pytest.skip(f"pip does not give {requirement} here: {done.stderr.strip()[-200:]}")
    (wheel,) = folder.glob("*.whl")
    return wheel
