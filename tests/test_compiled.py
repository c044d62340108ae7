"""Cython modules are imported compiled, and their Python sources pass the same tests."""

import importlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pure
import pytest

TESTS = (
    "tests/allocator/test_capacity.py",
    "tests/controller/scheduler/test_index.py",
    "tests/controller/scheduler/test_name_lists.py",
    "tests/controller/scheduler/test_nodenames.py",
    "tests/pyvgpu/test_region.py",
    "tests/pyvgpu/test_words.py",
)


HEADERS = Path(sysconfig.get_path("include"), "Python.h")


@pytest.mark.skipif(
    not HEADERS.exists() and not os.environ.get("CI"),
    reason=f"{HEADERS}: missing (Debian: apt-get install python3-dev)",
)
@pytest.mark.parametrize("name", sorted(pure.sources()))
def test_imported_modules_are_compiled(name):
    assert importlib.import_module(name).__file__.endswith(".abi3.so")


@pytest.mark.slow
def test_python_sources_pass_the_same_tests():
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *TESTS],
        cwd=pure.ROOT,
        env={**os.environ, pure.WANTED: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


def test_pyvgpu_pure_selects_python_sources():
    said = "import pure; pure.prefer(); from pyvgpu.region import words; print(words.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", said],
        env={**os.environ, pure.WANTED: "1", "PYTHONPATH": str(pure.ROOT / "tests/support")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == f"{pure.ROOT / 'pyvgpu/region/words.py'}\n"
