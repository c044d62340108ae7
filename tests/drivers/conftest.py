"""Real NVIDIA drivers on a machine without a GPU, and a report of the findings on each.

The packages are Debian's. NVIDIA's libraries run only in a mount namespace with a private /dev and
without CAP_MKNOD, because NVML as root would create device nodes.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import debian
import pytest
import shim_room

from pyvgpu.simulation import simulator
from pyvgpu.volumes import find

PACKAGES = {  # by driver branch: the Debian suite, and the name pattern of its two packages
    450: ("bullseye", "libnvidia-tesla-450-{}1"),
    470: ("bullseye", "lib{}1"),
    525: ("bookworm", "libnvidia-tesla-{}1"),
    535: ("bookworm", "lib{}1"),
    550: ("trixie", "lib{}1"),
}
APART = 'mount -t tmpfs -o nodev,size=1m none /dev && exec setpriv --bounding-set=-mknod "$@"'
REPORT = Path(__file__).parents[2] / "build" / "drivers.json"
_table = pytest.StashKey[dict]()


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A driver, a quota for it, and a record of findings."""

    driver: find.Driver
    room: shim_room.Room
    bare: Path
    record: dict

    def ask(self, program, *arguments, bare=False, given=None):
        """Run *program* isolated from this machine, bare or with the shim; return its answer."""
        folder = self.bare if bare else self.room.tree / "lib64"
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", APART, "sh", sys.executable, program, *arguments],
            env={"LD_LIBRARY_PATH": str(folder), "PATH": os.environ["PATH"]},
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)


def pytest_configure(config):
    config.stash[_table] = {}


@pytest.fixture(scope="session", params=PACKAGES)
def place(request, tmp_path_factory):
    suite, name = PACKAGES[request.param]
    names = [name.format(api) for api in ("cuda", "nvidia-ml")]
    if "tesla" in name:
        names[1] = name.format("ml")
    root = debian.unpacked(suite, *names)
    (library,) = root.glob("usr/lib/x86_64-linux-gnu/nvidia/*/libcuda.so.1")
    driver = find.find_driver(library.parent)
    folder = tmp_path_factory.mktemp(driver.release)
    machine = simulator.open_machine("h100", root=folder / "machines")
    record = request.config.stash[_table].setdefault(driver.release, {})
    with shim_room.room(folder / "room", machine, driver=driver) as room:
        yield Place(driver, room, library.parent, record)


def pytest_terminal_summary(terminalreporter, config):
    table = config.stash[_table]
    if table:
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
        terminalreporter.section(f"real drivers: {REPORT}")
        for release, record in table.items():
            facts = ", ".join(f"{key} {value}" for key, value in record.items() if key[0] != "_")
            terminalreporter.write_line(f"{release}: {facts}")
