"""The test suite itself, started with ignored signals as by `nohup make test &`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_programs_under_test_can_be_interrupted_although_pytest_cannot(name, tmp_path):
    (tmp_path / "conftest.py").symlink_to(HERE / "conftest.py")
    (tmp_path / "test_trap.py").write_text(
        "import subprocess\n"
        "def test_trap():\n"
        f"    script = 'trap \"exit 9\" {name}; kill -{name} $$; exit 0'\n"
        "    assert subprocess.run(['sh', '-c', script]).returncode == 9\n"
    )
    pytest_here = [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, tmp_path]
    ran = subprocess.run(
        ["sh", "-c", f"trap '' {name}; exec \"$@\"", "sh", *pytest_here],
        env={**os.environ, "PYTHONPATH": str(HERE / "support")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
