"""The Dockerfile builds the same images as deploy/images.py, by the same steps."""

import io
import json
import re
import shlex
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import image
import images
import pytest
import rig

LINES = (rig.DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
STAGES = {
    name: dict(line.split(" ", 1) for line in body.splitlines() if line)
    for name, body in re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", LINES, re.M | re.S)
}
TARGETS = {"pyvgpu": "pyvgpu", "pyvgpu-fast-exit": "fast-exit"}


def options_of(name):
    """Return the options of image.py for an image."""
    words = iter(images.IMAGES[name])
    return {word.lstrip("-"): next(words) for word in words}


@pytest.mark.parametrize("name", images.IMAGES)
def test_image_has_the_same_entrypoint_user_and_env(name):
    stage, options = STAGES[TARGETS[name]], options_of(name)
    assert json.loads(stage["ENTRYPOINT"]) == [options["entrypoint"]]
    assert stage.get("USER") == options.get("user")
    said = stage.get("ENV", "").split()
    assert said == ([*image.Below().env, options["env"]] if "env" in options else [])
    assert stage["COPY"] == f"--from=build /trees/{name}/ /"


def test_images_are_filled_by_the_same_program():
    (command,) = re.findall(r"python (/deploy/images.py .*)$", STAGES["build"]["RUN"], re.M)
    program, trees, folder, wheel = shlex.split(command)
    assert (rig.DEPLOY / program.removeprefix("/deploy/")).samefile(images.__file__)
    assert (trees, folder) == ("--trees", "/trees")
    assert wheel.endswith("_$machine.whl")
    machines = dict(re.findall(r"(\w+)\) machine=(\w+)", STAGES["build"]["RUN"]))
    assert {machine: name for name, machine in machines.items()} == image.ARCHITECTURES


def test_packages_are_on_pythons_search_path():
    """Debian's own Python does not search site-packages."""
    program = Path(sys.executable).resolve()
    command = [program, "-I", "-c", "import site; print(*site.getsitepackages(), sep='\\n')"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wanted = f"python{images.short()}/{images.PACKAGES}"
    assert any(line.endswith(wanted) for line in said.splitlines())


def test_trees_have_the_folders_of_every_image(tmp_path):
    images.stand(tmp_path)
    assert {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()
    } == image.FOLDERS
    images.stand(tmp_path)  # a second run accepts existing folders


def test_fast_exit_image_has_one_program_with_many_names(tmp_path):
    wheel = tmp_path / "pyvgpu-1-py3.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("pyvgpu/lib/sidecar/pyvgpu-exit", b"program")
    root = tmp_path / "root"
    images.fast_exit(wheel, root)
    archive = tmp_path / "out.tar"
    entries = [images.entry(root / path) for path in sorted(images.top(root))]
    command = [sys.executable, image.__file__, archive, "localhost/x:1", *entries]
    subprocess.run(command, check=True)
    (layer,) = image.Below.read(str(archive)).blobs.values()
    with tarfile.open(fileobj=io.BytesIO(layer)) as found:
        program = found.getmember("pyvgpu-exit")
        assert (program.mode, program.uid) == (0o755, 0)
        links = {member.name: member.linkname for member in found if member.issym()}
    assert links == {
        "pyvgpu-launch": "pyvgpu-exit",
        "bin/sh": "/pyvgpu-exit",
        "bin/bash": "/pyvgpu-exit",
    }
