import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYVGPU = str(Path(sys.executable).parent / "pyvgpu")
BOOKS = (Path("/run/pyvgpu"), Path("/tmp/pyvgpu"))
PROMPT = 30.0  # seconds, far beyond what anything here takes


class Runner:
    """Starts `pyvgpu run --simulate` in places of its own."""

    def __init__(self, place: Path) -> None:
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
        return [PYVGPU, "run", "--simulate", "h100", *map(str, arguments)]

    def __call__(self, *arguments: object, env: dict[str, str] | None = None):
        return subprocess.run(
            self.command(*arguments),
            env={**self.environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextlib.contextmanager
    def started(self, *arguments: object, **options: object):
        """Start a run; its standard streams are pipes. It is killed at the end."""
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
            finally:
                process.kill()

    def trees(self) -> list[Path]:
        return list((self.cache / "pyvgpu" / "runs").glob("*"))


@pytest.fixture
def runner():
    """Return a runner whose folders every user can reach."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as name:
        Path(name).chmod(0o755)
        yield Runner(Path(name))


@pytest.fixture
def name():
    """Return a name that no other run on this machine has."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def probe():
    """Return a CUDA program, see probe.c, where every user can reach it."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-probe-") as folder:
        Path(folder).chmod(0o755)
        program = Path(folder) / "probe"
        subprocess.run(
            ["gcc", "-Wall", "-Werror", HERE / "probe.c", "-o", program, "-ldl"], check=True
        )
        yield program


def promised(name: str) -> list[Path]:
    """Return the folders of the promises that are called *name*."""
    found = []
    for book in BOOKS:
        for path in book.glob("*/promise.json"):
            with contextlib.suppress(OSError):
                if f'"name": "{name}"' in path.read_text():
                    found.append(path.parent)
    return found


def wait_until(condition):
    """Return once *condition* holds; fail if it never does."""
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)
