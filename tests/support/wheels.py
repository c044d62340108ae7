"""Downloads wheels from pip's package index and unpacks them without installing."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import package_cache
import pytest

if TYPE_CHECKING:
    from pathlib import Path

_PLATFORMS = ("manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_SECONDS = 120


def unpacked(requirement: str) -> Path:
    """Return a folder with the unpacked newest wheel that satisfies *requirement*."""

    def fill(draft: Path) -> None:
        with zipfile.ZipFile(_fetch(draft, requirement)) as wheel:
            wheel.extractall(draft)

    return package_cache.folder(requirement, fill)


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
