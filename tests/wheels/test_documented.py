"""Commands of the pages that install pyvgpu by pip, from wheels and from a checkout.

Their blocks have the mark `<!-- wheels -->`. They run as they stand, with an empty home.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import documented
import pytest

from .conftest import DIST

pytestmark = pytest.mark.wheels


def steps(page):
    """Return the marked blocks of a page, in order."""
    return [text for mark, _, text in documented.blocks(page) if mark == documented.WHEELS]


@pytest.fixture
def follow(tmp_path):
    """Return a function that runs a step in *folder*, and returns what it prints."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYVGPU_", "XDG_", "PYTHON"))}
    # The Python of the tests, but nothing that their virtual environment has installed.
    program = Path(sys.executable)
    rest = [each for each in kept["PATH"].split(":") if each != str(program.parent)]
    path = ":".join([str(program.resolve().parent), *rest])
    environment = {**kept, "HOME": str(home), "PATH": path}

    def run(step, folder):
        return documented.output_of(("bash", "-euc", step), folder, environment)

    run.home = home
    return run


@pytest.fixture
def checkout(tmp_path):
    """Return a clone of this checkout."""
    made = tmp_path / "pyvgpu"
    subprocess.run(["git", "clone", "--quiet", documented.ROOT, made], check=True)
    return made


def test_a_checkout_is_installed_as_the_workstation_page_says(follow, checkout):
    step, _ = steps(documented.ROOT / "docs/start-workstation.md")
    said = follow(step, checkout)
    assert "\nsimulator " in said
    assert "\nshim " in said


def test_a_checkout_is_installed_as_the_cluster_page_says(follow, checkout):
    (step,) = steps(documented.ROOT / "docs/start-cluster.md")
    said = follow(f"{step}\npyvgpu manifests simulate", checkout)
    assert "\nkind: DaemonSet\n" in said


def test_a_wheel_is_installed_as_the_workstation_page_says(follow, wheels):
    _, wheel = steps(documented.ROOT / "docs/start-workstation.md")
    venv.create(follow.home / "pyvgpu", with_pip=True)
    follow(wheel, DIST.parent)
    assert follow("~/pyvgpu/bin/pyvgpu --version", DIST).startswith("pyvgpu ")


def test_a_released_wheel_is_installed_as_the_page_says(follow, wheels):
    (release,) = steps(documented.ROOT / "docs/release.md")
    venv.create(follow.home / "python", with_pip=True)
    activated = f". ~/python/bin/activate\n{release}\n"
    assert follow(f"{activated}kubectl-vgpu --version", DIST).splitlines()[-3].startswith("pyvgpu")
