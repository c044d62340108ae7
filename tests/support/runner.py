"""Runs the command `pyvgpu run --simulate` with a private cache and private machines."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import rights
from waiting import WHOLE

PYVGPU = str(Path(sys.executable).parent / "pyvgpu")


class Runner:
    """Starts `pyvgpu run --simulate` in private folders."""

    def __init__(self, place: Path, machine: str = "h100") -> None:
        self.machine = machine
        self.cache = place / "cache"
        self.machines = place / "machines"
        self.environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(self.cache),
            "PYVGPU_SIMULATED_MACHINES": str(self.machines),
        }
        for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYVGPU_SIMULATED_MACHINE"):
            self.environment.pop(name, None)
        self.machines.mkdir()

    def command(self, *arguments: object) -> list[str]:
        return [PYVGPU, "run", "--simulate", self.machine, *map(str, arguments)]

    def __call__(self, *arguments: object, env: dict[str, str] | None = None):
        ran = subprocess.run(
            self.command(*arguments),
            env={**self.environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=WHOLE,  # a busy machine takes a while to import numba
            check=False,
        )
        ran.stderr = rights.without_line(ran.stderr)
        return ran

    @contextlib.contextmanager
    def started(self, *arguments: object, **options: object):
        """Start a run with pipes for its standard streams; kill it at the end.

        If the test fails, pytest shows the run's stderr.
        """
        with subprocess.Popen(
            self.command(*arguments),
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        ) as process:
            try:
                yield process
            except BaseException:
                process.kill()
                if process.stderr is not None and not process.stderr.closed:
                    print(process.stderr.read())
                raise
            finally:
                process.kill()

    def listed(self, name: str) -> dict[str, object]:
        """Return the entry of `pyvgpu ps` for the run of that name."""
        said = subprocess.run(
            [PYVGPU, "ps", "--json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WHOLE,
            check=False,
        )
        assert said.returncode == 0, said.stderr
        (found,) = [run for run in json.loads(said.stdout)["runs"] if run["name"] == name]
        return found

    def trees(self) -> list[Path]:
        return list((self.cache / "pyvgpu" / "runs").glob("*"))
