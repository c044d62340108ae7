"""The wheels of `make wheels`, and virtual environments to install them in."""

import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path

import bare
import pytest

DIST = Path(__file__).parents[2] / "dist"


@pytest.fixture(scope="session")
def wheels():
    """Return the wheels by machine architecture."""
    found = {path.stem.rpartition("manylinux_2_17_")[2]: path for path in DIST.glob("*.whl")}
    assert set(found) == {"x86_64", "aarch64"}, "make wheels"
    return found


class Installed:
    """A virtual environment with only pyvgpu's dependencies, linked instead of downloaded."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self._variables = {
            "PATH": str(self.programs),  # no compiler, no tool
            "HOME": str(folder),
            "PYVGPU_SIMULATED_MACHINES": str(folder / "machines"),
        }
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        for name in bare.installed() - {"pyvgpu"}:
            for entry in bare.top_level(importlib.metadata.distribution(name)):
                (site / entry.name).symlink_to(entry)

    def install(self, wheel: Path) -> None:
        options = ("--force-reinstall", "--no-deps", "--no-index", "--no-compile", "--quiet")
        subprocess.run(
            [self.programs / "pip", "--disable-pip-version-check", "install", *options, wheel],
            env=self._variables,
            check=True,
        )

    def start(self, *command: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.programs / command[0]), *map(str, command[1:])],
            env=self._variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: object) -> str:
        with self.start(*command) as process:
            output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return output

    def refused(self, *command: object) -> tuple[int, str]:
        """Run *command*; return its exit code and what it wrote to standard error."""
        done = subprocess.run(
            [str(self.programs / command[0]), *map(str, command[1:])],
            env=self._variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr


@pytest.fixture
def installed(tmp_path, wheels):
    """Return a virtual environment with this machine's wheel."""
    made = Installed(tmp_path / "python")
    made.install(wheels[sysconfig.get_platform().removeprefix("linux-")])
    return made
