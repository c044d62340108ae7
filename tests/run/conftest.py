import contextlib
import secrets
import subprocess
import tempfile
from pathlib import Path

import pytest
from runner import Runner

HERE = Path(__file__).parent
REGISTRIES = (Path("/run/pyvgpu"), Path("/tmp/pyvgpu"))


@pytest.fixture
def runner():
    """Return a runner whose folders every user can access."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as name:
        Path(name).chmod(0o755)
        yield Runner(Path(name))


@pytest.fixture
def name():
    """Return a name that no other run on this machine has."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def probe():
    """Return a CUDA program, see probe.c, that every user can execute."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-probe-") as folder:
        Path(folder).chmod(0o755)
        program = Path(folder) / "probe"
        subprocess.run(
            ["gcc", "-Wall", "-Werror", HERE / "probe.c", "-o", program, "-ldl"], check=True
        )
        yield program


def reservation_folders(name: str) -> list[Path]:
    """Return the folders of the reservations named *name*."""
    found = []
    for registry in REGISTRIES:
        for path in registry.glob("*/reservation.json"):
            with contextlib.suppress(OSError):
                if f'"name": "{name}"' in path.read_text():
                    found.append(path.parent)
    return found
