import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest
from kit import record

from pyvgpu.simulation import simulator

KIT = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "gpukit"

# Not `-m kit.main`: where tests run in the background, their children ignore Ctrl-C.
MAIN = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("kit.main", run_name="__main__", alter_sys=True)
"""

TABLE = """
import dataclasses
@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    name: str
    answers: str
    seconds: float
    least: float
    needs: tuple = ()
QUOTA, SEVERAL, ROOM = "quota", "several", 6 << 30
STAGES = ({stages})
"""


class Kit:
    """A copy of the kit with a test's own stages."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder.parent / "out"
        shutil.copytree(KIT, folder)

    def put(self, **stages):
        """Replace all stages: name=(seconds, least, source, requirements ...)."""
        rows = ""
        for name, (seconds, least, source, *needs) in stages.items():
            (self.folder / "kit" / "stages" / f"{name}.py").write_text(source)
            rows += f"Stage({name!r}, 'a test', {seconds}, {least}, {tuple(needs)}),"
        (self.folder / "kit" / "stages" / "__init__.py").write_text(TABLE.format(stages=rows))

    def set(self, module, name, value):
        """Replace a constant of a module of the kit, a number or an expression of numbers."""
        path = self.folder / "kit" / f"{module}.py"
        text, count = re.subn(rf"^{name} = [\d<* .]+", f"{name} = {value}", path.read_text(),
                              flags=re.MULTILINE)  # fmt: skip
        assert count == 1
        path.write_text(text)

    def start(self, *arguments, **environment):
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, "--out", str(self.out), *arguments],
            env={**os.environ, "PYTHONPATH": str(self.folder), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        said, complained = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, said, complained)

    def stages(self):
        """Return the stages of the record, by name."""
        return record.read(self.out / "record.json")["stages"]


@pytest.fixture
def kit(tmp_path):
    return Kit(tmp_path / "copy")


@pytest.fixture
def simulated(tmp_path):
    """Return variables and options for this test's own simulated machine."""
    return ("--simulate", "h100"), {"PYVGPU_SIMULATED_MACHINES": str(tmp_path / "machines")}


@pytest.fixture
def run_stage(kit, tmp_path):
    """Return a function that runs one stage on a machine with a law; the stage's record."""

    def run(name, machine="h100", **law):
        root = tmp_path / "machines"
        simulator.open_machine(machine, root=root, law=simulator.Law(**law))
        done = kit.run("--simulate", machine, "--only", name, PYVGPU_SIMULATED_MACHINES=str(root))
        assert done.returncode == 0, done.stdout + done.stderr
        return record.read(kit.out / "record.json")["stages"][name]

    return run


@pytest.fixture
def open_folder():
    """Return a folder that every user can access."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-kit-") as folder:
        pathlib.Path(folder).chmod(0o755)
        yield pathlib.Path(folder)
