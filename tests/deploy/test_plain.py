"""The files of deploy/plain are what the command makes now."""

import shutil
import subprocess

import pytest
import rig
import runner

PLAIN = rig.DEPLOY / "plain"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    program = shutil.copy(PLAIN / "render", folder)
    subprocess.run([program, runner.PYVGPU], check=True)
    return {it.name: it.read_text() for it in folder.glob("*.yaml")}


@pytest.mark.parametrize("file", ["gaia.yaml", "pyvgpu.yaml"])
def test_it_is_current(written, file):
    assert (PLAIN / file).read_text() == written[file], (
        "run deploy/plain/render $PWD/.venv/bin/pyvgpu"
    )


def test_there_is_no_other(written):
    assert {it.name for it in PLAIN.iterdir()} == {"render", *written}
