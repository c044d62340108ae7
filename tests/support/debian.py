"""Downloads packages from this machine's Debian archive and unpacks them without installing.

apt runs with a configuration of its own, so that the machine's stays untouched; it checks the
archive's signature as usual.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import package_cache
import pytest

if TYPE_CHECKING:
    from pathlib import Path

WANTING = "the Debian archive does not give"  # CI cannot install it; conftest.py allows the skip
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SECONDS = 300


def unpacked(suite: str, *packages: str, component: str = "non-free") -> Path:
    """Return a root folder with the unpacked amd64 *packages* of *suite*."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        pytest.skip("needs Debian's apt-get and dpkg")
    return package_cache.folder(
        "-".join((suite, *packages)),
        lambda draft: _fetch(draft, f"{_archive()} {suite} {component}", packages),
    )


def _archive() -> str:
    """Return the URL of the Debian archive that apt uses here."""
    command = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(SITE)"]
    for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
        origin, component, site = line.split(" ", 2)
        if origin == "Debian" and component == "main" and not site.endswith("security"):
            return site
    pytest.skip("apt knows no Debian archive here (apt-get update)")


def _fetch(folder: Path, source: str, packages: tuple[str, ...]) -> None:
    apt = folder / "apt"
    for name in ("state/lists/partial", "cache/archives/partial", "etc"):
        (apt / name).mkdir(parents=True)
    (apt / "state/status").touch()
    (apt / "etc/sources.list").write_text(f"deb [signed-by={_KEYRING}] {source}\n")
    (apt / "apt.conf").write_text(
        f'Dir::State "{apt}/state";\nDir::State::status "{apt}/state/status";\n'
        f'Dir::Cache "{apt}/cache";\nDir::Etc "{apt}/etc";\nAPT::Architecture "amd64";\n'
        'APT::Sandbox::User "root";\nAPT::Update::Error-Mode "any";\n'
    )
    variables = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "download", "-qq", *packages],
    ):
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=_SECONDS
        )
        if done.returncode != 0:
            pytest.skip(f"{WANTING} {' '.join(packages)}: {' '.join(done.stderr.split())}")
    for archive in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, folder], check=True)
        archive.unlink()
    shutil.rmtree(apt)
